"""Submitters and replies over a real broker, with a stand-in for the executor that can stop replying."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.integration.client.fake_executor import (
    DEADLINE_SECONDS,
    accept,
    run_fake_executor,
)
from tests.support.proxy import proxy_to
from tests.support.traffic import until
from turnstile.stress.drive.driver import plan_orders
from turnstile.stress.drive.pacing import Clock, Pacing
from turnstile.stress.drive.submission import Answers, Requests, SubmitContext, Submitter
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


async def test_requests_without_replies_are_repeated_after_a_lost_connection(amqp_url: str) -> None:
    async with (
        run_fake_executor(amqp_url, lambda *_: None) as executor,
        proxy_to(amqp_url) as proxy,
        submitting(proxy.url) as context,
    ):
        await until(lambda: context.pacing.confirmed == COUNT)
        await executor.has_received(COUNT)
        executor.decide = accept
        proxy.cut()
    assert len(executor.admitted) == COUNT
    assert (context.orders["answer"] == Answer.DUPLICATE).all()
    assert (context.orders["sendings"] > 1).all()
