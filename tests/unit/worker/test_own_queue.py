"""A worker's own queue: where its node is down, another takes its place, and words to stop reach that one."""

from typing import Any

import pytest
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ChannelNotFoundEntity

from tests.support.brokers import bodies, running, take, until
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import declare_own_queue, declare_workers
from turnstile.common.domain.identifiers import WorkerId
from turnstile.common.envelopes import cancel_message
from turnstile.common.messages import ExecutionCancel
from turnstile.worker import own_queue
from turnstile.worker.own_queue import OwnQueue


async def test_where_the_queues_node_is_down_another_queue_takes_its_place_for_all_who_declare_it(
    amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def declare_where_it_lives(channel: AbstractChannel, queue: str) -> None:
        if queue == "worker.w1":
            raise ChannelNotFoundEntity("home node is down or inaccessible")
        await declare_own_queue(channel, queue)

    monkeypatch.setattr(own_queue, "declare_own_queue", declare_where_it_lives)
    own = OwnQueue(WorkerId("w1"), "quorum")
    moved: list[str] = []
    consumer = ConsumerConnection(amqp_url, name="con")
    publisher = Publisher(amqp_url, name="pub", declare=own.declare)
    queue = consumer.subscribe(own.name, prefetch=10, declare=own.declare)

    def move(name: str) -> None:
        moved.append(name)
        queue.queue = name

    own.tell_when_moved(move)
    async with running(publisher, consumer):
        await until(lambda: queue.ready)
        assert moved == ["worker.w1.2"]
        assert await consumer.reaches(queue)
        words = cancel_message(ExecutionCancel(execution_id=1, attempt=1), worker_id="w1")
        assert await publisher.publish([words]) == [Publication.CONFIRMED]
        assert bodies(await take(queue, 1)) == [words.body]


async def test_a_shared_queue_that_goes_while_it_is_declared_moves_no_worker_s_own(
    amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = 0

    async def lose_one_first(channel: AbstractChannel, **named: Any) -> None:
        nonlocal losses
        if not losses:
            losses += 1
            raise ChannelNotFoundEntity("no queue 'executions.dead_letters'")
        await declare_workers(channel, **named)

    monkeypatch.setattr(own_queue, "declare_workers", lose_one_first)
    own = OwnQueue(WorkerId("w1"), "quorum")
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe(own.name, prefetch=10, declare=own.declare)
    async with running(consumer):
        await until(lambda: queue.ready)
    assert (losses, own.name) == (1, "worker.w1")
