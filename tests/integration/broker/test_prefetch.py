"""Bounds on unsettled deliveries, in messages and in bytes, and the tags that settle them."""

import hypothesis.strategies as st
from hypothesis import given

from tests.support.brokers import (
    bare_channel,
    declares,
    message,
    publishing,
    ready_messages,
    subscribed,
    take,
    until_ready,
)
from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.consumer import Subscription
from turnstile.common.broker.delivery import UnsettledTags
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.prefetch import ByteBounds, ByteBudget

_HELD_BYTES_MAX = 1_000_000
_BOUNDS = ByteBounds(held=_HELD_BYTES_MAX, one=500_000)


def _large(number: int, size_bytes: int = 200_000) -> Outgoing:
    return message("q", b"%06d" % number + b"x" * (size_bytes - 6))


async def _numbers_taken(subscription: Subscription, count: int) -> list[int]:
    """Take and acknowledge `count` deliveries; returns their numbers. Each batch must respect the bound."""
    numbers: list[int] = []
    while len(numbers) < count:
        batch = await subscription.next_batch(50)
        assert sum(len(each.body) for each in batch) <= _HELD_BYTES_MAX
        assert all(delivery.kept for delivery in batch)
        numbers += [int(delivery.body[:6]) for delivery in batch]
        subscription.ack(batch)
    return numbers


async def test_held_bytes_stay_within_the_bound_and_everything_arrives_in_order(amqp_url: str) -> None:
    async with publishing(amqp_url) as publisher:
        await publisher.publish([_large(number) for number in range(60)])
    timeouts = BrokerTimeouts(backoff_first_seconds=0.01)
    async with subscribed(amqp_url, prefetch=40, timeouts=timeouts, byte_bounds=_BOUNDS) as (
        publisher,
        _,
        queue,
    ):
        assert await _numbers_taken(queue, 60) == [*range(60)]
        # Small messages again: the prefetch grows back.
        await publisher.publish([_large(number, 100) for number in range(400)])
        assert await _numbers_taken(queue, 400) == [*range(400)]
    await until_ready(amqp_url, "q", 0)


async def test_a_consumer_that_settles_nothing_keeps_its_connection(amqp_url: str) -> None:
    timeouts = BrokerTimeouts(heartbeat_seconds=1)
    async with subscribed(amqp_url, prefetch=100, timeouts=timeouts, byte_bounds=_BOUNDS) as (
        publisher,
        _,
        queue,
    ):
        await publisher.publish([_large(number) for number in range(100)])
        held = await take(queue, 4)
        # All are read although only few are kept: the broker has nothing left to send.
        await until_ready(amqp_url, "q", 0)
        assert queue.buffered <= 1
        assert all(delivery.live for delivery in held)
        queue.ack(held)
        assert await _numbers_taken(queue, 96) == [*range(4, 100)]


async def test_a_message_above_the_bound_for_one_arrives_in_order_without_its_body(amqp_url: str) -> None:
    dead: dict[str, str | int] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 100, **dead}
    async with bare_channel(amqp_url) as bare:
        await bare.queue_declare("dead", durable=True)
    declare = declares("q", {**arguments})
    async with subscribed(amqp_url, declare=declare, byte_bounds=_BOUNDS) as (publisher, _, queue):
        await publisher.publish([_large(0), _large(1, 600_000), _large(2)])
        first, huge, last = await take(queue, 3)
        assert [first.kept, huge.kept, last.kept] == [True, False, True]
        assert huge.body == b""
        assert huge.size_bytes > 600_000
        queue.ack([first, last])
        queue.reject([huge], requeue=False)
        await until_ready(amqp_url, "dead", 1)
        assert await ready_messages(amqp_url, "q") == 0


def test_a_full_budget_keeps_nothing_more_and_is_spent_once_all_is_settled() -> None:
    budget = ByteBudget(ByteBounds(held=100, one=60), prefetch=10, prefetch_max=10)
    for tag in (1, 2):
        assert budget.keeps(40)
        assert budget.arrive(tag, 40, kept=True)
    assert not budget.keeps(40)
    assert not budget.arrive(3, 40, kept=False)
    assert not budget.keeps(1), "a later message must not overtake"
    spent = []
    for tags in ([1], [2, 3]):
        budget.settle(tags)
        assert not budget.keeps(1)
        spent.append(budget.spent)
    assert spent == [False, True]
    assert budget.fitting_prefetch == 2


def test_a_single_message_always_fits_and_one_above_the_bound_for_one_holds_nothing() -> None:
    budget = ByteBudget(ByteBounds(held=50, one=60), prefetch=10, prefetch_max=10)
    assert budget.keeps(60)
    assert budget.arrive(1, 60, kept=True)
    assert not budget.keeps(61)
    assert budget.arrive(2, 61, kept=False), "it is handed out, to be rejected"
    assert not budget.full
    budget.settle([1, 2, 2])
    assert budget.keeps(10)


def test_a_prefetch_lowered_for_large_messages_grows_with_small_ones() -> None:
    budget = ByteBudget(ByteBounds(held=1000, one=100), prefetch=5, prefetch_max=100)
    for tag in range(1, 60):
        if not budget.keeps(2):
            break
        budget.arrive(tag, 2, kept=True)
        budget.settle([tag])
    assert budget.spent
    assert budget.fitting_prefetch == 100


@given(st.data())
def test_any_order_of_settling_settles_exactly_the_given_tags(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 30))
    groups = data.draw(st.lists(st.sets(st.integers(1, count)), max_size=8))
    tags, at_broker = UnsettledTags(), set(range(1, count + 1))
    for tag in range(1, count + 1):
        tags.arrive(tag)
    for group in groups:
        expected = group & at_broker
        upto, singles = tags.settle(group)
        covered = {tag for tag in at_broker if tag <= upto} | set(singles)
        assert covered == expected
        assert not upto or upto in at_broker, "the broker refuses a tag that is not outstanding"
        at_broker -= covered
        assert len(tags) == len(at_broker)


def test_a_whole_batch_in_order_is_one_tag() -> None:
    tags = UnsettledTags()
    for tag in range(1, 101):
        tags.arrive(tag)
    assert tags.settle(range(1, 101)) == (100, [])


def test_one_unsettled_tag_does_not_keep_all_later_tags_in_memory() -> None:
    tags = UnsettledTags()
    tags.arrive(1)
    for tag in range(2, 50_000):
        tags.arrive(tag)
        assert tags.settle([tag]) == (0, [tag])
    assert len(tags._order) < 2_000
    assert tags.settle([1]) == (1, [])
