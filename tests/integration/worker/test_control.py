"""The control queue: while its node is down, cancel messages reach the worker through another queue."""

from typing import Any

import pytest
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ChannelNotFoundEntity

from tests.support.brokers import bodies, running, take
from tests.support.traffic import until
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.message import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import declare_own_queue, declare_workers
from turnstile.common.domain.identifiers import WorkerId
from turnstile.common.envelopes import cancel_message
from turnstile.common.messages import ExecutionCancel
from turnstile.worker import control
from turnstile.worker.control import ControlQueue


async def test_while_the_queues_node_is_down_every_connection_uses_another_queue(
    amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def declare_where_it_lives(channel: AbstractChannel, queue: str) -> None:
        if queue == "worker.w1":
            raise ChannelNotFoundEntity("home node is down or inaccessible")
        await declare_own_queue(channel, queue)

    monkeypatch.setattr(control, "declare_own_queue", declare_where_it_lives)
    own = ControlQueue(WorkerId("w1"), "quorum")
    moved: list[str] = []
    consumer = ConsumerConnection(amqp_url, name="con")
    publisher = Publisher(amqp_url, name="pub", declare=own.declare)
    queue = consumer.subscribe(own.name, prefetch=10, declare=own.declare)

    def move(name: str) -> None:
        moved.append(name)
        queue.queue = name

    own.on_moved(move)
    async with running(publisher, consumer):
        await until(lambda: queue.ready)
        assert moved == ["worker.w1.2"]
        assert await consumer.reaches(queue)
        message = cancel_message(ExecutionCancel(execution_id=1, attempt=1), worker_id="w1")
        assert await publisher.publish([message]) == [Publication.CONFIRMED]
        assert bodies(await take(queue, 1)) == [message.body]


async def test_the_loss_of_a_shared_queue_does_not_move_the_control_queue(
    amqp_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = 0

    async def lose_one_first(channel: AbstractChannel, **named: Any) -> None:
        nonlocal losses
        if not losses:
            losses += 1
            raise ChannelNotFoundEntity("no queue 'executions.dead_letters'")
        await declare_workers(channel, **named)

    monkeypatch.setattr(control, "declare_workers", lose_one_first)
    own = ControlQueue(WorkerId("w1"), "quorum")
    consumer = ConsumerConnection(amqp_url, name="con")
    queue = consumer.subscribe(own.name, prefetch=10, declare=own.declare)
    async with running(consumer):
        await until(lambda: queue.ready)
    assert (losses, own.name) == (1, "worker.w1")
