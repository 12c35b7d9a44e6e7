"""Submitters and answers over a real broker, with a stand-in for the executor that can fall silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
from pydantic_core import from_json

from tests.integration.client import stand_in
from tests.integration.client.stand_in import DEADLINE_SECONDS, StandIn, accept, standing_in
from tests.support.brokers import message, running
from tests.support.cable import cable_to
from turnstile.common.broker.delivery import Delivery, Publication
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import EXECUTION_REQUESTED, EXECUTIONS
from turnstile.common.domain.errors import Code
from turnstile.common.messages import ExecutionRejected
from turnstile.stress.drive.answers import Answers
from turnstile.stress.drive.clock import Clock
from turnstile.stress.drive.progression import Progression
from turnstile.stress.drive.requests import Requests
from turnstile.stress.drive.submitter import Post, Submitter
from turnstile.stress.load import plan_orders
from turnstile.stress.mix import DurationMix
from turnstile.stress.stage import Load
from turnstile.stress.tables import Answer

COUNT = 1_200
LOAD = Load(executions=COUNT, mix=DurationMix.parse("50% 0ms, 50% 0.0015"), keys=3, submitters=2)


@asynccontextmanager
async def submitting(amqp_url: str) -> AsyncIterator[Post]:
    """Send the whole load; at the end of the block every request must have its answer in time."""
    orders, clock = plan_orders(LOAD, 7, "test"), Clock.start()
    progression = Progression(COUNT, None)
    requests = Requests(orders, LOAD, token="token", reply_to="answers")
    answers = Answers(
        amqp_url, "answers", orders=orders, requests=requests, progression=progression, clock=clock
    )
    post = Post(
        orders=orders,
        requests=requests,
        progression=progression,
        clock=clock,
        answers=answers,
        broker="the broker",
    )
    submitters = [Submitter(number, amqp_url, post) for number in range(LOAD.submitters)]
    async with asyncio.TaskGroup() as tasks:
        parts: list[asyncio.Task[None]] = [tasks.create_task(answers.run())]
        parts += [tasks.create_task(submitter.run()) for submitter in submitters]
        yield post
        async with asyncio.timeout(DEADLINE_SECONDS):
            await progression.all_answered.wait()
        for part in parts:
            part.cancel()


async def until_led(amqp_url: str, executor: StandIn) -> None:
    """Return once the queue of the requests has taken one.

    A quorum queue without a leader yet may keep the end of a publish that breaks off, and lose its beginning.
    """
    publisher = Publisher(amqp_url, name="first")
    async with running(publisher):
        first = message(EXECUTION_REQUESTED, exchange=EXECUTIONS)
        while await publisher.publish([first]) != [Publication.CONFIRMED]:
            await asyncio.sleep(0.01)
        await executor.has_taken(1)
    executor.deliveries.clear()
    executor.admitted.clear()


async def test_requests_say_what_was_planned(amqp_url: str) -> None:
    async with standing_in(amqp_url) as executor, submitting(amqp_url) as post:
        await executor.has_taken(COUNT)
    for delivery in executor.deliveries:
        body = from_json(delivery.body)
        order = post.orders[body["parameters"]["number"]]
        assert body == {
            "action_ref": f"stress.{order['queue'] // 3:02}",
            "concurrency_key": str(order["queue"] % 3),
            "parameters": {
                "number": body["parameters"]["number"],
                "milliseconds": order["duration_us"] / 1000,
                "stage": "token",
            },
        }
        assert executor.admitted[delivery.message_id or ""] == order["execution_id"]
    assert (post.orders["answer"] == Answer.ACCEPTED).all()
    assert (post.orders["sent_at"] <= post.orders["answered_at"]).all()


async def test_answers_lost_with_the_connection_are_asked_for_again(amqp_url: str) -> None:
    silent = True

    def at_the_second_time(delivery: Delivery, execution_id: int, duplicate: bool) -> stand_in.Answer | None:
        return None if silent else accept(delivery, execution_id, duplicate)

    async with (
        standing_in(amqp_url, at_the_second_time) as executor,
        cable_to(amqp_url) as cable,
        submitting(cable.url) as post,
    ):
        await stand_in.until(lambda: post.progression.confirmed == COUNT)
        await executor.has_taken(COUNT)
        silent = False
        cable.cut()
    assert len(executor.admitted) == COUNT
    assert (post.orders["answer"] == Answer.DUPLICATE).all()
    assert (post.orders["sendings"] > 1).all()


async def test_a_publish_cut_in_the_middle_is_repeated_in_order_under_the_same_ids(amqp_url: str) -> None:
    async with standing_in(amqp_url) as executor, cable_to(amqp_url) as cable:
        await until_led(amqp_url, executor)
        async with submitting(cable.url) as post:
            cable.cut_after(150_000)
    assert len(executor.admitted) == COUNT
    assert post.orders["sendings"].max() > 1
    for submitter in range(LOAD.submitters):
        ids = post.orders["execution_id"][post.orders["submitter"] == submitter]
        assert (np.diff(ids) > 0).all()


async def test_a_refused_request_is_answered_too(amqp_url: str) -> None:
    def refuse_the_third(delivery: Delivery, execution_id: int, duplicate: bool) -> stand_in.Answer:
        if execution_id == 3:
            return ExecutionRejected(code=Code.QUEUE_FULL, message="full")
        return accept(delivery, execution_id, duplicate)

    async with standing_in(amqp_url, refuse_the_third), submitting(amqp_url) as post:
        pass
    assert np.count_nonzero(post.orders["answer"] == Answer.REJECTED) == post.progression.rejected == 1
