"""The bulk channel on the inside of the client library: every answer of the broker reaches its message."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pamqp.common import FieldTable

from tests.support.brokers import bare_channel, bodies, declares, message, numbered, until
from turnstile.common.broker.bulk_channel import ChannelLost
from turnstile.common.broker.connection import BrokerConnection, BrokerTimeouts, Link
from turnstile.common.broker.delivery import Delivery, Publication

CONFIRMED, RETURNED, REFUSED = Publication.CONFIRMED, Publication.RETURNED, Publication.REFUSED


@asynccontextmanager
async def _linked(amqp_url: str) -> AsyncIterator[Link]:
    """One living connection without a publisher's or consumer's care."""
    connection = BrokerConnection(amqp_url, name="contract", timeouts=BrokerTimeouts())
    linked: asyncio.Future[Link] = asyncio.get_running_loop().create_future()

    async def serve(link: Link) -> None:
        if not linked.done():
            linked.set_result(link)
        await asyncio.wait({link.gone})

    run = asyncio.create_task(connection.run(serve), name="contract-link")
    try:
        yield await linked
    finally:
        run.cancel()
        await asyncio.wait({run})


async def test_a_batch_is_confirmed_message_by_message_and_arrives_in_order(amqp_url: str) -> None:
    async with _linked(amqp_url) as link:
        await link.declare(declares("q"))
        channel = await link.open_channel(confirms=True)
        assert await channel.publish_all(numbered("q", 700)) == [CONFIRMED] * 700
        received: list[Delivery] = []
        consuming = await link.open_channel(on_delivery=received.append)
        await consuming.basic_consume("q", _unused)
        await until(lambda: len(received) == 700)
        assert bodies(received) == [str(number).encode() for number in range(700)]


async def test_batches_in_flight_together_get_their_own_answers(amqp_url: str) -> None:
    async with _linked(amqp_url) as link:
        await link.declare(declares("q"))
        channel = await link.open_channel(confirms=True)
        batches = [[message("q"), message("nowhere" if odd % 2 else "q")] for odd in range(50)]
        answers = await asyncio.gather(*[channel.publish_all(batch) for batch in batches])
        assert answers == [[CONFIRMED, RETURNED if odd % 2 else CONFIRMED] for odd in range(50)]


async def test_an_unroutable_message_comes_back_and_the_others_are_confirmed(amqp_url: str) -> None:
    async with _linked(amqp_url) as link:
        await link.declare(declares("q"))
        channel = await link.open_channel(confirms=True)
        batch = [message("q"), message("q"), message("nowhere", b"x" * 200_000), message("q")]
        assert await channel.publish_all(batch) == [CONFIRMED, CONFIRMED, RETURNED, CONFIRMED]


async def test_a_full_queue_refuses_and_says_which(amqp_url: str) -> None:
    full: FieldTable = {"x-max-length": 1, "x-overflow": "reject-publish"}
    async with _linked(amqp_url) as link:
        await link.declare(declares("full", full))
        await link.declare(declares("q"))
        channel = await link.open_channel(confirms=True)
        assert await channel.publish_all([message("full")]) == [CONFIRMED]
        answers = await channel.publish_all([message("q"), message("full"), message("q"), message("full")])
        assert answers == [CONFIRMED, REFUSED, CONFIRMED, REFUSED]


async def test_copies_with_one_message_id_are_told_apart(amqp_url: str) -> None:
    async with _linked(amqp_url) as link:
        await link.declare(declares("q"))
        channel = await link.open_channel(confirms=True)
        keys = ["nowhere", "q", "nowhere", "q", "elsewhere", "q"]
        batch = [message(key, message_id="same") for key in keys]
        expected = [CONFIRMED if key == "q" else RETURNED for key in keys]
        assert await channel.publish_all(batch) == expected
        assert await channel.publish_all(batch[::-1]) == expected[::-1]


@pytest.mark.parametrize("size_bytes", [0, 131_063, 131_064, 131_065, 1_000_000])
async def test_bodies_around_and_above_the_frame_size_arrive_whole(amqp_url: str, size_bytes: int) -> None:
    body = bytes(range(256)) * (size_bytes // 256 + 1)
    async with _linked(amqp_url) as link:
        await link.declare(declares("q"))
        channel = await link.open_channel(confirms=True)
        batch = [message("q", b"before"), message("q", body[:size_bytes]), message("q", b"after")]
        assert await channel.publish_all(batch) == [CONFIRMED] * 3
        received: list[Delivery] = []
        consuming = await link.open_channel(on_delivery=received.append)
        await consuming.basic_consume("q", _unused)
        await until(lambda: len(received) == 3)
        assert bodies(received) == [b"before", body[:size_bytes], b"after"]


async def test_a_channel_closed_in_mid_batch_fails_the_batch_and_spares_the_connection(amqp_url: str) -> None:
    async with _linked(amqp_url) as link:
        await link.declare(declares("q"))
        channel, other = await link.open_channel(confirms=True), await link.open_channel(confirms=True)
        batch = numbered("q", 100)
        batch.insert(50, message("q", exchange="no such exchange"))
        first, second = channel.publish_all(batch), channel.publish_all(numbered("q", 100))
        with pytest.raises(ChannelLost, match="no such exchange"):
            await first
        with pytest.raises(ChannelLost, match="no such exchange"):
            await second
        with pytest.raises(ChannelLost):
            channel.publish_all([message("q")])
        assert await other.publish_all([message("q")]) == [CONFIRMED]
        assert link.is_open


async def test_writing_on_while_the_broker_closes_a_channel_spares_the_connection(amqp_url: str) -> None:
    async with _linked(amqp_url) as link:
        await link.declare(declares("q"))
        other = await link.open_channel(confirms=True)
        for _ in range(20):
            channel = await link.open_channel(confirms=True)
            channel.publish_all([message("q", exchange="no such exchange")])
            while channel.usable:
                channel.publish_all([message("q")])
                await asyncio.sleep(0)
            channel.ack(5, [])
            assert await other.publish_all([message("q")]) == [CONFIRMED]


async def test_a_connection_lost_in_mid_batch_fails_the_batch(amqp_url: str) -> None:
    async with _linked(amqp_url) as link:
        await link.declare(declares("q"))
        channel = await link.open_channel(confirms=True)
        answers = channel.publish_all(numbered("q", 1000))
        link.abort()
        with pytest.raises(ChannelLost):
            await answers
        with pytest.raises(ChannelLost):
            channel.publish_all([message("q")])


async def test_a_batch_given_up_by_its_publisher_disturbs_no_later_one(amqp_url: str) -> None:
    async with _linked(amqp_url) as link:
        await link.declare(declares("q"))
        channel = await link.open_channel(confirms=True)
        channel.publish_all([message("nowhere"), message("q")]).cancel()
        assert await channel.publish_all([message("q"), message("nowhere")]) == [CONFIRMED, RETURNED]


async def test_properties_arrive_as_any_client_reads_them(amqp_url: str) -> None:
    async with _linked(amqp_url) as link:
        await link.declare(declares("q"))
        channel = await link.open_channel(confirms=True)
        sent = message("q", b'{"a":1}')
        await channel.publish_all([sent])
    async with bare_channel(amqp_url) as bare:
        got = await bare.basic_get("q")
        properties = got.header.properties
        assert (got.body, properties.message_id, properties.message_type) == (
            b'{"a":1}',
            sent.message_id,
            "test.message",
        )
        assert (properties.delivery_mode, properties.content_type) == (2, "application/json")


async def test_deliveries_and_answers_on_one_channel_do_not_mix(amqp_url: str) -> None:
    async with _linked(amqp_url) as link:
        await link.declare(declares("q"))
        received: list[Delivery] = []
        channel = await link.open_channel(confirms=True, on_delivery=received.append)
        await channel.basic_consume("q", _unused)
        rounds = [[message("q", b"x" * 300), message("nowhere", b"y" * 300)] for _ in range(100)]
        answers = await asyncio.gather(*[channel.publish_all(each) for each in rounds])
        assert Counter(map(tuple, answers)) == {(CONFIRMED, RETURNED): 100}
        await until(lambda: len(received) == 100)
        assert {delivery.body for delivery in received} == {b"x" * 300}


async def _unused(_: object) -> None:
    """Deliveries go to `on_delivery`."""
