"""Requests and answers over a real broker, with a stand-in for the executor that can fall silent."""

import asyncio
import json
from dataclasses import replace

import pytest

from tests.integration.client.stand_in import Answer, accept, standing_in, until
from tests.support.cable import cable_to
from turnstile.client import AsyncClient, Rejected, Request, Submitted, Unavailable
from turnstile.common.broker.delivery import Delivery
from turnstile.common.domain.errors import Code
from turnstile.common.messages import ExecutionRejected


def _numbered(count: int) -> list[Request]:
    return [Request(action_ref="noop", parameters={"number": number}) for number in range(count)]


def _number(delivery: Delivery) -> int:
    return int(json.loads(delivery.body)["parameters"]["number"])


async def test_a_list_is_published_in_order_and_answered_in_order(amqp_url: str) -> None:
    def refuse_every_seventh(delivery: Delivery, execution_id: int, duplicate: bool) -> Answer | None:
        if _number(delivery) % 7 == 0:
            return ExecutionRejected(code=Code.QUEUE_FULL, message=f"{_number(delivery)}")
        return accept(delivery, execution_id, duplicate)

    async with (
        standing_in(amqp_url, refuse_every_seventh) as executor,
        AsyncClient(amqp_url=amqp_url) as client,
    ):
        requests = _numbered(2600)
        requests[3] = replace(requests[3], action_ref="no such name")
        answers = await client.submit_many(iter(requests))

    assert [_number(each) for each in executor.deliveries] == [n for n in range(2600) if n != 3]
    for number, answer in enumerate(answers):
        if number == 3:
            assert isinstance(answer, Rejected)
            assert answer.code == "invalid_message"
        elif number % 7 == 0:
            assert isinstance(answer, Rejected)
            assert (answer.code, answer.message) == ("queue_full", f"{number}")
        else:
            assert isinstance(answer, Submitted)
            assert _number(executor.deliveries[answer.execution_id - 1]) == number


async def test_a_publish_cut_in_the_middle_is_repeated_in_order_under_the_same_ids(amqp_url: str) -> None:
    async with (
        standing_in(amqp_url) as executor,
        cable_to(amqp_url) as cable,
        AsyncClient(amqp_url=cable.url) as client,
    ):
        await client.submit("noop", {"number": -1})
        cable.cut_after(40_000)
        answers = await client.submit_many(_numbered(300))

    first_seen = dict.fromkeys(_number(each) for each in executor.deliveries)
    assert list(first_seen) == list(range(-1, 300))
    assert len(executor.admitted) == 301
    assert all(isinstance(each, Submitted) and not each.duplicate for each in answers)


async def test_an_answer_lost_with_the_connection_is_asked_for_again(amqp_url: str) -> None:
    silent = True

    def at_the_second_time(delivery: Delivery, execution_id: int, duplicate: bool) -> Answer | None:
        return None if silent else accept(delivery, execution_id, duplicate)

    async with (
        standing_in(amqp_url, at_the_second_time) as executor,
        cable_to(amqp_url) as cable,
        AsyncClient(amqp_url=cable.url) as client,
        asyncio.TaskGroup() as tasks,
    ):
        submitted = tasks.create_task(client.submit("noop", {"number": 1}))
        await executor.has_taken(1)
        silent = False
        cable.cut()
        await submitted

    assert submitted.result() == Submitted(
        execution_id=1, status=submitted.result().status, position=1, duplicate=False
    )
    assert len(executor.admitted) == 1


async def test_a_known_idempotency_key_shows_as_a_duplicate(amqp_url: str) -> None:
    def known(delivery: Delivery, execution_id: int, _: bool) -> Answer | None:
        return accept(delivery, execution_id, True)

    async with standing_in(amqp_url, known), AsyncClient(amqp_url=amqp_url) as client:
        assert (await client.submit("noop", idempotency_key="k")).duplicate


async def test_a_rejection_is_raised_with_code_and_remedy(amqp_url: str) -> None:
    def refuse(*_: object) -> Answer | None:
        return ExecutionRejected(code=Code.UNKNOWN_ACTION, message="action_ref: no such action")

    async with standing_in(amqp_url, refuse), AsyncClient(amqp_url=amqp_url) as client:
        with pytest.raises(Rejected, match="unknown_action: action_ref") as refused:
            await client.submit("noop")
        assert refused.value.code == Code.UNKNOWN_ACTION


async def test_no_answer_in_time_is_an_unknown_outcome(amqp_url: str) -> None:
    async with (
        standing_in(amqp_url, lambda *_: None) as executor,
        AsyncClient(amqp_url=amqp_url, answer_timeout="1s") as client,
    ):
        await executor.has_taken(0)
        with pytest.raises(Unavailable, match="no executor answered"):
            await client.submit("noop")


async def test_where_no_executor_has_ever_been_the_error_says_so(amqp_url: str) -> None:
    async with AsyncClient(amqp_url=amqp_url, answer_timeout="1s") as client:
        with pytest.raises(Unavailable, match="no exchange 'executions'"):
            await client.submit("noop")


async def test_where_no_broker_is_the_error_says_so(unused_tcp_port: int) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{unused_tcp_port}/"
    async with AsyncClient(amqp_url=url, answer_timeout=0.5) as client:
        with pytest.raises(Unavailable, match="no usable connection"):
            await client.submit("noop")
        with pytest.raises(Unavailable, match="no usable connection"):
            await client.cancel(1)


async def test_an_answer_that_comes_late_disturbs_nobody(amqp_url: str) -> None:
    kept: list[Delivery] = []

    def keep_the_first(delivery: Delivery, execution_id: int, duplicate: bool) -> Answer | None:
        if _number(delivery) == 0:
            kept.append(delivery)
            return None
        return accept(delivery, execution_id, duplicate)

    async with (
        standing_in(amqp_url, keep_the_first) as executor,
        AsyncClient(amqp_url=amqp_url, answer_timeout=1.0) as client,
    ):
        with pytest.raises(Unavailable):
            await client.submit("noop", {"number": 0})
        await until(lambda: bool(kept))
        await executor.answer(kept[0], accept(kept[0], 1, False))
        assert (await client.submit("noop", {"number": 1})).execution_id == 2


async def test_an_error_of_the_caller_leaves_the_block_as_it_is(amqp_url: str) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with AsyncClient(amqp_url=amqp_url):
            raise KeyError("mine")
