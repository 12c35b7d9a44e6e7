"""What the workers of a run serve. Each run writes a line when it starts and one when it stops.

In: parameters that say how long to take and how often to fail. Out: lines in the file that `CHAOS_RECORD`
names, where nothing of ours can tidy them up; a run that is killed leaves no stop. No lock is taken for a
line: a process that is paused while it held one would stop all others.
"""

import asyncio
import sys
import time
from pathlib import Path

from tests.chaos.chaos_command import append
from worker import Context, TemporaryError, action, command_action


@action("chaos.one", max_concurrent=1, max_reclaims=1000)
async def one(context: Context, seconds: float) -> int:
    """Run alone, in the loop."""
    return await _recorded(context, seconds)


@action("chaos.two", max_concurrent=2, max_reclaims=1000)
def two(context: Context, seconds: float) -> int:
    """Run in a child process."""
    append("start", context.execution_id, context.attempt)
    time.sleep(seconds)
    append("stop", context.execution_id, context.attempt)
    return context.execution_id


@action(
    "chaos.seven",
    max_concurrent=7,
    max_reclaims=1000,
    retry={"max_attempts": 3, "delay": "200ms", "factor": 1},
)
async def seven(context: Context, seconds: float, failures: int = 0) -> int:
    """Fail so many times first."""
    result = await _recorded(context, seconds)
    if context.attempt <= failures:
        raise TemporaryError("as planned", delay=0.2)
    return result


@action("chaos.free", max_reclaims=1)
async def free(context: Context, seconds: float) -> int:
    """Run beside any number of others; given up when its worker is lost twice."""
    return await _recorded(context, seconds)


@action("chaos.keyed", max_concurrent=1, concurrency_key="/customer", max_reclaims=1000)
async def keyed(context: Context, customer: int, seconds: float) -> int:
    """Run alone among those of the same customer."""
    return await _recorded(context, seconds)


command = command_action(
    "chaos.command",
    argv=[sys.executable, "-I", "-S", str(Path(__file__).with_name("chaos_command.py"))],
    max_concurrent=2,
    max_reclaims=1000,
)


async def _recorded(context: Context, seconds: float) -> int:
    append("start", context.execution_id, context.attempt)
    await asyncio.sleep(seconds)
    append("stop", context.execution_id, context.attempt)
    return context.execution_id
