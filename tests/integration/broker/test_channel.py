"""The bulk channel on the internals of the client library: every answer of the broker reaches its message."""

import asyncio

import pytest
from pamqp.common import FieldTable

from tests.support.brokers import bodies, declares, linked, message, numbered, unused
from tests.support.traffic import until
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.errors import ChannelLost
from turnstile.common.broker.message import Publication

CONFIRMED, RETURNED, REFUSED = Publication.CONFIRMED, Publication.RETURNED, Publication.REFUSED


async def test_an_unroutable_message_comes_back_and_the_others_are_confirmed(amqp_url: str) -> None:
    async with linked(amqp_url) as (_link, channel):
        batch = [message("q"), message("q"), message("nowhere", b"x" * 200_000), message("q")]
        assert await channel.publish_all(batch) == [CONFIRMED, CONFIRMED, RETURNED, CONFIRMED]


async def test_refusals_of_a_full_queue_are_matched_to_their_messages(amqp_url: str) -> None:
    full: FieldTable = {"x-max-length": 1, "x-overflow": "reject-publish"}
    async with linked(amqp_url) as (link, channel):
        await link.declare(declares("full", full))
        assert await channel.publish_all([message("full")]) == [CONFIRMED]
        answers = await channel.publish_all([message("q"), message("full"), message("q"), message("full")])
        assert answers == [CONFIRMED, REFUSED, CONFIRMED, REFUSED]


async def test_copies_with_one_message_id_are_distinguished_also_after_a_cancelled_batch(
    amqp_url: str,
) -> None:
    async with linked(amqp_url) as (_link, channel):
        channel.publish_all([message("nowhere"), message("q")]).cancel()
        keys = ["nowhere", "q", "nowhere", "q", "elsewhere", "q"]
        batch = [message(key, message_id="same") for key in keys]
        expected = [CONFIRMED if key == "q" else RETURNED for key in keys]
        assert await channel.publish_all(batch) == expected
        assert await channel.publish_all(batch[::-1]) == expected[::-1]


async def test_bodies_around_and_above_the_frame_size_arrive_whole(amqp_url: str) -> None:
    body = bytes(range(256)) * 4000
    sent = [body[:size_bytes] for size_bytes in (6, 0, 131_063, 131_064, 131_065, 1_000_000, 5)]
    async with linked(amqp_url) as (link, channel):
        assert await channel.publish_all([message("q", each) for each in sent]) == [CONFIRMED] * len(sent)
        received: list[Delivery] = []
        consuming = await link.open_channel(on_delivery=received.append)
        await consuming.basic_consume("q", unused)
        await until(lambda: len(received) == len(sent))
        assert bodies(received) == sent


async def test_channels_that_take_turns_use_the_lowest_numbers(amqp_url: str) -> None:
    async with linked(amqp_url) as (link, _):
        channels = [await link.open_channel() for _ in range(3)]
        for _ in range(10):
            await channels.pop(0).close()
            channels.append(await link.open_channel())
            assert max(each.number for each in channels) <= 4


async def test_a_channel_closed_within_a_batch_fails_the_batch_and_not_the_connection(amqp_url: str) -> None:
    async with linked(amqp_url) as (link, channel):
        other = await link.open_channel(confirms=True)
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


async def test_writing_while_the_broker_closes_a_channel_keeps_the_connection(amqp_url: str) -> None:
    async with linked(amqp_url) as (link, other):
        for _ in range(20):
            channel = await link.open_channel(confirms=True)
            channel.publish_all([message("q", exchange="no such exchange")])
            while channel.usable:
                channel.publish_all([message("q")])
                await asyncio.sleep(0)
            channel.ack(5, [])
            assert await other.publish_all([message("q")]) == [CONFIRMED]
