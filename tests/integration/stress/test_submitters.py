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
from turnstile.stress.drive.pacing import Pacing, ScenarioRun
from turnstile.stress.drive.submission import Answers, Requests, Submitter
from turnstile.stress.recording import Answer
from turnstile.stress.scenario import DurationMix, Load, Scenario

COUNT = 1_200
LOAD = Load(executions=COUNT, mix=DurationMix.parse("50% 0ms, 50% 0.0015"), keys=3, submitters=2)


@asynccontextmanager
async def submitting(amqp_url: str) -> AsyncIterator[ScenarioRun]:
    """Send the whole load; at the end of the block every request must be answered in time."""
    run = ScenarioRun(
        scenario=Scenario(name="test", title="A test", load=LOAD, limit=None),
        token="token",
        amqp_url=amqp_url,
        orders=plan_orders(LOAD, 7, "test"),
        pacing=Pacing(COUNT, None),
    )
    requests = Requests(run)
    answers = Answers(run, requests, str(requests.reply_to))
    submitters = [Submitter(number, run, requests, answers) for number in range(LOAD.submitters)]
    async with asyncio.TaskGroup() as tasks:
        parts: list[asyncio.Task[None]] = [tasks.create_task(answers.run())]
        parts += [tasks.create_task(submitter.run()) for submitter in submitters]
        yield run
        async with asyncio.timeout(DEADLINE_SECONDS):
            await run.pacing.all_answered.wait()
        for part in parts:
            part.cancel()


async def test_requests_without_replies_are_repeated_after_a_lost_connection(amqp_url: str) -> None:
    async with (
        run_fake_executor(amqp_url, lambda *_: None) as executor,
        proxy_to(amqp_url) as proxy,
        submitting(proxy.url) as run,
    ):
        await until(lambda: run.pacing.confirmed == COUNT)
        await executor.has_received(COUNT)
        executor.decide = accept
        proxy.cut()
    assert len(executor.admitted) == COUNT
    assert (run.orders["answer"] == Answer.DUPLICATE).all()
    assert (run.orders["sendings"] > 1).all()
