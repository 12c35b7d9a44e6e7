"""Subscriptions: deliveries in order, bounded, removed only when acknowledged, redelivered after a loss."""

import asyncio

from aio_pika.abc import AbstractChannel

from tests.support.brokers import (
    bare_channel,
    bodies,
    channel_of,
    declares,
    message,
    numbered,
    numbered_bodies,
    settled,
    subscribed,
    take,
)
from tests.support.proxy import proxy_to
from tests.support.traffic import in_background, until
from turnstile.common.broker.connection import BrokerTimeouts


async def test_after_a_loss_unacknowledged_deliveries_come_again_and_late_acknowledgements_do_nothing(
    amqp_url: str,
) -> None:
    async with (
        proxy_to(amqp_url) as proxy,
        subscribed(amqp_url, consumer_url=proxy.url) as (publisher, _consumer, queue),
    ):
        await publisher.publish(numbered("q", 6))
        old = await take(queue, 2)
        await until(lambda: queue.buffered == 4)
        proxy.cut()
        await until(lambda: not old[0].live)
        new = await take(queue, 6)
        assert bodies(new) == numbered_bodies(0, 1, 2, 3, 4, 5)
        queue.ack(old)
        queue.ack(new[3:])
        await settled(new[0])
        proxy.cut()
        assert bodies(await take(queue, 3)) == numbered_bodies(0, 1, 2)


async def test_a_channel_closed_by_the_broker_is_reopened_without_effect_on_another(amqp_url: str) -> None:
    async with subscribed(amqp_url) as (publisher, consumer, queue):
        neighbour = consumer.subscribe("n", prefetch=10, declare=declares("n"))
        await until(lambda: neighbour.ready)
        await publisher.publish([*numbered("q", 3), message("n")])
        deliveries, other = await take(queue, 3), await take(neighbour, 1)
        # An unknown tag is answered with 406, as is a delivery that stays unacknowledged for too long.
        channel_of(deliveries[0]).ack(0, [99])
        assert bodies(await take(queue, 3)) == numbered_bodies(0, 1, 2)
        assert other[0].live
        await until(lambda: consumer.connected)


async def test_a_deleted_queue_is_declared_and_consumed_again(amqp_url: str) -> None:
    async with subscribed(amqp_url) as (publisher, _, queue):
        async with bare_channel(amqp_url) as bare:
            await bare.queue_delete("q")
        await until(lambda: not queue.ready)
        await until(lambda: queue.ready)
        await publisher.publish([message("q", b"new")])
        assert bodies(await take(queue, 1)) == [b"new"]


QUIET_SECONDS = 0.3
SOON_QUIET = BrokerTimeouts(quiet_seconds=QUIET_SECONDS)


async def test_a_quiet_subscription_without_unsettled_deliveries_is_renewed_and_stays_ready(
    amqp_url: str,
) -> None:
    starts = 0

    async def declare(channel: AbstractChannel) -> None:
        nonlocal starts
        starts += 1
        await declares("q")(channel)

    async with subscribed(amqp_url, declare=declare, timeouts=SOON_QUIET) as (publisher, consumer, queue):
        ready = True

        async def watch() -> None:
            nonlocal ready
            while True:
                ready = ready and consumer.connected and consumer.last_error is None
                await asyncio.sleep(0)

        async with in_background(watch()):
            await until(lambda: starts == 3)
        assert ready
        await publisher.publish(numbered("q", 1))
        (held,) = await take(queue, 1)
        before = starts
        await asyncio.sleep(QUIET_SECONDS * 4)
        assert starts == before, "what is unsettled must not be delivered again"
        queue.ack([held])
        await until(lambda: starts > before)
        await publisher.publish([message("q", b"after")])
        assert bodies(await take(queue, 1)) == [b"after"]


async def test_a_consumer_that_the_broker_lost_is_replaced(amqp_url: str) -> None:
    async with subscribed(amqp_url, timeouts=SOON_QUIET) as (publisher, _consumer, queue):
        await publisher.publish(numbered("q", 1))
        (first,) = await take(queue, 1)
        # As a cancel by the broker of which the subscription learns nothing.
        channel = channel_of(first)
        (consumer,) = channel.consumers
        await channel.basic_cancel(consumer)
        queue.ack([first])
        await publisher.publish([message("q", b"after")])
        assert bodies(await take(queue, 1)) == [b"after"]
