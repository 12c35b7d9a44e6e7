"""The actions of a run of faults: their parameters say how long to take and how often to fail.

Each logs its start, and that it runs, in the run log.
"""

import sys

from tests.proof.run_log import log_while_blocking, logged_run
from turnstile.worker import Context, TemporaryError, action, command_action


@action("chaos.one", max_concurrent=1, max_reclaims=1000)
async def one(context: Context, seconds: float) -> int:
    """Run alone, in the event loop."""
    return await logged_run(context, seconds)


@action("chaos.two", max_concurrent=2, max_reclaims=1000)
def two(context: Context, seconds: float) -> int:
    """Run in a child process."""
    log_while_blocking(context.execution_id, context.attempt, seconds)
    return context.execution_id


@action("chaos.long", max_reclaims=1000)
def long(context: Context, seconds: float) -> int:
    """Run in a child process for longer than a lease."""
    return two(context, seconds)


@action(
    "chaos.seven",
    max_concurrent=7,
    max_reclaims=1000,
    retry={"max_attempts": 3, "delay": "200ms", "factor": 1},
)
async def seven(context: Context, seconds: float, failures: int = 0) -> int:
    """Fail in the first `failures` attempts."""
    result = await logged_run(context, seconds)
    if context.attempt <= failures:
        raise TemporaryError("planned", delay=0.2)
    return result


@action("chaos.brisk", max_concurrent=2, max_reclaims=1000)
async def brisk(context: Context, seconds: float) -> int:
    """Run for so short a time that a worker gets many at once."""
    return await logged_run(context, seconds)


@action("chaos.free", max_reclaims=1)
async def free(context: Context, seconds: float) -> int:
    """Run without a limit; abandoned when its worker is lost twice."""
    return await logged_run(context, seconds)


@action("chaos.crowd", max_reclaims=1000)
async def crowd(context: Context, seconds: float) -> int:
    """Run without a limit, with many others."""
    return await logged_run(context, seconds)


@action("chaos.keyed", max_concurrent=1, concurrency_key="/customer", max_reclaims=1000)
async def keyed(context: Context, customer: int, seconds: float) -> int:
    """Run alone among those of the same customer."""
    return await logged_run(context, seconds)


command = command_action(
    "chaos.command",
    argv=[sys.executable, "-m", "tests.proof.chaos.command"],
    max_concurrent=2,
    max_reclaims=1000,
)


@action("chaos.heavy", max_reclaims=1000)
async def heavy(context: Context, seconds: float) -> int:
    """Run with most units of a resource."""
    return await logged_run(context, seconds)


@action("chaos.light", max_reclaims=1000)
async def light(context: Context, seconds: float) -> int:
    """Run with one unit of each of two resources."""
    return await logged_run(context, seconds)


@action("chaos.shared", max_reclaims=1000)
def shared(context: Context, seconds: float) -> int:
    """Run in a child process, within a limit over all customers."""
    return two(context, seconds)


@action("chaos.mail", max_reclaims=1000, retry={"max_attempts": 3, "delay": "200ms", "factor": 1})
async def mail(context: Context, seconds: float) -> int:
    """Run with a limit of starts; fail in the first attempt, sometimes."""
    result = await logged_run(context, seconds)
    if context.attempt == 1 and context.execution_id % 7 == 0:
        raise TemporaryError("planned", delay=0.2)
    return result
