"""DBOS over PostgreSQL: durable workflows on queues; `python -m ...on_dbos` is a worker."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions

from benchmarks.peers.job import ALL_ACTIONS, DATABASE_URL, GROUPS, Group, Job, name_of, run_blocking, setting
from benchmarks.peers.submitter import Submit
from benchmarks.waiting import until

POLLING_SECONDS: Final = "BENCH_DBOS_POLLING_SECONDS"
_READY_SECONDS: Final = 60.0
_VERSION: Final = "bench"
_CONNECTIONS: Final = 20


def _config() -> DBOSConfig:
    return {
        "name": "bench",
        "system_database_url": setting(DATABASE_URL),
        "sys_db_pool_size": _CONNECTIONS,
        "application_version": _VERSION,
        "executor_id": str(os.getpid()),
        "log_level": "WARNING",
    }


def queue_of(group: Group, number: int) -> str:
    """Return the queue of an action: those without a limit share one."""
    return str(group) if group.limit is None else name_of(group, number)


def work() -> None:
    """Be a worker until SIGTERM."""
    # Before any thread exists, so that none of them takes the signal instead.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    DBOS(config=_config())
    for group, number in ALL_ACTIONS:
        DBOS.workflow(name=name_of(group, number))(_workflow())
    limits = _limits()
    # Each queue that a process listens to is polled by a thread of its own.
    DBOS.listen_queues(list(limits))
    DBOS.launch()
    for queue, limit in limits.items():
        DBOS.register_queue(
            queue,
            global_concurrency=limit,
            polling_interval_sec=float(setting(POLLING_SECONDS)),
            on_conflict="always_update",
        )
    signal.sigwait({signal.SIGTERM})
    DBOS.destroy()


def _limits() -> dict[str, int | None]:
    groups = setting(GROUPS).split(",")
    return {queue_of(group, number): group.limit for group, number in ALL_ACTIONS if group in groups}


def _workflow() -> Callable[[int, int, int, bool, float], None]:
    def job(load: int, action: int, number: int, held: bool, seconds: float) -> None:
        run_blocking(load, action, number, held, seconds)

    return job


async def prepare() -> None:
    """Create its tables, as a worker's launch would."""
    DBOS(config=_config())
    DBOS.launch()
    DBOS.destroy()


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    """Enqueue one by one, which is the only way that keeps an order."""
    client = DBOSClient(system_database_url=setting(DATABASE_URL), application_name="bench")
    awaited = _limits().keys()

    async def registered() -> bool:
        return awaited <= {queue.name for queue in client.list_queues()}

    await until(registered, "the queues exist", deadline_seconds=_READY_SECONDS, pause_seconds=0.1)

    async def submit_all(group: Group, jobs: Sequence[Job]) -> None:
        for job in jobs:
            options: EnqueueOptions = {
                "queue_name": queue_of(group, job.action),
                "workflow_name": name_of(group, job.action),
                "app_version": _VERSION,
            }
            client.enqueue(options, *job)

    yield submit_all
    client.destroy()


if __name__ == "__main__":
    work()
