"""taskiq over RabbitMQ by taskiq-aio-pika; it has no limits and no order of its own."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from taskiq_aio_pika import AioPikaBroker

from benchmarks.peers.job import ALL_ACTIONS, AMQP_URL, Group, Job, name_of, run, setting
from benchmarks.peers.submitter import Submit

PREFETCH: Final = 200
_AT_ONCE: Final = 100

broker: Final = AioPikaBroker(setting(AMQP_URL), qos=PREFETCH)
tasks: Final = {
    (group, number): broker.register_task(run, name_of(group, number)) for group, number in ALL_ACTIONS
}


async def prepare() -> None:
    """Nothing: the workers declare their queues."""


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    """Publish a hundred at a time, each confirmed."""
    await broker.startup()

    async def submit_all(group: Group, jobs: Sequence[Job]) -> None:
        for start in range(0, len(jobs), _AT_ONCE):
            batch = jobs[start : start + _AT_ONCE]
            await asyncio.gather(*(tasks[group, job.action].kiq(*job) for job in batch))

    yield submit_all
    await broker.shutdown()
