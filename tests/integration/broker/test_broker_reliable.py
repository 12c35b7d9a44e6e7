"""Messages of the protocol reach their own queues, and strangers get a bounded number of tries (P9)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel

from tests.support.brokers import IMPATIENT, message, numbered, ready_messages, running, until, until_ready
from turnstile.common.broker.courier import Courier
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.reliable import ReliablePublisher

POISON = "amq.rabbitmq.reply-to.g1h3AA5yYWJiaXRAbm93aGVyZQAAAAAAAAAAAAAAAA==.key"
"""A well-formed address over which RabbitMQ 3.10 ends the connection."""


@dataclass(slots=True)
class Given:
    """What was given up, and why."""

    up: list[tuple[Outgoing, str]] = field(default_factory=list)

    def note(self, message: Outgoing, reason: str) -> None:
        self.up.append((message, reason))


async def topology(channel: AbstractChannel) -> None:
    """Declare `own` behind its door, and a full queue of a stranger, both bound to `topic`."""
    topic = await channel.declare_exchange("topic", ExchangeType.TOPIC, durable=True)
    own = await channel.declare_queue("own", durable=True, arguments={"x-queue-type": "quorum"})
    await own.bind(topic, "event")
    door = await channel.declare_exchange("own", ExchangeType.TOPIC, durable=True)
    await own.bind(door, "#")
    full = await channel.declare_queue(
        "full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    await full.bind(topic, "event")


def event(door: tuple[str, str] | None = ("own", "event")) -> Outgoing:
    return replace(message("event", exchange="topic"), door=door)


@asynccontextmanager
async def publishing(amqp_url: str, given: Given) -> AsyncIterator[tuple[ReliablePublisher, Courier]]:
    publisher = Publisher(amqp_url, name="own", declare=topology, timeouts=IMPATIENT)
    courier = Courier(Publisher(amqp_url, name="courier", timeouts=IMPATIENT), on_dropped=given.note)

    async def restore(returned: Sequence[Outgoing]) -> Sequence[Outgoing]:
        return returned

    carrying = asyncio.create_task(courier.run(), name="courier")
    try:
        async with running(publisher):
            yield ReliablePublisher(publisher, courier, restore=restore, on_abandoned=given.note), courier
    finally:
        carrying.cancel()
        await asyncio.wait({carrying})


async def test_what_a_queue_of_others_refuses_goes_by_the_door_of_its_own_queue(amqp_url: str) -> None:
    given = Given()
    async with publishing(amqp_url, given) as (reliable, _):
        await reliable.publish([event() for _ in range(50)])
        assert await ready_messages(amqp_url, "own") >= 50
        await until(lambda: len(given.up) >= 49)
        # The refusing queue took what it could; its copies are repeated no more than twice.
        assert await ready_messages(amqp_url, "full") >= 1
        assert await ready_messages(amqp_url, "own") <= 50 * 4


async def test_a_message_that_its_own_queue_refuses_is_abandoned_and_the_others_are_not(
    amqp_url: str,
) -> None:
    given = Given()
    async with publishing(amqp_url, given) as (reliable, _):
        await reliable.publish([message("full"), message("full"), *numbered("own", 20), message("full")])
        assert await ready_messages(amqp_url, "own") == 20
        assert given.up
        assert {sent.routing_key for sent, _ in given.up} == {"full"}


async def test_a_door_that_is_missing_is_tried_a_bounded_number_of_times(amqp_url: str) -> None:
    given = Given()
    async with publishing(amqp_url, given) as (reliable, _):
        await reliable.publish([message("full")])
        async with asyncio.timeout(20):
            await reliable.publish([event(door=("no such exchange", "event"))])
        assert any("no such exchange" in reason for _, reason in given.up)
        await reliable.publish([message("own")])


async def test_an_address_that_refuses_is_tried_a_few_times_while_the_others_get_theirs(
    amqp_url: str,
) -> None:
    given = Given()
    async with publishing(amqp_url, given) as (_, courier):
        futures = courier.post([message("full"), message("full"), *numbered("own", 20)])
        await asyncio.wait(futures[2:], timeout=10)
        assert [future.result() for future in futures[2:]] == [True] * 20
        await asyncio.wait(futures, timeout=10)
        assert [future.result() for future in futures[:2]] == [True, False]
        assert [sent.routing_key for sent, _ in given.up] == ["full"]


async def test_an_address_that_ends_the_connection_is_dropped_and_the_others_get_theirs(
    amqp_url: str,
) -> None:
    given = Given()
    async with publishing(amqp_url, given) as (reliable, courier):
        poison = [replace(message(POISON), mandatory=False) for _ in range(3)]
        futures = courier.post([*poison, *numbered("own", 20)])
        await reliable.publish(numbered("own", 10))  # on the connection of the protocol nothing happened
        await asyncio.wait(futures, timeout=20)
        assert [future.result() for future in futures] == [False] * 3 + [True] * 20
        assert await ready_messages(amqp_url, "own") >= 30


async def test_properties_that_fit_into_no_frame_are_never_written(amqp_url: str) -> None:
    given = Given()
    huge = replace(message("own"), headers={"x-large": "h" * 131_072})
    async with publishing(amqp_url, given) as (reliable, courier):
        futures = courier.post([huge, *numbered("own", 5)])
        await asyncio.wait(futures, timeout=10)
        await reliable.publish([message("own"), huge, message("own")])
        await until_ready(amqp_url, "own", 7)
        assert [sent for sent, _ in given.up] == [huge, huge]
        assert all("frame" in reason for _, reason in given.up)
