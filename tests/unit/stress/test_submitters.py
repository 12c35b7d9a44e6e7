"""Submitters and replies over a real broker, with a stand-in for the executor that can stop replying."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np

from tests.integration.client.fake_executor import (
    DEADLINE_SECONDS,
    FakeExecutor,
    Reply,
    accept,
    run_fake_executor,
)
from tests.support.brokers import message, running
from tests.support.proxy import proxy_to
from tests.support.traffic import until
from turnstile.common.broker.delivery import Delivery
from turnstile.common.broker.message import Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTION_REQUESTED, EXECUTIONS
from turnstile.stress.drive.pacing import Clock, Pacing
from turnstile.stress.drive.submission import Answers, Requests, SubmitContext, Submitter
from turnstile.stress.load import plan_orders
from turnstile.stress.recording import Answer
from turnstile.stress.scenario import DurationMix, Load

COUNT = 1_200
LOAD = Load(executions=COUNT, mix=DurationMix.parse("50% 0ms, 50% 0.0015"), keys=3, submitters=2)


@asynccontextmanager
async def submitting(amqp_url: str) -> AsyncIterator[SubmitContext]:
    """Send the whole load; at the end of the block every request must be answered in time."""
    orders, clock = plan_orders(LOAD, 7, "test"), Clock.start()
    pacing = Pacing(COUNT, None)
    requests = Requests(orders, LOAD, token="token", reply_to="answers")
    answers = Answers(amqp_url, "answers", orders=orders, requests=requests, pacing=pacing, clock=clock)
    context = SubmitContext(
        orders=orders,
        requests=requests,
        pacing=pacing,
        clock=clock,
        answers=answers,
        broker="the broker",
    )
    submitters = [Submitter(number, amqp_url, context) for number in range(LOAD.submitters)]
    async with asyncio.TaskGroup() as tasks:
        parts: list[asyncio.Task[None]] = [tasks.create_task(answers.run())]
        parts += [tasks.create_task(submitter.run()) for submitter in submitters]
        yield context
        async with asyncio.timeout(DEADLINE_SECONDS):
            await pacing.all_answered.wait()
        for part in parts:
            part.cancel()


async def until_led(amqp_url: str, executor: FakeExecutor) -> None:
    """Return once the queue of the requests has taken one.

    A quorum queue without a leader yet may keep the end of a publish that breaks off, and lose its beginning.
    """
    publisher = Publisher(amqp_url, name="first")
    async with running(publisher):
        first = message(EXECUTION_REQUESTED, exchange=EXECUTIONS)
        while await publisher.publish([first]) != [Publication.CONFIRMED]:
            await asyncio.sleep(0.01)
        await executor.has_received(1)
    executor.deliveries.clear()
    executor.admitted.clear()


async def test_requests_without_replies_are_repeated_after_a_lost_connection(amqp_url: str) -> None:
    silent = True

    def at_the_second_time(delivery: Delivery, execution_id: int, duplicate: bool) -> Reply | None:
        return None if silent else accept(delivery, execution_id, duplicate)

    async with (
        run_fake_executor(amqp_url, at_the_second_time) as executor,
        proxy_to(amqp_url) as proxy,
        submitting(proxy.url) as context,
    ):
        await until(lambda: context.pacing.confirmed == COUNT)
        await executor.has_received(COUNT)
        silent = False
        proxy.cut()
    assert len(executor.admitted) == COUNT
    assert (context.orders["answer"] == Answer.DUPLICATE).all()
    assert (context.orders["sendings"] > 1).all()


async def test_an_interrupted_publish_is_repeated_in_order_with_the_same_ids(amqp_url: str) -> None:
    async with run_fake_executor(amqp_url) as executor, proxy_to(amqp_url) as proxy:
        await until_led(amqp_url, executor)
        async with submitting(proxy.url) as context:
            proxy.cut_after(150_000)
    assert len(executor.admitted) == COUNT
    assert context.orders["sendings"].max() > 1
    for submitter in range(LOAD.submitters):
        ids = context.orders["execution_id"][context.orders["submitter"] == submitter]
        assert (np.diff(ids) > 0).all()
