"""awa over PostgreSQL by its queue-storage engine; `python -m ...on_awa WORKERS` is a worker.

`max_workers` of a queue is its limit, within one process.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import awa
import uvloop

from benchmarks.peers.job import ALL_ACTIONS, DATABASE_URL, GROUPS, Group, Job, name_of, run, setting
from benchmarks.peers.submitter import Submit

_KIND: Final = "job"
_BATCH: Final = 1000
_CONNECTIONS: Final = 20
_STOP_MS: Final = 2000


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a job; the library takes a dataclass."""

    load: int
    action: int
    number: int
    held: bool
    seconds: float


def queue_of(group: Group, number: int) -> str:
    """Return the queue of an action: those without a limit share one."""
    return str(group) if group.limit is None else name_of(group, number)


async def work(workers: int) -> None:
    """Be a worker until SIGTERM; `workers`: concurrent jobs of the queue without a limit."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    groups = setting(GROUPS).split(",")
    limits = {
        queue_of(group, number): group.limit or workers for group, number in ALL_ACTIONS if group in groups
    }
    client = awa.AsyncClient(setting(DATABASE_URL), max_connections=_CONNECTIONS)

    async def job(taken: Any) -> None:
        arguments = taken.args
        job = arguments
        await run(job.load, job.action, job.number, job.held, job.seconds)

    client.task(Arguments, kind=_KIND, queue=next(iter(limits)))(job)
    await client.start(list(limits.items()))
    await stop.wait()
    await client.shutdown(_STOP_MS)
    await client.close()


async def prepare() -> None:
    """Create its tables, and activate the queue-storage engine."""
    async with awa.AsyncClient(setting(DATABASE_URL)) as client:
        await client.migrate()
        await client.install_queue_storage()


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    """Copy in batches."""
    async with awa.AsyncClient(setting(DATABASE_URL)) as client:

        async def submit_all(group: Group, jobs: Sequence[Job]) -> None:
            for start in range(0, len(jobs), _BATCH):
                batch = jobs[start : start + _BATCH]
                await client.enqueue_many_copy(
                    [Arguments(*job) for job in batch],
                    kind=_KIND,
                    opts=[{"queue": queue_of(group, job.action)} for job in batch],
                )

        yield submit_all


if __name__ == "__main__":
    uvloop.run(work(int(sys.argv[1])))
