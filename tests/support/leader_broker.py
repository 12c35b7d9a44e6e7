"""For tests of the leader's broker port: brokers that are open, messages of workers, what has arrived."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiormq

from tests.support.traffic import in_background, until
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import EXECUTOR, EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import envelope
from turnstile.common.worker_protocol import AttemptEnded, Heartbeat, Hello, Report, Sender
from turnstile.common.worker_wire import (
    WORKER_HEARTBEAT,
    WORKER_HELLO,
    WORKER_REPORTS,
    encode_heartbeat,
    encode_reports,
)
from turnstile.executor.leader.amqp import AmqpBroker
from turnstile.executor.leader.ports import BrokerUnavailable, Delivery

DEADLINE_SECONDS = 20.0
SENDER = Sender(worker_id="w1", session=1, secret="a secret")


@asynccontextmanager
async def leader_broker(amqp_url: str, **options: Any) -> AsyncIterator[AmqpBroker]:
    """A broker port that can publish, and consumes nothing yet; it is closed at the end."""
    given: dict[str, Any] = {"refusal_of": lambda *_: None, "event_result_bytes_max": 1000} | options
    broker = AmqpBroker(amqp_url, **given)
    async with in_background(broker.run(), name="leader-broker"):
        await until(lambda: broker.connected, "a connection of the publisher")
        try:
            yield broker
        finally:
            await broker.close()


@asynccontextmanager
async def leading(amqp_url: str, **options: Any) -> AsyncIterator[AmqpBroker]:
    """A broker port that consumes."""
    async with leader_broker(amqp_url, **options) as broker:
        await opened(broker)
        yield broker


async def opened(broker: AmqpBroker) -> None:
    """Open, as a leader tries again and again."""

    async def is_open() -> bool:
        with suppress(BrokerUnavailable):
            await broker.open()
        return broker.is_open

    await until(is_open, "an open broker", deadline_seconds=DEADLINE_SECONDS)


async def taken(broker: AmqpBroker, queue: str, count: int) -> list[Delivery]:
    """Take exactly this number of deliveries."""
    found: list[Delivery] = []

    def are_taken() -> bool:
        found.extend(broker.take(queue, count - len(found)))
        return len(found) == count

    await until(are_taken, f"{count} deliveries of {queue}", deadline_seconds=DEADLINE_SECONDS)
    return found


async def until_empty(amqp_url: str, queue: str) -> None:
    """Wait until a queue has no message, also none that is unacknowledged: nothing consumes it any more."""
    connection = await aiormq.connect(amqp_url)
    try:
        channel = await connection.channel()

        async def is_empty() -> bool:
            declared = await channel.queue_declare(queue, passive=True)
            return (declared.message_count, declared.consumer_count) == (0, 0)

        await until(is_empty, f"an empty {queue}", deadline_seconds=DEADLINE_SECONDS)
    finally:
        await connection.close()


def of_worker(body: bytes, message_type: str) -> Outgoing:
    """Return a message as a worker publishes it."""
    key = EXECUTOR_COMPLETIONS if message_type == WORKER_REPORTS else EXECUTOR_HEARTBEATS
    return envelope(body, message_type=message_type, exchange=EXECUTOR, routing_key=key, app_id="worker")


def hello(sender: Sender = SENDER, **fields: Any) -> Outgoing:
    given = {"name": "host", "pools": ("default",), "actions": None, "concurrency": 4} | fields
    body = Hello(sender=sender, lease_seconds=10.0, epoch_seen=0, **given)
    return of_worker(encode_heartbeat(body), WORKER_HELLO)


def heartbeat(number: int, sender: Sender = SENDER) -> Outgoing:
    body = Heartbeat(sender=sender, number=number, epoch_seen=1, received=0)
    return of_worker(encode_heartbeat(body), WORKER_HEARTBEAT)


def end(number: int, *, result: bytes = b"1", sender: Sender = SENDER) -> Report:
    body = AttemptEnded(execution_id=number, grant=Grant(1, number), status=Status.COMPLETED, result=result)
    return Report(sender=sender, number=number, kept_from=1, epoch_seen=1, body=body)


def reports(each: Sequence[Report]) -> Outgoing:
    return of_worker(encode_reports(each), WORKER_REPORTS)


class Listener:
    """Whatever reaches one queue of a listener, session or client."""

    def __init__(self) -> None:
        self.messages: list[aiormq.abc.DeliveredMessage] = []

    async def take(self, message: aiormq.abc.DeliveredMessage) -> None:
        self.messages.append(message)

    async def until(self, count: int) -> list[aiormq.abc.DeliveredMessage]:
        await until(
            lambda: len(self.messages) >= count, f"{count} messages", deadline_seconds=DEADLINE_SECONDS
        )
        return self.messages

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


@asynccontextmanager
async def listener(
    amqp_url: str,
    queue: str,
    *,
    keys: Sequence[str] = (),
    exchange: str = "executions",
    consumes: bool = True,
    arguments: Mapping[str, Any] | None = None,
) -> AsyncIterator[Listener]:
    """A queue of a listener, bound to these keys; it is gone at the end, unless it is durable."""
    connection = await aiormq.connect(amqp_url)
    try:
        channel = await connection.channel()
        is_durable = arguments is not None
        await channel.queue_declare(
            queue, exclusive=not is_durable, durable=is_durable, arguments=dict(arguments or {})
        )
        for key in keys:
            await channel.queue_bind(queue, exchange, key)
        heard = Listener()
        if consumes:
            await channel.basic_consume(queue, heard.take, no_ack=True)
        yield heard
    finally:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await connection.close()
