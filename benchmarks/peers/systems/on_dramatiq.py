"""Dramatiq over RabbitMQ; limits by its ConcurrentRateLimiter over Redis, which sends back what must wait."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.rate_limits import ConcurrentRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

from benchmarks.peers.job import (
    ALL_ACTIONS,
    AMQP_URL,
    REDIS_PREFIX,
    REDIS_URL,
    Group,
    Job,
    name_of,
    run_blocking,
    setting,
)
from benchmarks.peers.submitter import Submit

MIN_BACKOFF_MS: Final = 5
MAX_BACKOFF_MS: Final = 100

broker: Final = RabbitmqBroker(url=setting(AMQP_URL))
dramatiq.set_broker(broker)
_backend: Final = RedisBackend(url=setting(REDIS_URL))


def _actor(group: Group, number: int) -> "dramatiq.Actor[..., None]":
    name = name_of(group, number)
    if group.limit is None:
        return dramatiq.actor(run_blocking, actor_name=name)
    limiter = ConcurrentRateLimiter(_backend, f"{setting(REDIS_PREFIX)}.{name}", limit=group.limit)

    def limited(load: int, action: int, number: int, held: bool, seconds: float) -> None:
        with limiter.acquire():
            run_blocking(load, action, number, held, seconds)

    # What finds no slot raises, and is tried again: without end, and as soon as its own options allow.
    return dramatiq.actor(
        limited,
        actor_name=name,
        max_retries=None,
        min_backoff=MIN_BACKOFF_MS,
        max_backoff=MAX_BACKOFF_MS,
    )


actors: Final = {(group, number): _actor(group, number) for group, number in ALL_ACTIONS}


async def prepare() -> None:
    """Nothing: the workers declare their queues."""


@asynccontextmanager
async def submitting() -> AsyncIterator[Submit]:
    """Publish over the broker's own connection."""

    async def submit_all(group: Group, jobs: Sequence[Job]) -> None:
        for job in jobs:
            actors[group, job.action].send(*job)

    yield submit_all
    broker.close()
