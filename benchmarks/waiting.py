"""Waits for a condition, with a deadline: a run that does not end fails and says what was missing."""

import asyncio
from collections.abc import Awaitable, Callable


class DidNotHappen(Exception):
    """What was waited for did not happen in time: the benchmark failed to run."""


async def until(
    condition: Callable[[], Awaitable[bool]], what: str, *, deadline_seconds: float, pause_seconds: float
) -> None:
    """Ask until `condition()` holds; raises DidNotHappen after the deadline."""
    deadline = asyncio.get_running_loop().time() + deadline_seconds
    while not await condition():
        if asyncio.get_running_loop().time() > deadline:
            raise DidNotHappen(f"not within {deadline_seconds:g} s: {what}")
        await asyncio.sleep(pause_seconds)
