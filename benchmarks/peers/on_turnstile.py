"""This project: actions, requests published in batches and confirmed by the broker."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.client import publishing, request_of, submit
from benchmarks.peers.job import ALL_ACTIONS, Group, Job, Submit, name_of, run
from turnstile.stress.local.launcher import Deployment
from turnstile.worker import action


def _declare(group: Group, number: int) -> None:
    async def job(load: int, action: int, number: int, held: bool, seconds: float) -> None:
        await run(load, action, number, held, seconds)

    action(name_of(group, number), max_concurrent=group.limit)(job)


for _group, _number in ALL_ACTIONS:
    _declare(_group, _number)


async def prepare(_: Deployment) -> None:
    """Nothing: the database is migrated, and the workers declare their actions before they are ready."""


@asynccontextmanager
async def submitting(deployment: Deployment) -> AsyncIterator[Submit]:
    """Publish in batches, confirmed."""
    async with publishing(deployment.amqp_url) as publisher:

        async def submit_all(group: Group, jobs: Sequence[Job]) -> None:
            await submit(publisher, [request_of(name_of(group, job.action), job._asdict()) for job in jobs])

        yield submit_all
