"""The queues in the broker: routes, dead letters, and repeated declarations."""

from functools import partial

import pytest

from tests.support.brokers import bodies, message, numbered, running, take
from turnstile.common.broker import topology
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.message import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import QueueType

CONFIRMED, RETURNED = Publication.CONFIRMED, Publication.RETURNED
QUEUE_TYPES: list[QueueType] = ["quorum", "classic"]


async def _declare_all(publisher: Publisher, queue_type: QueueType) -> None:
    await publisher.declare(topology.declare_events)
    await publisher.declare(partial(topology.declare_executor, queue_type=queue_type))


@pytest.mark.parametrize("queue_type", QUEUE_TYPES)
async def test_each_routing_key_reaches_its_queue_after_repeated_declarations(
    amqp_url: str, queue_type: QueueType
) -> None:
    publisher = Publisher(amqp_url, name="pub")
    routes = [
        ("executions", "execution.requested", "executor.requests"),
        ("executions", "execution.cancel_requested", "executor.requests"),
        ("executions", "executor.requests", "executor.requests"),
        ("executor.requests", "execution.requested", "executor.requests"),
        ("executor", "executor.completions", "executor.completions"),
        ("executor", "executor.heartbeats", "executor.heartbeats"),
        ("executor", "executor.reports", "executor.reports"),
    ]
    async with running(publisher):
        await _declare_all(publisher, queue_type)
        await _declare_all(publisher, queue_type)
        sent = [message(key, key.encode(), exchange=exchange) for exchange, key, _ in routes]
        assert await publisher.publish(sent) == [CONFIRMED] * len(sent)
        unknown = [message("execution.completed", exchange=each) for each in ("executions", "executor")]
        assert await publisher.publish(unknown) == [RETURNED] * 2
    consumer = ConsumerConnection(amqp_url, name="con")
    async with running(consumer):
        for queue in sorted({queue for _, _, queue in routes}):
            expected = [key.encode() for _, key, its_queue in routes if its_queue == queue]
            assert bodies(await take(consumer.subscribe(queue, prefetch=10), len(expected))) == expected


@pytest.mark.parametrize("queue_type", QUEUE_TYPES)
async def test_a_rejected_message_is_dead_lettered(amqp_url: str, queue_type: QueueType) -> None:
    publisher = Publisher(amqp_url, name="pub")
    consumer = ConsumerConnection(amqp_url, name="con")
    async with running(publisher, consumer):
        await _declare_all(publisher, queue_type)
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
