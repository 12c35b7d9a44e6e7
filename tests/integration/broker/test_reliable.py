"""The protocol's messages reach their own queues, and foreign addresses get few tries (P9)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel

from tests.support.brokers import IMPATIENT, message, numbered, ready_messages, running, until_ready
from tests.support.traffic import in_background, until
from turnstile.common.broker.best_effort import BestEffortPublisher
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.reliable import ReliablePublisher

POISON = "amq.rabbitmq.reply-to.g1h3AA5yYWJiaXRAbm93aGVyZQAAAAAAAAAAAAAAAA==.key"
"""A well-formed address over which RabbitMQ 3.10 ends the connection."""


@dataclass(slots=True)
class GivenUp:
    """The abandoned messages and their reasons."""

    messages: list[tuple[Outgoing, str]] = field(default_factory=list)

    def add(self, message: Outgoing, reason: str) -> None:
        self.messages.append((message, reason))


async def _declare(channel: AbstractChannel) -> None:
    """Declare `own` behind its direct exchange, and a full queue, both bound to `topic`."""
    topic = await channel.declare_exchange("topic", ExchangeType.TOPIC, durable=True)
    own = await channel.declare_queue("own", durable=True, arguments={"x-queue-type": "quorum"})
    await own.bind(topic, "event")
    direct = await channel.declare_exchange("own", ExchangeType.TOPIC, durable=True)
    await own.bind(direct, "#")
    full = await channel.declare_queue(
        "full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    await full.bind(topic, "event")


def event(direct_address: tuple[str, str] | None = ("own", "event")) -> Outgoing:
    return replace(message("event", exchange="topic"), direct_address=direct_address)


@asynccontextmanager
async def reliably(
    amqp_url: str, given_up: GivenUp
) -> AsyncIterator[tuple[ReliablePublisher, BestEffortPublisher]]:
    publisher = Publisher(amqp_url, name="own", declare=_declare, timeouts=IMPATIENT)
    best_effort = BestEffortPublisher(
        Publisher(amqp_url, name="best-effort", timeouts=IMPATIENT), on_dropped=given_up.add
    )

    async def restore(returned: Sequence[Outgoing]) -> Sequence[Outgoing]:
        return returned

    async with in_background(best_effort.run()), running(publisher):
        reliable = ReliablePublisher(publisher, best_effort, restore=restore, on_abandoned=given_up.add)
        yield reliable, best_effort


async def test_a_message_rejected_by_another_queue_reaches_its_own_queue_directly(amqp_url: str) -> None:
    given_up = GivenUp()
    async with reliably(amqp_url, given_up) as (reliable, _):
        await reliable.publish([event() for _ in range(50)])
        assert await ready_messages(amqp_url, "own") >= 50
        await until(lambda: len(given_up.messages) >= 49)
        # The full queue took what it could; copies for it are repeated at most twice.
        assert await ready_messages(amqp_url, "full") >= 1
        assert await ready_messages(amqp_url, "own") <= 50 * 4


async def test_a_message_that_its_own_queue_refuses_is_abandoned_and_the_others_are_not(
    amqp_url: str,
) -> None:
    given_up = GivenUp()
    async with reliably(amqp_url, given_up) as (reliable, _):
        await reliable.publish([message("full"), message("full"), *numbered("own", 20), message("full")])
        assert await ready_messages(amqp_url, "own") == 20
        assert given_up.messages
        assert {sent.routing_key for sent, _ in given_up.messages} == {"full"}


async def test_a_missing_direct_address_is_tried_a_bounded_number_of_times(amqp_url: str) -> None:
    given_up = GivenUp()
    async with reliably(amqp_url, given_up) as (reliable, _):
        await reliable.publish([message("full")])
        async with asyncio.timeout(20):
            await reliable.publish([event(direct_address=("no such exchange", "event"))])
        assert any("no such exchange" in reason for _, reason in given_up.messages)
        await reliable.publish([message("own")])


async def test_a_refusing_address_is_tried_a_few_times_and_does_not_delay_others(amqp_url: str) -> None:
    given_up = GivenUp()
    async with reliably(amqp_url, given_up) as (_, best_effort):
        futures = best_effort.post([message("full"), message("full"), *numbered("own", 20)])
        await asyncio.wait(futures[2:], timeout=10)
        assert [future.result() for future in futures[2:]] == [True] * 20
        await asyncio.wait(futures, timeout=10)
        assert [future.result() for future in futures[:2]] == [True, False]
        assert [sent.routing_key for sent, _ in given_up.messages] == ["full"]


async def test_an_address_that_closes_the_connection_is_dropped_and_the_others_are_served(
    amqp_url: str,
) -> None:
    given_up = GivenUp()
    async with reliably(amqp_url, given_up) as (reliable, best_effort):
        poison = [replace(message(POISON), mandatory=False) for _ in range(3)]
        futures = best_effort.post([*poison, *numbered("own", 20)])
        await reliable.publish(numbered("own", 10))  # the connection of the protocol is not affected
        await asyncio.wait(futures, timeout=20)
        assert [future.result() for future in futures] == [False] * 3 + [True] * 20
        assert await ready_messages(amqp_url, "own") >= 30


async def test_properties_too_large_for_a_frame_are_never_written(amqp_url: str) -> None:
    given_up = GivenUp()
    huge = replace(message("own"), headers={"x-large": "h" * 131_072})
    async with reliably(amqp_url, given_up) as (reliable, best_effort):
        futures = best_effort.post([huge, *numbered("own", 5)])
        await asyncio.wait(futures, timeout=10)
        await reliable.publish([message("own"), huge, message("own")])
        await until_ready(amqp_url, "own", 7)
        assert [sent for sent, _ in given_up.messages] == [huge, huge]
        assert all("frame" in reason for _, reason in given_up.messages)
