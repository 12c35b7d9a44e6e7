"""A bound on bytes: what is too much is dropped while it comes, and comes again in its order, none lost."""

from collections.abc import Sequence

from tests.support.brokers import declares, message, ready_messages, running, take, until_ready
from turnstile.common.broker.connection import BrokerTimeouts
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Delivery, Outgoing
from turnstile.common.broker.outstanding import ByteBounds, Holding
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.subscription import Subscription

_TIMEOUTS = BrokerTimeouts(backoff_first_seconds=0.01)
_KEPT_BYTES = 1_000_000


def _large(number: int, size_bytes: int = 200_000) -> Outgoing:
    return message("q", b"%06d" % number + b"x" * (size_bytes - 6))


async def _taken(subscription: Subscription, count: int) -> list[int]:
    """Take and acknowledge so many, batch by batch; returns their numbers. None may hold too much."""
    numbers: list[int] = []
    while len(numbers) < count:
        batch = await subscription.next_batch(50)
        assert _bytes_in(batch) <= _KEPT_BYTES
        assert all(delivery.kept for delivery in batch)
        numbers += [int(delivery.body[:6]) for delivery in batch]
        subscription.ack(batch)
    return numbers


def _bytes_in(deliveries: Sequence[Delivery]) -> int:
    return sum(len(each.body) for each in deliveries)


async def test_what_is_held_keeps_to_a_bound_in_bytes_and_all_comes_in_order(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con", timeouts=_TIMEOUTS)
    async with running(publisher):
        await publisher.publish([_large(number) for number in range(60)])
        queue = consumer.subscribe(
            "q",
            prefetch=40,
            declare=declares("q"),
            byte_bounds=ByteBounds(held=_KEPT_BYTES, one=500_000),
        )
        async with running(consumer):
            assert await _taken(queue, 60) == [*range(60)]
            # Small ones again: the count that may come at once grows back.
            small = [_large(number, 100) for number in range(400)]
            await publisher.publish(small)
            assert await _taken(queue, 400) == [*range(400)]
        await until_ready(amqp_url, "q", 0)


async def test_a_consumer_that_settles_nothing_for_long_keeps_its_connection_and_its_place(
    amqp_url: str,
) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=declares("q"))
    consumer = ConsumerConnection(amqp_url, name="con", timeouts=BrokerTimeouts(heartbeat_seconds=1))
    queue = consumer.subscribe(
        "q", prefetch=100, declare=declares("q"), byte_bounds=ByteBounds(held=_KEPT_BYTES, one=500_000)
    )
    async with running(publisher, consumer):
        await publisher.publish([_large(number) for number in range(100)])
        held = await take(queue, 4)
        # All of them are read, though only few are kept: the broker has nothing left to send.
        await until_ready(amqp_url, "q", 0)
        assert queue.buffered <= 1
        assert all(delivery.live for delivery in held)
        queue.ack(held)
        assert await _taken(queue, 96) == [*range(4, 100)]


async def test_a_message_above_the_bound_for_one_comes_without_its_body_between_its_neighbours(
    amqp_url: str,
) -> None:
    dead: dict[str, str | int] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 100, **dead}
    publisher = Publisher(amqp_url, name="pub", declare=declares("dead"))
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe(
        "q",
        prefetch=10,
        declare=declares("q", {**arguments}),
        byte_bounds=ByteBounds(held=_KEPT_BYTES, one=500_000),
    )
    async with running(publisher, consumer):
        await publisher.publish([_large(0), _large(1, 600_000), _large(2)])
        first, huge, last = await take(queue, 3)
        assert [first.kept, huge.kept, last.kept] == [True, False, True]
        assert huge.body == b""
        assert huge.size_bytes > 600_000
        queue.ack([first, last])
        queue.reject([huge], requeue=False)
        await until_ready(amqp_url, "dead", 1)
        assert await ready_messages(amqp_url, "q") == 0


def test_what_is_full_keeps_nothing_more_and_is_spent_once_all_is_settled() -> None:
    holding = Holding(ByteBounds(held=100, one=60), prefetch=10, prefetch_max=10)
    for tag in (1, 2):
        assert holding.keeps(40)
        assert holding.arrive(tag, 40, kept=True)
    assert not holding.keeps(40)
    assert not holding.arrive(3, 40, kept=False)
    assert not holding.keeps(1), "what stands behind must not overtake"
    spent = []
    for tags in ([1], [2, 3]):
        holding.settle(tags)
        assert not holding.keeps(1)
        spent.append(holding.spent)
    assert spent == [False, True]
    assert holding.held_bytes == 0
    assert holding.fitting_prefetch == 2


def test_a_single_message_always_fits_and_one_above_the_bound_for_one_holds_nothing() -> None:
    holding = Holding(ByteBounds(held=50, one=60), prefetch=10, prefetch_max=10)
    assert holding.keeps(60)
    assert holding.arrive(1, 60, kept=True)
    assert not holding.keeps(61)
    assert holding.arrive(2, 61, kept=False), "it is handed out, to be refused"
    assert holding.held_bytes == 60
    assert not holding.full
    holding.settle([1, 2, 2])
    assert holding.held_bytes == 0
    assert holding.keeps(10)


def test_a_count_that_was_lowered_for_large_messages_grows_with_small_ones() -> None:
    holding = Holding(ByteBounds(held=1000, one=100), prefetch=5, prefetch_max=100)
    for tag in range(1, 60):
        if not holding.keeps(2):
            break
        holding.arrive(tag, 2, kept=True)
        holding.settle([tag])
    assert holding.spent
    assert holding.fitting_prefetch == 100
