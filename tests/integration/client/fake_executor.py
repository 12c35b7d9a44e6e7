"""A fake executor on a real broker: receives requests, replies as the test decides, records them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.support.traffic import until
from turnstile.common.broker.consumer import ConsumerConnection
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import (
    EXECUTION_ACCEPTED,
    EXECUTION_REJECTED,
    EXECUTOR_REQUESTS,
    declare_executor,
)
from turnstile.common.domain.states import Status
from turnstile.common.envelopes import envelope
from turnstile.common.messages import ExecutionAccepted, ExecutionRejected

DEADLINE_SECONDS = 20.0

Reply = ExecutionAccepted | ExecutionRejected
Decide = Callable[[Delivery, int, bool], Reply | None]
"""Decides the reply from a request, its execution id and whether it is a duplicate."""


def accept(_: Delivery, execution_id: int, duplicate: bool) -> ExecutionAccepted:
    return ExecutionAccepted(
        execution_id=execution_id, status=Status.QUEUED, position=execution_id, duplicate=duplicate
    )


class FakeExecutor:
    def __init__(self, amqp_url: str, decide: Decide) -> None:
        self.decide = decide
        self.deliveries: list[Delivery] = []
        self.admitted: dict[str, int] = {}
        self._consumer = ConsumerConnection(amqp_url, name="fake-executor-consumer")
        self._publisher = Publisher(amqp_url, name="fake-executor-publisher", declare=declare_executor)

    @property
    def consumes(self) -> bool:
        """Whether every request is routed: one that finds no queue is returned, and published again later."""
        return self._consumer.connected

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._consumer.run(), name="consumer")
            tasks.create_task(self._publisher.run(), name="publisher")
            subscription = self._consumer.subscribe(EXECUTOR_REQUESTS, prefetch=500, declare=declare_executor)
            while True:
                batch = await subscription.next_batch(500)
                answers = [self._answer(delivery) for delivery in batch]
                self.deliveries += batch
                await self._publisher.publish([each for each in answers if each is not None])
                subscription.ack(batch)

    def _answer(self, delivery: Delivery) -> Outgoing | None:
        assert delivery.message_id
        duplicate = delivery.message_id in self.admitted
        execution_id = self.admitted.setdefault(delivery.message_id, len(self.admitted) + 1)
        answer = self.decide(delivery, execution_id, duplicate)
        return None if answer is None else _reply(delivery, answer)

    async def answer(self, delivery: Delivery, answer: Reply) -> None:
        message = _reply(delivery, answer)
        assert message is not None
        await self._publisher.publish([message])

    async def has_received(self, count: int) -> None:
        await until(lambda: len(self.deliveries) >= count)


@asynccontextmanager
async def run_fake_executor(amqp_url: str, decide: Decide = accept) -> AsyncIterator[FakeExecutor]:
    executor = FakeExecutor(amqp_url, decide)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(executor.run(), name="fake-executor")
        try:
            await until(lambda: executor.consumes, "the fake executor consumes")
            yield executor
        finally:
            running.cancel()


class Background:
    """The fake executor in a thread, for a test without an event loop."""

    def __init__(self, amqp_url: str, *, answering: bool = True) -> None:
        self._amqp_url = amqp_url
        self._answering = answering
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._started = threading.Event()
        self.executor: FakeExecutor | None = None

    def __enter__(self) -> "Background":
        self._thread.start()
        assert self._started.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with run_fake_executor(
            self._amqp_url, accept if self._answering else lambda *_: None
        ) as self.executor:
            self._started.set()
            await self._stop.wait()


def _reply(request: Delivery, answer: Reply) -> Outgoing | None:
    if not request.reply_to:
        return None
    return envelope(
        answer,
        message_type=EXECUTION_ACCEPTED if isinstance(answer, ExecutionAccepted) else EXECUTION_REJECTED,
        exchange="",
        routing_key=request.reply_to,
        app_id="executor",
        correlation_id=request.correlation_id or request.message_id,
        mandatory=False,
    )
