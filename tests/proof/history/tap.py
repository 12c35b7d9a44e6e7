"""The broker's word: a durable queue of our own on the exchange, which hears what anybody could have heard.

In: what the services publish. Out: `Told`s, in the order in which the broker had them. The queue is read at
the end and keeps what it holds, so it may be read again.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

import aio_pika
from aio_pika import ExchangeType
from aio_pika.abc import AbstractIncomingMessage
from pydantic_core import from_json

from tests.proof.history.recording import Told
from turnstile.common.broker.topology import EXECUTIONS
from turnstile.common.domain.states import Status
from turnstile.common.messages import COMPLETED, STATUS_CHANGED

_QUEUE: Final = "history.tap"
_DEADLINE_SECONDS: Final = 120.0


async def declare_tap(amqp_url: str) -> None:
    """Listen from here on."""
    async with asyncio.timeout(_DEADLINE_SECONDS), await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(EXECUTIONS, ExchangeType.TOPIC, durable=True)
        # A quorum queue hands out 2,000 messages at most before it wants acknowledgements.
        queue = await channel.declare_queue(_QUEUE, durable=True, arguments={"x-queue-type": "classic"})
        for key in (COMPLETED, STATUS_CHANGED):
            await queue.bind(exchange, key)


async def read_tap(
    amqp_url: str, *, wanted: Collection[int] = (), patience_seconds: float = 5.0
) -> list[Told]:
    """Return all that was heard.

    What was settled was published, but may reach this queue a moment later: waits until a completion of each
    of the executions `wanted` has come, or nothing has come for so long.
    """
    heard: list[Told] = []
    missing = set(wanted)
    async with asyncio.timeout(_DEADLINE_SECONDS), await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=0)
        queue = await channel.declare_queue(_QUEUE, passive=True)
        count = queue.declaration_result.message_count or 0
        complete = asyncio.Event()

        async def take(message: AbstractIncomingMessage) -> None:
            # Not acknowledged: it stays there for the next reading.
            told = _told(message)
            heard.append(told)
            if told.type == COMPLETED:
                missing.discard(told.execution_id)
            if not missing and len(heard) >= count:
                complete.set()

        if count or missing:
            await queue.consume(take)
            so_far = -1
            while not complete.is_set() and len(heard) > so_far:
                so_far = len(heard)
                # What is missing when nothing comes any more is for the verdict.
                with suppress(TimeoutError):
                    await asyncio.wait_for(complete.wait(), patience_seconds)
    return heard


def _told(message: AbstractIncomingMessage) -> Told:
    body: dict[str, Any] = from_json(message.body)
    return Told(
        type=message.type or message.routing_key or "",
        execution_id=body["execution_id"],
        attempt=body["attempt"],
        status=Status(body["status"]),
    )
