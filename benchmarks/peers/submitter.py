"""The submitting process of a contestant: `python -m benchmarks.peers.submitter MODULE`.

Reads one JSON line per load from standard input and writes one per load to standard output: the beginning,
and when the system had accepted the last job (monotonic nanoseconds). The first output line says that workers
may start.
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

from benchmarks.peers.job import Group, Job, jobs_of

Submit = Callable[[Group, Sequence[Job]], Awaitable[None]]
"""Submits the jobs of a load in order; returns when the system has accepted all of them."""


class Submitting(Protocol):
    """The interface of each module in `systems`."""

    async def prepare(self) -> None:
        """Create what the workers need before they start."""
        ...

    def submitting(self) -> AbstractAsyncContextManager[Submit]:
        """Connect while workers run, and wait until jobs are accepted."""
        ...


async def serve(system: Submitting) -> None:
    """Prepare, then submit each requested load until the input ends."""
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
