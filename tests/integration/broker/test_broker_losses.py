"""Subscriptions over the loss of a connection, channel or queue: what was not acknowledged comes again."""

import asyncio

from tests.support.brokers import (
    bare_channel,
    bodies,
    declares,
    message,
    numbered,
    numbered_bodies,
    ready_messages,
    running,
    settled,
    take,
    until,
)
from tests.support.cable import cable_to
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.publisher import Publisher


async def test_after_a_loss_everything_unacknowledged_comes_again_and_old_acknowledgements_do_nothing(
    amqp_url: str,
) -> None:
    async with cable_to(amqp_url) as cable:
        publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
        consumer = ConsumerConnection(cable.url, name="con")
        queue = consumer.subscribe("q", prefetch=10, declare=declares("q"))
        async with running(publisher, consumer):
            await publisher.publish(numbered("q", 6))
            old = await take(queue, 2)
            await until(lambda: queue.buffered == 4)
            cable.cut()
            await until(lambda: not old[0].live)
            new = await take(queue, 6)
            assert bodies(new) == numbered_bodies(0, 1, 2, 3, 4, 5)
            queue.ack(old)
            queue.ack(new[3:])
            await settled(new[0])
            cable.cut()
            assert bodies(await take(queue, 3)) == numbered_bodies(0, 1, 2)


async def test_a_channel_closed_by_the_broker_starts_again_and_its_neighbour_never_notices(
    amqp_url: str,
) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe("q", prefetch=10, declare=declares("q"))
    neighbour = consumer.subscribe("n", prefetch=10, declare=declares("n"))
    async with running(publisher, consumer):
        await publisher.publish([*numbered("q", 3), message("n")])
        taken, kept = await take(queue, 3), await take(neighbour, 1)
        # An unknown tag is answered with 406, as is a delivery that stays unacknowledged for too long.
        taken[0].channel.ack(0, [99])
        assert bodies(await take(queue, 3)) == numbered_bodies(0, 1, 2)
        assert kept[0].live
        await until(lambda: consumer.connected)


async def test_a_deleted_queue_is_declared_and_consumed_again(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub")
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe("q", prefetch=10, declare=declares("q"))
    async with running(publisher, consumer):
        async with bare_channel(amqp_url) as bare:
            await bare.queue_delete("q")
        await until(lambda: not queue.ready)
        await until(lambda: queue.ready)
        await publisher.publish([message("q", b"new")])
        assert bodies(await take(queue, 1)) == [b"new"]


async def test_a_queue_that_cannot_be_consumed_is_told_and_tried_again(amqp_url: str) -> None:
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe("missing", prefetch=10)
    publisher = Publisher(amqp_url, name="pub")
    async with running(publisher):
        run = asyncio.create_task(consumer.run(), name="con")
        await until(lambda: "no queue 'missing'" in (consumer.last_error or ""))
        assert not consumer.connected
        await publisher.declare(declares("missing"))
        await until(lambda: queue.ready and consumer.connected and consumer.last_error is None)
        run.cancel()
        await asyncio.wait({run})


async def test_a_pause_lasts_over_a_reconnection(amqp_url: str) -> None:
    async with cable_to(amqp_url) as cable:
        publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
        consumer = ConsumerConnection(cable.url, name="con")
        queue = consumer.subscribe("q", prefetch=5, declare=declares("q"))
        async with running(publisher, consumer):
            await queue.pause()
            cable.cut()
            await until(lambda: not consumer.connected)
            await until(lambda: consumer.connected)
            await publisher.publish(numbered("q", 3))
            assert await ready_messages(amqp_url, "q") == 3
            await queue.resume()
            assert bodies(await take(queue, 3)) == numbered_bodies(0, 1, 2)
