"""What the contract tests of the broker module share: messages, running parts, the broker's own view."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import aiormq
from aio_pika.abc import AbstractChannel
from pamqp.common import FieldTable

from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Delivery, Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.subscription import Subscription

DEADLINE_SECONDS = 20.0
IMPATIENT = BrokerTimeouts(
    connect_seconds=2.0, rpc_seconds=2.0, confirm_seconds=2.0, wait_seconds=1.0, backoff_max_seconds=0.5
)


def message(
    routing_key: str,
    body: bytes = b"{}",
    *,
    exchange: str = "",
    message_id: str | None = None,
    mandatory: bool = True,
    persistent: bool = True,
    expiration_ms: int | None = None,
) -> Outgoing:
    return Outgoing(
        exchange=exchange,
        routing_key=routing_key,
        body=body,
        type="test.message",
        message_id=message_id or uuid.uuid4().hex,
        app_id="test",
        mandatory=mandatory,
        persistent=persistent,
        expiration_ms=expiration_ms,
    )


def numbered(routing_key: str, count: int, *, exchange: str = "") -> list[Outgoing]:
    return [message(routing_key, str(number).encode(), exchange=exchange) for number in range(count)]


def numbered_bodies(*numbers: int) -> list[bytes]:
    return [str(number).encode() for number in numbers]


def bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


def declares(queue: str, arguments: FieldTable | None = None) -> Callable[[AbstractChannel], Awaitable[None]]:
    async def declare(channel: AbstractChannel) -> None:
        await channel.declare_queue(
            queue, durable=True, arguments=arguments or {"x-queue-type": "quorum", "x-delivery-limit": 100}
        )

    return declare


@asynccontextmanager
async def running(*parts: Publisher | ConsumerConnection) -> AsyncIterator[None]:
    """Run them, wait until they stand, and stop them."""
    async with asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(part.run(), name=f"run-{type(part).__name__}") for part in parts]
        await until(lambda: all(part.connected for part in parts))
        try:
            yield
        finally:
            for run in runs:
                run.cancel()


@asynccontextmanager
async def bare_channel(amqp_url: str) -> AsyncIterator[aiormq.abc.AbstractChannel]:
    """A channel of the bare library: what anyone else would see."""
    connection = await aiormq.connect(amqp_url)
    try:
        yield await connection.channel()
    finally:
        await connection.close()


async def ready_messages(amqp_url: str, queue: str) -> int:
    async with bare_channel(amqp_url) as channel:
        return (await channel.queue_declare(queue, passive=True)).message_count or 0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def until_ready(amqp_url: str, queue: str, count: int) -> None:
    """Wait until the broker itself counts so many messages waiting in the queue."""
    async with asyncio.timeout(DEADLINE_SECONDS), bare_channel(amqp_url) as channel:
        while (await channel.queue_declare(queue, passive=True)).message_count != count:
            await asyncio.sleep(0.02)


async def settled(delivery: Delivery) -> None:
    """Wait until the broker has dealt with all that was settled on this channel: it answers in order."""
    await delivery.channel.basic_qos(prefetch_count=1)


async def take(subscription: Subscription, count: int) -> list[Delivery]:
    """Take exactly so many deliveries."""
    taken: list[Delivery] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(taken) < count:
            taken += await subscription.next_batch(count - len(taken))
    return taken
