"""PgQueuer over PostgreSQL by asyncpg; `python -m benchmarks.peers.on_pgqueuer BATCH` is a worker.

That is what its command line runs; the command line itself does not start beside the newest typer.
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import asyncpg
import pgqueuer
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job as Taken
from pgqueuer.queries import Queries

from benchmarks.client import database_session
from benchmarks.peers.job import ALL_ACTIONS, DATABASE_URL, Group, Job, Submit, name_of, run
from turnstile.stress.local.launcher import Deployment

_BATCH: Final = 1000
_TIMEOUT_SECONDS: Final = 10.0


async def _job(taken: Taken) -> None:
    await run(*json.loads(taken.payload or b""))


@asynccontextmanager
async def worker() -> AsyncIterator[PgQueuer]:
    """Yield the queuer of a worker."""
    connection = await asyncpg.connect(os.environ[DATABASE_URL], timeout=_TIMEOUT_SECONDS)
    try:
        queuer = PgQueuer.from_asyncpg_connection(connection)
        for group, number in ALL_ACTIONS:
            queuer.entrypoint(name_of(group, number), concurrency_limit=group.limit or 0)(_job)
        yield queuer
    finally:
        await connection.close(timeout=_TIMEOUT_SECONDS)


async def prepare(deployment: Deployment) -> None:
    """Create its tables."""
    async with database_session(deployment.database_url) as session:
        await Queries(AsyncpgDriver(session)).install()


@asynccontextmanager
async def submitting(deployment: Deployment) -> AsyncIterator[Submit]:
    """Enqueue in batches, and analyse the table."""
    async with database_session(deployment.database_url) as session:
        queries = Queries(AsyncpgDriver(session))

        async def submit_all(group: Group, jobs: Sequence[Job]) -> None:
            for start in range(0, len(jobs), _BATCH):
                batch = jobs[start : start + _BATCH]
                await queries.enqueue(
                    [name_of(group, job.action) for job in batch],
                    [json.dumps(job).encode() for job in batch],
                    [0] * len(batch),
                )
            # Without statistics its rate varies from 200 to 4,000 jobs/s with the plan of its query.
            await session.execute("ANALYZE pgqueuer")

        yield submit_all


if __name__ == "__main__":
    uvloop.run(pgqueuer.run(worker, batch_size=int(sys.argv[1])))
