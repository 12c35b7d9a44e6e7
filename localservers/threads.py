"""Blocking work beside a running event loop: in a thread, and always to its end.

In: a function that starts, stops or restarts something. Out: what it returns. A thread cannot be broken off;
who went on without it would tidy up beside it, and what it starts then would stay.
"""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def to_the_end(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call `work` in a thread; who is cancelled meanwhile still waits until it has returned."""
    name = getattr(work, "__qualname__", "work")
    task = asyncio.create_task(asyncio.to_thread(work, *arguments, **options), name=name)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            # Retrieved, so that nobody complains of it: who was cancelled has nobody to tell.
            task.exception()
        raise
