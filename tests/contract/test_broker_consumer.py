"""Subscriptions: what is acknowledged is gone, what is not comes again, in order, whatever broke."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from common.broker.consumer import ConsumerConnection
from common.broker.delivery import Delivery
from common.broker.publisher import Publisher
from common.broker.topology import EXECUTOR_REQUESTS, declare_executor
from tests.contract.brokers import (
    bare_channel,
    bodies,
    declares,
    message,
    numbered,
    ready_messages,
    running,
    settled,
    take,
    until,
    until_ready,
)
from tests.contract.cable import cable_to

FRESH_SECONDS = 0.3


def _bodies(*numbers: int) -> list[bytes]:
    return [str(number).encode() for number in numbers]


async def test_a_batch_is_what_is_there_and_never_waits_to_be_full(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe("q", prefetch=100, declare=declares("q"))
    async with running(publisher, consumer):
        await publisher.publish(numbered("q", 7))
        await until(lambda: queue.buffered == 7)
        assert bodies(await queue.next_batch(5)) == _bodies(0, 1, 2, 3, 4)
        assert bodies(await queue.next_batch(5)) == _bodies(5, 6)
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
            assert bodies(again) == _bodies(3, 7, 8)
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
        assert bodies(await take(queue, 1)) == _bodies(3)
        await until_ready(amqp_url, "q", 6)


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
            assert bodies(new) == _bodies(0, 1, 2, 3, 4, 5)
            queue.ack(old)
            queue.ack(new[3:])
            await settled(new[0])
            cable.cut()
            assert bodies(await take(queue, 3)) == _bodies(0, 1, 2)


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
        assert bodies(await take(queue, 3)) == _bodies(0, 1, 2)
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


async def test_what_is_given_back_stands_at_the_front_in_its_order(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe("q", prefetch=4, declare=declares("q"))
    async with running(publisher, consumer):
        await publisher.publish(numbered("q", 8))
        taken = await take(queue, 4)
        queue.reject(taken, requeue=True)
        assert bodies(await take(queue, 4)) == _bodies(0, 1, 2, 3)


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
        assert bodies(await take(queue, 5)) == _bodies(2, 3, 4, 5, 6)


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
            assert bodies(await take(queue, 3)) == _bodies(0, 1, 2)


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
        assert bodies(await take(queue, 2)) == _bodies(1, 4)
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
        assert bodies(await take(queue, 1)) == _bodies(3)
        queue.ack(others)
        assert bodies(await take(queue, 2)) == _bodies(4, 5)
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
            assert bodies(await take(queue, 1)) == _bodies(0)
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
            assert bodies(after[-1:]) == _bodies(20 + number)
        await until_ready(amqp_url, "q", 10)
        queue.ack(after)
        assert bodies(await take(queue, 10)) == _bodies(*range(40, 50))
        assert ((await bare.queue_declare("q", passive=True)).consumer_count or 0) < 20


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
            assert bodies(taken + await take(active, 2)) == _bodies(0, 1, 2, 3, 4, 5, 6)
            assert standby.buffered == 0
            await first_runs.aclose()
            assert bodies(await take(standby, 18)) == _bodies(*range(2, 20))
