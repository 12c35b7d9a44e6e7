"""The publisher over losses: either every answer is known, or the caller is told that it is not."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from tests.support.brokers import (
    IMPATIENT,
    bare_channel,
    bodies,
    declares,
    message,
    numbered,
    ready_messages,
    running,
    take,
    until,
    until_ready,
)
from tests.support.cable import cable_to
from turnstile.common.broker.connection import BrokerUnavailable
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.localservers.ports import free_port

CONFIRMED, RETURNED = Publication.CONFIRMED, Publication.RETURNED


async def test_a_large_batch_goes_out_in_chunks_and_arrives_in_order(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe("q", prefetch=1000, declare=declares("q"))
    async with running(publisher, consumer):
        batch = numbered("q", 6000)
        batch[3500] = message("nowhere")
        answers = await publisher.publish(batch)
        assert [index for index, answer in enumerate(answers) if answer is not CONFIRMED] == [3500]
        expected = [sent.body for sent in batch if sent.routing_key == "q"]
        for start in range(0, len(expected), 1000):
            taken = await take(queue, min(1000, len(expected) - start))
            assert bodies(taken) == expected[start : start + 1000]
            queue.ack(taken)


async def test_a_large_batch_may_take_long_as_long_as_answers_come(amqp_url: str) -> None:
    timeouts = replace(IMPATIENT, confirm_seconds=1.5)
    async with cable_to(amqp_url) as cable:
        publisher = Publisher(cable.url, name="pub", declare=declares("q"), timeouts=timeouts)
        async with running(publisher):
            cable.slow_down(0.02)
            began = asyncio.get_running_loop().time()
            answers = await publisher.publish([message("q", bytes(1_000_000)) for _ in range(8)])
            assert answers == [CONFIRMED] * 8
            assert asyncio.get_running_loop().time() - began > timeouts.confirm_seconds


async def test_publishing_nothing_needs_no_connection() -> None:
    assert await Publisher("amqp://nobody@127.0.0.1:1/", name="pub").publish([]) == []


async def test_without_a_connection_publishing_fails_within_its_time_and_says_why() -> None:
    publisher = Publisher(f"amqp://guest:guest@127.0.0.1:{free_port()}/", name="pub", timeouts=IMPATIENT)
    run = asyncio.create_task(publisher.run(), name="pub")
    try:
        with pytest.raises(BrokerUnavailable, match="no usable connection"):
            await publisher.publish([message("q")])
        assert not publisher.connected
        assert publisher.last_error
    finally:
        run.cancel()
        await asyncio.wait({run})


@pytest.mark.parametrize("sent_bytes", [1, 100_000, 1_000_000])
async def test_a_batch_in_flight_when_the_connection_breaks_is_reported_unknown_and_can_be_repeated(
    amqp_url: str, sent_bytes: int
) -> None:
    async with cable_to(amqp_url) as cable:
        publisher = Publisher(cable.url, name="pub", declare=declares("q"))
        async with running(publisher):
            batch = numbered("q", 10_000)
            cable.cut_after(sent_bytes)
            with pytest.raises(BrokerUnavailable):
                await publisher.publish(batch)
            assert await publisher.publish(batch) == [CONFIRMED] * 10_000
    assert await ready_messages(amqp_url, "q") >= 10_000


async def test_what_a_channel_error_leaves_unknown_is_reported_and_the_publisher_recovers(
    amqp_url: str,
) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"), timeouts=IMPATIENT)
    async with running(publisher):
        with pytest.raises(BrokerUnavailable, match="no such exchange"):
            await publisher.publish([message("q"), message("q", exchange="no such exchange"), message("q")])
        assert await publisher.publish([message("q"), message("nowhere")]) == [CONFIRMED, RETURNED]


async def test_declarations_run_again_at_each_connection(amqp_url: str) -> None:
    async with AsyncExitStack() as stack:
        cable = await stack.enter_async_context(cable_to(amqp_url))
        publisher = Publisher(cable.url, name="pub", declare=declares("q"))
        await stack.enter_async_context(running(publisher))
        async with bare_channel(amqp_url) as bare:
            await bare.queue_delete("q")
        assert await publisher.publish([message("q")]) == [RETURNED]
        cable.cut()
        await until(lambda: not publisher.connected)
        assert await publisher.publish([message("q")]) == [CONFIRMED]
        await publisher.declare(declares("later"))
        assert await publisher.publish([message("later")]) == [CONFIRMED]


async def test_a_refused_declaration_is_told_and_ends_nothing_else(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    async with running(publisher):
        with pytest.raises(BrokerUnavailable, match="inequivalent arg"):
            await publisher.declare(declares("q", {"x-queue-type": "classic"}))
        assert publisher.connected
        assert await publisher.publish([message("q")]) == [CONFIRMED]


async def test_publishers_side_by_side_get_their_own_answers(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    async with running(publisher):
        calls = [publisher.publish([message("q")] * 3 + [message("nowhere")]) for _ in range(100)]
        assert Counter(map(tuple, await asyncio.gather(*calls))) == {(CONFIRMED,) * 3 + (RETURNED,): 100}
    await until_ready(amqp_url, "q", 300)


async def test_announcements_arrive_and_nothing_waits_for_them(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    news = [
        message("q", mandatory=False, persistent=False),
        message("nowhere", mandatory=False, persistent=False),
    ]
    publisher.announce(news)
    assert publisher.announcements_dropped == 2
    async with running(publisher):
        for _ in range(50):
            publisher.announce(news)
        await until_ready(amqp_url, "q", 50)
        assert publisher.announcements_dropped == 2
        assert await publisher.publish([message("q")]) == [CONFIRMED]
