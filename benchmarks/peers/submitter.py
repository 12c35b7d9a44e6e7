"""The submitting side of a contestant, a process: `python -m benchmarks.peers.submitter MODULE`.

In: one JSON line on standard input for each load. Out: one JSON line for each on standard output: when it
began, and when the system had taken the last job (monotonic nanoseconds). The first line out says that what
the workers need before they start is there. It ends with its input.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Protocol, cast

import uvloop

from benchmarks.peers.loads import Group, Job, jobs_of

Submit = Callable[[Group, Sequence[Job]], Awaitable[None]]
"""Hands the jobs of a load to the system, in order; returns when it has taken all of them."""


class Submitting(Protocol):
    """What each module in `systems` offers to this side."""

    async def prepare(self) -> None:
        """Create what workers need before they start."""
        ...

    def submitting(self) -> AbstractAsyncContextManager[Submit]:
        """Connect, while workers run, and wait until jobs are welcome."""
        ...


async def serve(system: Submitting) -> None:
    """Prepare, then submit what is asked for until nothing more is asked."""
    await system.prepare()
    _answer({})
    first = await asyncio.to_thread(sys.stdin.readline)
    if not first:
        return
    async with system.submitting() as submit:
        line = first
        while line:
            await _submit(submit, **json.loads(line))
            line = await asyncio.to_thread(sys.stdin.readline)


async def _submit(submit: Submit, load: int, group: str, count: int) -> None:
    jobs = jobs_of(load, Group(group), count)
    began_at = time.monotonic_ns()
    await submit(Group(group), jobs)
    _answer({"began_at": began_at, "ended_at": time.monotonic_ns()})


def _answer(fields: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(serve(cast(Submitting, import_module(sys.argv[1]))))
