"""For tests with a broker: messages, running publishers and consumers, the state that the broker reports."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import aiormq
from aio_pika.abc import AbstractChannel
from pamqp.common import FieldTable

from tests.support.traffic import in_background, until
from turnstile.common.broker.channel import BulkChannel
from turnstile.common.broker.connection import BrokerConnection, BrokerTimeouts, Declare, Link
from turnstile.common.broker.consumer import ConsumerConnection, Subscription
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.prefetch import ByteBounds
from turnstile.common.broker.publisher import Publisher
from turnstile.localservers import RabbitServer

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


def declares(queue: str, arguments: FieldTable | None = None) -> Declare:
    async def declare(channel: AbstractChannel) -> None:
        await channel.declare_queue(
            queue, durable=True, arguments=arguments or {"x-queue-type": "quorum", "x-delivery-limit": 100}
        )

    return declare


@asynccontextmanager
async def running(*parts: Publisher | ConsumerConnection) -> AsyncIterator[None]:
    """Run them, wait until they are connected, and stop them."""
    async with asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(part.run(), name=f"run-{type(part).__name__}") for part in parts]
        await until(lambda: all(part.connected for part in parts))
        try:
            yield
        finally:
            for run in runs:
                run.cancel()


@asynccontextmanager
async def publishing(
    url: str, *, timeouts: BrokerTimeouts | None = None, declare: Declare | None = None
) -> AsyncIterator[Publisher]:
    """A connected publisher that declares queue `q`."""
    publisher = Publisher(url, name="pub", declare=declare or declares("q"), timeouts=timeouts)
    async with running(publisher):
        yield publisher


@asynccontextmanager
async def subscribed(
    amqp_url: str,
    *,
    prefetch: int = 10,
    consumer_url: str | None = None,
    declare: Declare | None = None,
    timeouts: BrokerTimeouts | None = None,
    byte_bounds: ByteBounds | None = None,
) -> AsyncIterator[tuple[Publisher, ConsumerConnection, Subscription]]:
    """A connected publisher to queue `q`, and a consumer with a subscription to it."""
    consumer = ConsumerConnection(consumer_url or amqp_url, name="con", timeouts=timeouts)
    queue = consumer.subscribe(
        "q", prefetch=prefetch, declare=declare or declares("q"), byte_bounds=byte_bounds
    )
    async with publishing(amqp_url, declare=declare) as publisher, running(consumer):
        yield publisher, consumer, queue


@asynccontextmanager
async def linked(
    amqp_url: str, *, timeouts: BrokerTimeouts | None = None
) -> AsyncIterator[tuple[Link, BulkChannel]]:
    """One connection without a publisher or consumer around it, with queue `q` and an open channel."""
    connection = BrokerConnection(amqp_url, name="contract", timeouts=timeouts or BrokerTimeouts())
    first: asyncio.Future[Link] = asyncio.get_running_loop().create_future()

    async def serve(link: Link) -> None:
        if not first.done():
            first.set_result(link)
        await asyncio.wait({link.gone})

    async with in_background(connection.run(serve), name="contract-link"):
        link = await first
        await link.declare(declares("q"))
        yield link, await link.open_channel(confirms=True)


async def unused(_: object) -> None:
    """Serve as the callback that the library requires: deliveries go to `on_delivery`."""


@asynccontextmanager
async def bare_channel(amqp_url: str) -> AsyncIterator[aiormq.abc.AbstractChannel]:
    """A channel of the bare library, as any other client has."""
    connection = await aiormq.connect(amqp_url)
    try:
        yield await connection.channel()
    finally:
        await connection.close()


async def ready_messages(amqp_url: str, queue: str) -> int:
    async with bare_channel(amqp_url) as channel:
        return (await channel.queue_declare(queue, passive=True)).message_count or 0


async def until_ready(amqp_url: str, queue: str, count: int) -> None:
    """Wait until the broker reports this number of ready messages; the queue may be declared meanwhile."""

    async def are_ready() -> bool:
        with suppress(aiormq.exceptions.ChannelNotFoundEntity):
            return await ready_messages(amqp_url, queue) == count
        return False

    await until(are_ready, f"{count} messages in {queue}", deadline_seconds=DEADLINE_SECONDS)


def channel_of(delivery: Delivery) -> BulkChannel:
    assert isinstance(delivery.channel, BulkChannel)
    return delivery.channel


async def settled(delivery: Delivery) -> None:
    """Wait until the broker processed everything settled on this channel: it answers in order."""
    await channel_of(delivery).basic_qos(prefetch_count=1)


async def take(subscription: Subscription, count: int) -> list[Delivery]:
    """Take exactly this number of deliveries."""
    deliveries: list[Delivery] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(deliveries) < count:
            deliveries += await subscription.next_batch(count - len(deliveries))
    return deliveries


@asynccontextmanager
async def hanging(broker: RabbitServer, amqp_url: str, queue: str) -> AsyncIterator[None]:
    """Let a queue answer nothing, as a quorum queue without a majority of its members does."""
    vhost = urlsplit(amqp_url).path[1:]
    process = (
        f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"{vhost}">>, queue, <<"{queue}">>)),'
        " Process = case amqqueue:get_pid(Q) of {Name, _} -> whereis(Name); Pid -> Pid end,"
        " sys:%s(Process)."
    )
    await asyncio.to_thread(broker.ctl, "eval", process % "suspend")
    try:
        yield
    finally:
        await asyncio.to_thread(broker.ctl, "eval", process % "resume")
