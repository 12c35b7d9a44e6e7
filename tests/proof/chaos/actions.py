"""What the workers of a run serve. Each run writes a line when it starts, and while it is there.

In: parameters that say how long to take and how often to fail. Out: lines in the run's record.
"""

import asyncio
import sys
import time

from tests.proof.chaos.record import note_seen, note_start, spells
from turnstile.worker import Context, TemporaryError, action, command_action


@action("chaos.one", max_concurrent=1, max_reclaims=1000)
async def one(context: Context, seconds: float) -> int:
    """Run alone, in the loop."""
    return await _recorded(context, seconds)


@action("chaos.two", max_concurrent=2, max_reclaims=1000)
def two(context: Context, seconds: float) -> int:
    """Run in a child process."""
    note_start(context.execution_id, context.attempt)
    for spell in spells(seconds):
        time.sleep(spell)
        note_seen(context.execution_id, context.attempt)
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
    argv=[sys.executable, "-m", "tests.proof.chaos.command"],
    max_concurrent=2,
    max_reclaims=1000,
)


async def _recorded(context: Context, seconds: float) -> int:
    note_start(context.execution_id, context.attempt)
    for spell in spells(seconds):
        await asyncio.sleep(spell)
        note_seen(context.execution_id, context.attempt)
    return context.execution_id
