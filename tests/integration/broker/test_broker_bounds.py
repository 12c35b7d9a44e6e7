"""A bound on what is taken that falls and rises: it is kept to, whatever is released, returned or lost."""

from tests.support.brokers import (
    bare_channel,
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
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.publisher import Publisher


async def test_what_is_released_under_a_lower_bound_is_not_replaced(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe("q", prefetch=4, declare=declares("q"))
    bound = 4
    queue.bound_by(lambda: bound)
    async with running(publisher, consumer):
        await publisher.publish(numbered("q", 10))
        taken = await take(queue, 4)
        bound = 2
        queue.release(taken[:1], give_back=False)
        queue.release(taken[1:2], give_back=True)
        await until_ready(amqp_url, "q", 7)
        queue.ack(taken[2:])
        assert bodies(await take(queue, 2)) == numbered_bodies(1, 4)
        await until_ready(amqp_url, "q", 5)
        bound = 0
        queue.refit()
        await until_ready(amqp_url, "q", 5)
        assert consumer.connected


async def test_a_higher_bound_counts_what_was_delivered_under_the_lower_one(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe("q", prefetch=3, declare=declares("q"))
    bound = 3
    queue.bound_by(lambda: bound)
    async with running(publisher, consumer):
        await publisher.publish(numbered("q", 12))
        long_run, *others = await take(queue, 3)
        bound = 2
        queue.release([long_run], give_back=False)
        await settled(long_run)
        bound = 3
        queue.refit()
        assert bodies(await take(queue, 1)) == numbered_bodies(3)
        queue.ack(others)
        assert bodies(await take(queue, 2)) == numbered_bodies(4, 5)
        await until_ready(amqp_url, "q", 6)


async def test_a_bound_holds_from_the_first_delivery_after_a_reconnection(amqp_url: str) -> None:
    async with cable_to(amqp_url) as cable:
        publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
        consumer = ConsumerConnection(cable.url, name="con")
        queue = consumer.subscribe("q", prefetch=5, declare=declares("q"))
        taken: list[Delivery] = []
        queue.bound_by(lambda: 5 - sum(not each.live for each in taken))
        async with running(publisher, consumer):
            await publisher.publish(numbered("q", 8))
            taken += await take(queue, 5)
            cable.cut()
            await until(lambda: not consumer.connected)
            await until(lambda: consumer.connected)
            await until_ready(amqp_url, "q", 8)
            taken.pop()
            queue.refit()
            assert bodies(await take(queue, 1)) == numbered_bodies(0)
            await until_ready(amqp_url, "q", 7)


async def test_a_bound_is_kept_to_with_few_consumers_though_deliveries_are_replaced_singly(
    amqp_url: str,
) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe("q", prefetch=20, declare=declares("q"))
    async with running(publisher, consumer), bare_channel(amqp_url) as bare:
        await publisher.publish(numbered("q", 50))
        before = await take(queue, 20)
        # What was delivered before the pause belongs to no consumer any more: each is replaced by itself.
        await queue.pause()
        await queue.resume()
        after: list[Delivery] = []
        for number, delivery in enumerate(before):
            queue.ack([delivery])
            after += await take(queue, 1)
            assert bodies(after[-1:]) == numbered_bodies(20 + number)
        await until_ready(amqp_url, "q", 10)
        queue.ack(after)
        assert bodies(await take(queue, 10)) == numbered_bodies(*range(40, 50))
        assert ((await bare.queue_declare("q", passive=True)).consumer_count or 0) < 20
