"""Waits for a condition with a deadline, and work beside a block."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any


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


@asynccontextmanager
async def beside(works: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Do these works beside the block, and cancel them at its end; raises the first error of a work."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for each in ended:
        if isinstance(each, Exception):
            raise each
