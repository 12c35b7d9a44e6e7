"""Waits for a condition with a deadline. Imports nothing else: processes of the compared systems use it."""

import asyncio
from collections.abc import Awaitable, Callable


class DidNotHappen(Exception):
    """A condition did not hold in time: the benchmark failed to run."""


async def until(
    condition: Callable[[], Awaitable[bool]], what: str, *, deadline_seconds: float, pause_seconds: float
) -> None:
    """Poll until `condition()` holds; raises DidNotHappen after the deadline."""
    deadline = asyncio.get_running_loop().time() + deadline_seconds
    while not await condition():
        if asyncio.get_running_loop().time() > deadline:
            raise DidNotHappen(f"not within {deadline_seconds:g} s: {what}")
        await asyncio.sleep(pause_seconds)
