"""A queue of the test's own on an exchange of ours: what the services told, as anybody may hear it."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aio_pika
from aio_pika import ExchangeType
from aio_pika.abc import AbstractIncomingMessage

from tests.support.traffic import until
from turnstile.common.broker.topology import EXECUTIONS
from turnstile.common.messages import COMPLETED, STATUS_CHANGED


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One message."""

    type: str
    body: dict[str, Any]
    headers: dict[str, Any]
    app_id: str | None


@dataclass(slots=True)
class Tap:
    """All messages so far, in the order in which the broker had them."""

    heard: list[Heard] = field(default_factory=list)

    def about(self, kind: str, execution_id: int) -> list[Heard]:
        return [m for m in self.heard if m.type == kind and m.body.get("execution_id") == execution_id]

    async def until(
        self, condition: Callable[[], bool], what: str, *, deadline_seconds: float = 20.0
    ) -> None:
        async def holds() -> bool:
            return condition()

        await until(holds, what, deadline_seconds=deadline_seconds)

    async def take(self, message: AbstractIncomingMessage) -> None:
        self.heard.append(
            Heard(
                type=message.type or message.routing_key or "",
                body=json.loads(message.body),
                headers=dict(message.headers),
                app_id=message.app_id,
            )
        )


@asynccontextmanager
async def tapped(amqp_url: str, *keys: str, exchange: str = EXECUTIONS) -> AsyncIterator[Tap]:
    """Listen from here on; without keys, to all ends and all moves."""
    connection = await aio_pika.connect(amqp_url)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=0)
        source = await channel.declare_exchange(exchange, ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(exclusive=True)
        for key in keys or (COMPLETED, STATUS_CHANGED):
            await queue.bind(source, key)
        tap = Tap()
        await queue.consume(tap.take, no_ack=True)
        yield tap
