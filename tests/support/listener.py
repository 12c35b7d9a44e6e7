"""A test's own queue on an exchange: what the services publish, as any client can receive it."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aio_pika
from aio_pika import ExchangeType
from aio_pika.abc import AbstractIncomingMessage

from tests.support.traffic import until
from turnstile.common.broker.topology import EXECUTION_COMPLETED, EXECUTION_STATUS_CHANGED, EXECUTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One message."""

    type: str
    body: dict[str, Any]
    headers: dict[str, Any]
    app_id: str | None


@dataclass(slots=True)
class Listener:
    """All messages so far, in the order in which the broker had them."""

    received: list[Received] = field(default_factory=list)

    def about(self, kind: str, execution_id: int) -> list[Received]:
        """Return the messages of one type about one execution."""
        return [m for m in self.received if m.type == kind and m.body.get("execution_id") == execution_id]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the received messages meet a condition."""
        await until(condition, what, deadline_seconds=20.0)

    async def take(self, message: AbstractIncomingMessage) -> None:
        """Store one message."""
        self.received.append(
            Received(
                type=message.type or message.routing_key or "",
                body=json.loads(message.body),
                headers=dict(message.headers),
                app_id=message.app_id,
            )
        )


@asynccontextmanager
async def listening(amqp_url: str, *keys: str, exchange: str = EXECUTIONS) -> AsyncIterator[Listener]:
    """Receive from here on; without keys, all completions and status changes."""
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=0)
        source = await channel.declare_exchange(exchange, ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(exclusive=True)
        for key in keys or (EXECUTION_COMPLETED, EXECUTION_STATUS_CHANGED):
            await queue.bind(source, key)
        listener = Listener()
        await queue.consume(listener.take, no_ack=True)
        yield listener
