"""The queues in the broker: routes, delays, dead letters, and declarations in any order."""

from functools import partial

import pytest

from tests.support.brokers import bodies, message, numbered, running, take, until_ready
from tests.support.traffic import until
from turnstile.common.broker import topology
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.message import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import QueueType

CONFIRMED, RETURNED = Publication.CONFIRMED, Publication.RETURNED
QUEUE_TYPES: list[QueueType] = ["quorum", "classic"]


async def _declare_all(publisher: Publisher, queue_type: QueueType) -> None:
    await publisher.declare(partial(topology.declare_workers, queue_type=queue_type))
    await publisher.declare(partial(topology.declare_own_queue, queue="worker.w1"))
    await publisher.declare(partial(topology.declare_pool, pool="default", queue_type=queue_type))
    await publisher.declare(partial(topology.declare_executor, queue_type=queue_type))


@pytest.mark.parametrize("queue_type", QUEUE_TYPES)
async def test_each_routing_key_reaches_its_queue_after_repeated_declarations_in_any_order(
    amqp_url: str, queue_type: QueueType
) -> None:
    publisher = Publisher(amqp_url, name="pub")
    routes = {
        "execution.requested": "executor.requests",
        "execution.cancel_requested": "executor.requests",
        "executor.requests": "executor.requests",
        "execution.completed": "executor.completions",
        topology.scheduled_key("default"): topology.pool_queue("default"),
    }
    async with running(publisher):
        await _declare_all(publisher, queue_type)
        await _declare_all(publisher, queue_type)
        sent = [message(key, key.encode(), exchange="executions") for key in routes]
        assert await publisher.publish(sent) == [CONFIRMED] * len(sent)
        unknown = message(topology.scheduled_key("elsewhere"), exchange="executions")
        assert await publisher.publish([unknown]) == [RETURNED]
    consumer = ConsumerConnection(amqp_url, name="con")
    async with running(consumer):
        for queue in sorted(set(routes.values())):
            expected = [key.encode() for key in routes if routes[key] == queue]
            assert bodies(await take(consumer.subscribe(queue, prefetch=10), len(expected))) == expected


@pytest.mark.parametrize("queue_type", QUEUE_TYPES)
async def test_a_delayed_message_returns_under_its_routing_key_and_a_rejected_one_is_dead_lettered(
    amqp_url: str, queue_type: QueueType
) -> None:
    publisher = Publisher(amqp_url, name="pub")
    consumer = ConsumerConnection(amqp_url, name="con")
    async with running(publisher, consumer):
        await _declare_all(publisher, queue_type)
        for delay, key, queue in [
            (topology.EXECUTOR_RETRY, "execution.completed", topology.EXECUTOR_COMPLETIONS),
            (topology.WORKER_RETRY, topology.scheduled_key("default"), topology.pool_queue("default")),
        ]:
            early = consumer.subscribe(queue, prefetch=10)
            for _ in range(3):
                late = message(key, exchange=delay, expiration_ms=50)
                assert await publisher.publish([late]) == [CONFIRMED]
                (back,) = await take(early, 1)
                assert (back.routing_key, back.exchange) == (key, "executions")
                early.ack([back])

        requests = consumer.subscribe(topology.EXECUTOR_REQUESTS, prefetch=10)
        dead = consumer.subscribe(topology.DEAD_LETTERS, prefetch=10)
        await publisher.publish(numbered("execution.requested", 4, exchange="executions"))
        deliveries = await take(requests, 4)
        requests.reject([deliveries[2], deliveries[0]], requeue=False)
        requests.ack([deliveries[1], deliveries[3]])
        letters = await take(dead, 2)
        assert sorted(bodies(letters)) == [b"0", b"2"]
        assert {letter.headers["x-first-death-queue"] for letter in letters} == {"executor.requests"}
        assert await publisher.publish([message("any", b"ours", exchange="executions.dlx")]) == [CONFIRMED]
        assert bodies(await take(dead, 1)) == [b"ours"]


async def test_requeued_requests_are_delivered_again_in_order_before_later_ones(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub", declare=topology.declare_executor)
    consumer = ConsumerConnection(amqp_url, name="con")
    requests = consumer.subscribe(topology.EXECUTOR_REQUESTS, prefetch=10, declare=topology.declare_executor)
    async with running(publisher, consumer):
        await publisher.publish(numbered("execution.requested", 30, exchange="executions"))
        for _ in range(5):
            requests.reject(await take(requests, 10), requeue=True)
        seen: list[int] = []
        while len(seen) < 30:
            deliveries = await take(requests, 10)
            seen += [int(body) for body in bodies(deliveries)]
            requests.ack(deliveries)
        assert seen == list(range(30))


async def test_a_control_queue_expires_after_its_worker(amqp_url: str) -> None:
    publisher = Publisher(amqp_url, name="pub")
    async with running(publisher):
        await publisher.declare(partial(topology.declare_own_queue, queue="worker.w1", expires_ms=500))
        await until_ready(amqp_url, topology.worker_queue("w1"), 0)

        async def has_expired() -> bool:
            return await publisher.publish([message("worker.w1")]) == [RETURNED]

        await until(has_expired)


def test_no_pool_can_have_the_name_of_the_delay_queue() -> None:
    with pytest.raises(ValueError, match="delay queue"):
        topology.pool_queue("retry")
