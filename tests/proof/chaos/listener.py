"""A listener of the ends of executions: a durable queue on the exchange, read when everything has drained."""

import asyncio
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from typing import Final

import aio_pika
from aio_pika import ExchangeType
from aio_pika.abc import AbstractIncomingMessage
from pydantic_core import from_json

from turnstile.common.broker.topology import EXECUTION_COMPLETED, EXECUTIONS

_QUEUE: Final = "proof.listener"
_DEADLINE_SECONDS: Final = 120.0
_PATIENCE_SECONDS: Final = 5.0


async def declare_listener(amqp_url: str) -> None:
    """Bind the queue, before any service has started."""
    async with asyncio.timeout(_DEADLINE_SECONDS), await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(EXECUTIONS, ExchangeType.TOPIC, durable=True)
        # A quorum queue delivers at most 2,000 messages before it wants acknowledgements.
        queue = await channel.declare_queue(_QUEUE, durable=True, arguments={"x-queue-type": "classic"})
        await queue.bind(exchange, EXECUTION_COMPLETED)


async def read_listener(amqp_url: str, wanted: Collection[int]) -> dict[int, set[str]]:
    """Return the statuses that were published of each execution.

    An event may come later than the row: waits until one of each execution has come, or none for a while.
    """
    found: dict[int, set[str]] = defaultdict(set)
    missing = set(wanted)
    news = asyncio.Event()

    async def take(message: AbstractIncomingMessage) -> None:
        body = from_json(message.body)
        found[body["execution_id"]].add(body["status"])
        missing.discard(body["execution_id"])
        news.set()

    async with asyncio.timeout(_DEADLINE_SECONDS), await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(_QUEUE, passive=True)
        await queue.consume(take, no_ack=True)
        with suppress(TimeoutError):
            while missing:
                news.clear()
                await asyncio.wait_for(news.wait(), _PATIENCE_SECONDS)
    return found
