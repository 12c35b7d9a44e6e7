"""Cancels that come before their request, or name nothing: kept aside, a load to nobody (P9)."""

import asyncio
import json
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from tests.support.stage import Stage
from tests.support.tap import tapped
from tests.support.traffic import ask, cancel_request, publishing, request, until
from turnstile.common.broker.delivery import Outgoing
from turnstile.common.broker.topology import EXECUTOR_REQUESTS, EXECUTOR_RETRY

pytestmark = pytest.mark.asyncio(loop_scope="module")
STAGE: dict[str, Any] = {"settings": {"TURNSTILE_WATCHDOG_INTERVAL": "250ms"}}
FLOOD = 2000
UNKNOWN = 2**60


def straight(message: Outgoing) -> Outgoing:
    """Return the message as one who publishes to the queue itself sends it."""
    return replace(message, exchange="", routing_key=EXECUTOR_REQUESTS)


async def kept(stage: Stage) -> int:
    return int(await stage.history.value("SELECT count(*) FROM early_cancel"))


async def purge(stage: Stage) -> None:
    """Let the kept ones be forgotten: the tests behind have nothing to do with them."""
    await stage.history.value("DELETE FROM early_cancel")


@pytest.mark.parametrize("publish", [lambda message: message, straight], ids=["by the exchange", "straight"])
async def test_a_cancel_that_comes_before_its_request_takes_effect_within_a_tick_of_it(
    stage: Stage, publish: Any
) -> None:
    key = str(uuid4())
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish([publish(cancel_request({"idempotency_key": key, "reason": "too early"}))])
        await ask(stage.amqp_url, lambda to: [marker(to)])
        execution_id = await stage.submit("hold", idempotency_key=key)
    assert await stage.ended(execution_id) == ["cancelled"]
    assert (await stage.get(execution_id))["error"] == {"type": "Cancelled", "message": "too early"}
    assert len(await stage.told(execution_id)) >= 1
    assert await kept(stage) == 0


def marker(reply_to: str) -> Outgoing:
    """Return a request whose answer says that all before it was decided."""
    return request({"action_ref": "noop"}, reply_to=reply_to)


async def test_what_already_runs_when_its_early_cancel_is_found_is_stopped_by_its_worker(
    stage: Stage,
) -> None:
    execution_id = await stage.history.value("SELECT last_value + 1 FROM execution_id_seq")
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish([cancel_request({"execution_id": execution_id})])

        async def is_kept() -> bool:
            return await kept(stage) == 1

        await until(is_kept, "it is kept")
        assert await stage.submit("hold") == execution_id
    assert await stage.ended(execution_id) == ["cancelled"]


async def test_cancels_of_unknown_ids_pass_the_request_queue_once_and_others_are_admitted_meanwhile(
    stage: Stage,
) -> None:
    flood = [cancel_request({"execution_id": UNKNOWN + n}) for n in range(FLOOD)]
    async with (
        publishing(stage.amqp_url) as publisher,
        tapped(stage.amqp_url, "#", exchange=EXECUTOR_RETRY) as again,
    ):
        await publisher.publish(flood)
        await ask(stage.amqp_url, lambda to: [marker(to)])

        async def all_kept() -> bool:
            return await kept(stage) == FLOOD

        await until(all_kept, "all cancels are kept")
        # Two rounds of the delay queue: nothing of the flood is on its way any more.
        await asyncio.sleep(2.2)
        assert again.heard == []
        ((kind, _),) = await ask(stage.amqp_url, lambda to: [marker(to)])
    assert kind == "execution.accepted"
    await purge(stage)


@pytest.mark.parametrize("publish", [lambda message: message, straight], ids=["by the exchange", "straight"])
async def test_a_cancel_of_nothing_is_answered_and_a_dead_letter_after_its_time(
    stage: Stage, publish: Any
) -> None:
    # An executor of an older version counted its tries, a second each: two are left.
    nothing = publish(cancel_request({"idempotency_key": "nothing"}, headers={"x-tries": 28, "mine": "m"}))
    sent_at = await stage.history.value("SELECT clock_timestamp()")
    ((kind, answer),) = await ask(stage.amqp_url, lambda to: [replace(nothing, reply_to=to)])
    took = (await stage.history.value("SELECT clock_timestamp()") - sent_at).total_seconds()
    (letter,) = await stage.history.dead_letters(1)
    assert (kind, answer["code"]) == ("execution.rejected", "unknown_execution")
    assert took >= 2
    assert letter["code"] == "unknown_execution"
    headers = json.loads(letter["headers"])
    assert (headers["mine"], headers["x-tries"]) == ("m", 28)
    assert letter["original_routing_key"] == nothing.routing_key
    found = (letter["body"], letter["message_id"], letter["type"])
    assert found == (nothing.body, nothing.message_id, nothing.type)
    assert await kept(stage) == 0


async def test_a_dead_letter_that_was_published_straight_to_the_queue_can_be_replayed(stage: Stage) -> None:
    worn = straight(cancel_request({"idempotency_key": "replayed"}, headers={"x-tries": 30}))
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish([worn])

    async def is_dead() -> bool:
        answer = await stage.http.get("/dead-letters")
        return worn.message_id in [letter["message_id"] for letter in answer.json()["items"]]

    await until(is_dead, "it is a dead letter")
    execution_id = await stage.submit("hold", idempotency_key="replayed")
    answer = await stage.http.post("/dead-letters/replay", json={"ids": [worn.message_id]})
    assert (answer.json()["done"], answer.json()["refused"]) == (1, [])
    assert await stage.ended(execution_id) == ["cancelled"]


async def test_a_cancel_delivered_twice_is_kept_once(stage: Stage) -> None:
    twice = cancel_request({"execution_id": UNKNOWN})
    async with publishing(stage.amqp_url) as publisher:
        await publisher.publish([twice, twice])

        async def is_kept() -> bool:
            return await kept(stage) >= 1

        await until(is_kept, "it is kept")
        await ask(stage.amqp_url, lambda to: [marker(to)])
    assert await kept(stage) == 1
    await purge(stage)
