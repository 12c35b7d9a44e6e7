"""Deliveries of a subscription: in order, so many at once, gone when acknowledged and only then."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.support.brokers import (
    bodies,
    declares,
    numbered,
    numbered_bodies,
    running,
    settled,
    take,
    until,
    until_ready,
)
from tests.support.cable import cable_to
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTOR_REQUESTS, declare_executor

FRESH_SECONDS = 0.3


async def test_a_batch_is_what_is_there_and_never_waits_to_be_full(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe("q", prefetch=100, declare=declares("q"))
    async with running(publisher, consumer):
        await publisher.publish(numbered("q", 7))
        await until(lambda: queue.buffered == 7)
        assert bodies(await queue.next_batch(5)) == numbered_bodies(0, 1, 2, 3, 4)
        assert bodies(await queue.next_batch(5)) == numbered_bodies(5, 6)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.next_batch(5), FRESH_SECONDS)


async def test_acknowledging_out_of_order_settles_those_and_no_others(amqp_url: str) -> None:
    async with cable_to(amqp_url) as cable:
        publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
        consumer = ConsumerConnection(cable.url, name="con")
        queue = consumer.subscribe("q", prefetch=100, declare=declares("q"))
        async with running(publisher, consumer):
            await publisher.publish(numbered("q", 10))
            taken = await take(queue, 10)
            queue.ack([taken[number] for number in (0, 1, 4, 9, 6)])
            queue.ack([taken[2]])
            queue.ack([taken[number] for number in (4, 5, 0)])
            await settled(taken[0])
            cable.cut()
            again = await take(queue, 3)
            assert bodies(again) == numbered_bodies(3, 7, 8)
            assert all(delivery.redelivered for delivery in again)


async def test_the_prefetch_bounds_what_is_delivered_and_not_settled(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe("q", prefetch=3, declare=declares("q"))
    async with running(publisher, consumer):
        await publisher.publish(numbered("q", 10))
        taken = await take(queue, 3)
        await until_ready(amqp_url, "q", 7)
        queue.ack(taken[:1])
        assert bodies(await take(queue, 1)) == numbered_bodies(3)
        await until_ready(amqp_url, "q", 6)


async def test_what_is_given_back_stands_at_the_front_in_its_order(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe("q", prefetch=4, declare=declares("q"))
    async with running(publisher, consumer):
        await publisher.publish(numbered("q", 8))
        taken = await take(queue, 4)
        queue.reject(taken, requeue=True)
        assert bodies(await take(queue, 4)) == numbered_bodies(0, 1, 2, 3)


async def test_a_pause_gives_back_what_nobody_took_and_lets_the_rest_be_settled(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe("q", prefetch=5, declare=declares("q"))
    async with running(publisher, consumer):
        await publisher.publish(numbered("q", 8))
        taken = await take(queue, 2)
        await until(lambda: queue.buffered == 3)
        await queue.pause()
        await queue.pause()
        await until_ready(amqp_url, "q", 6)
        queue.ack(taken)
        assert consumer.connected
        await queue.resume()
        await queue.resume()
        assert bodies(await take(queue, 5)) == numbered_bodies(2, 3, 4, 5, 6)


async def test_one_consumer_at_a_time_takes_requests_and_the_next_begins_with_what_was_left(
    amqp_url: str,
) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declare_executor)
    first, second = ConsumerConnection(amqp_url, name="first"), ConsumerConnection(amqp_url, name="second")
    active = first.subscribe(EXECUTOR_REQUESTS, prefetch=5, declare=declare_executor)
    async with running(publisher), AsyncExitStack() as first_runs:
        await first_runs.enter_async_context(running(first))
        standby = second.subscribe(EXECUTOR_REQUESTS, prefetch=20, declare=declare_executor)
        async with running(second):
            await publisher.publish(numbered("execution.requested", 20, exchange="executions"))
            taken = await take(active, 5)
            active.ack(taken[:2])
            assert bodies(taken + await take(active, 2)) == numbered_bodies(0, 1, 2, 3, 4, 5, 6)
            assert standby.buffered == 0
            await first_runs.aclose()
            assert bodies(await take(standby, 18)) == numbered_bodies(*range(2, 20))
