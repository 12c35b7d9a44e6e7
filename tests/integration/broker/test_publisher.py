"""The publisher across losses, nodes and outages: every answer is known, or the caller gets an error."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from tests.support.brokers import (
    IMPATIENT,
    bare_channel,
    bodies,
    declares,
    message,
    numbered,
    publishing,
    ready_messages,
    running,
    subscribed,
    take,
    until_ready,
)
from tests.support.proxy import proxy_to
from tests.support.traffic import in_background, until
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.errors import BrokerUnavailable
from turnstile.common.broker.message import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.localservers.ports import free_port
from turnstile.localservers.rabbitmq import RabbitServer

CONFIRMED, RETURNED = Publication.CONFIRMED, Publication.RETURNED


async def test_a_large_batch_goes_out_in_chunks_and_arrives_in_order(amqp_url: str) -> None:
    async with subscribed(amqp_url, prefetch=1000) as (publisher, _consumer, queue):
        batch = numbered("q", 6000)
        batch[3500] = message("nowhere")
        answers = await publisher.publish(batch)
        assert [index for index, answer in enumerate(answers) if answer is not CONFIRMED] == [3500]
        expected = [sent.body for sent in batch if sent.routing_key == "q"]
        for start in range(0, len(expected), 1000):
            deliveries = await take(queue, min(1000, len(expected) - start))
            assert bodies(deliveries) == expected[start : start + 1000]
            queue.ack(deliveries)


async def test_without_a_connection_publishing_fails_within_its_time_and_says_why() -> None:
    publisher = Publisher(f"amqp://guest:guest@127.0.0.1:{free_port()}/", name="pub", timeouts=IMPATIENT)
    assert await publisher.publish([]) == []
    async with in_background(publisher.run()):
        with pytest.raises(BrokerUnavailable, match="no usable connection"):
            await publisher.publish([message("q")])
        assert not publisher.connected
        assert publisher.last_error


async def test_a_batch_in_flight_at_a_loss_has_an_unknown_outcome_and_can_be_repeated(amqp_url: str) -> None:
    batch = numbered("q", 5000)
    async with proxy_to(amqp_url) as proxy, publishing(proxy.url) as publisher:
        for sent_bytes in (1, 100_000, 500_000):
            proxy.cut_after(sent_bytes)
            with pytest.raises(BrokerUnavailable):
                await publisher.publish(batch)
            assert await publisher.publish(batch) == [CONFIRMED] * len(batch)
    assert await ready_messages(amqp_url, "q") >= 3 * len(batch)


async def test_declarations_run_again_at_each_connection(amqp_url: str) -> None:
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(proxy_to(amqp_url))
        publisher = Publisher(proxy.url, name="pub", declare=declares("q"))
        await stack.enter_async_context(running(publisher))
        async with bare_channel(amqp_url) as bare:
            await bare.queue_delete("q")
        assert await publisher.publish([message("q")]) == [RETURNED]
        proxy.cut()
        await until(lambda: not publisher.connected)
        assert await publisher.publish([message("q")]) == [CONFIRMED]
        await publisher.declare(declares("later"))
        assert await publisher.publish([message("later")]) == [CONFIRMED]


async def test_a_refused_message_or_declaration_is_reported_and_closes_nothing_else(amqp_url: str) -> None:
    async with publishing(amqp_url, timeouts=IMPATIENT) as publisher:
        with pytest.raises(BrokerUnavailable, match="no such exchange"):
            await publisher.publish([message("q"), message("q", exchange="no such exchange"), message("q")])
        assert await publisher.publish([message("q"), message("nowhere")]) == [CONFIRMED, RETURNED]
        with pytest.raises(BrokerUnavailable, match="inequivalent arg"):
            await publisher.declare(declares("q", {"x-queue-type": "classic"}))
        assert publisher.connected
        assert await publisher.publish([message("q")]) == [CONFIRMED]


async def test_announcements_arrive_without_waiting(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    news = [message(key, mandatory=False, persistent=False) for key in ("q", "nowhere")]
    publisher.announce(news)
    assert publisher.announcements_dropped == 2
    async with running(publisher):
        for _ in range(50):
            publisher.announce(news)
        await until_ready(amqp_url, "q", 50)
        assert publisher.announcements_dropped == 2
        assert await publisher.publish([message("q")]) == [CONFIRMED]


async def test_a_node_that_does_not_answer_is_skipped_and_after_a_loss_the_next_is_tried_first(
    amqp_url: str,
) -> None:
    vhost = amqp_url.rpartition("/")[2]
    unreachable = ",".join(f"amqp://127.0.0.1:{free_port()}/{vhost}" for _ in range(3))
    publisher = Publisher(f"{unreachable},{amqp_url}", name="pub", declare=declares("q"))
    async with running(publisher):
        assert await publisher.publish([message("q")]) == [CONFIRMED]
    async with proxy_to(amqp_url) as one, proxy_to(amqp_url) as other:
        publisher = Publisher(f"{one.url},{other.url}", name="pub", declare=declares("q"))
        async with running(publisher):
            for _ in range(4):
                used = [proxy for proxy in (one, other) if proxy.connections]
                assert len(used) == 1
                used[0].cut()
                await until(lambda: publisher.connected and not used[0].connections)  # noqa: B023
                assert await publisher.publish([message("q")]) == [CONFIRMED]


def _raise_memory_alarm(broker: RabbitServer) -> None:
    """Return once the alarm is in force: the command that causes it ends earlier on a loaded machine."""
    broker.ctl("set_vm_memory_high_watermark", "0.000001")
    while "memory" not in broker.ctl("eval", "rabbit_alarm:get_alarms().", "--silent"):
        time.sleep(0.05)


async def test_an_alarm_blocks_publishers_only_and_only_while_it_lasts(
    controlled_broker: RabbitServer, controlled_amqp_url: str
) -> None:
    publisher = Publisher(controlled_amqp_url, name="pub", declare=declares("q"), timeouts=IMPATIENT)
    consumer = ConsumerConnection(controlled_amqp_url, name="con")
    queue = consumer.subscribe("q", prefetch=10, declare=declares("q"))
    async with running(publisher, consumer):
        assert await publisher.publish([message("q", b"before")]) == [CONFIRMED]
        try:
            await asyncio.to_thread(_raise_memory_alarm, controlled_broker)
            with pytest.raises(BrokerUnavailable, match="did not answer"):
                await publisher.publish([message("q", b"in flight")])
            assert publisher.connected
            assert publisher.blocked
            with pytest.raises(BrokerUnavailable, match="because of a memory or disk alarm"):
                await publisher.publish([message("q", b"never sent")])
            publisher.announce([message("q", b"news", mandatory=False, persistent=False)])
            assert publisher.announcements_dropped == 1

            before = await take(queue, 1)
            queue.ack(before)
            late = consumer.subscribe("q2", prefetch=10, declare=declares("q2"))
            await until(lambda: late.ready)
        finally:
            await asyncio.to_thread(controlled_broker.ctl, "set_vm_memory_high_watermark", "0.4")
        await until(lambda: not publisher.blocked)
        assert await publisher.publish([message("q", b"after")]) == [CONFIRMED]
        # A publish that timed out may still arrive: therefore a repeat must be harmless.
        assert bodies(before + await take(queue, 2)) == [b"before", b"in flight", b"after"]
