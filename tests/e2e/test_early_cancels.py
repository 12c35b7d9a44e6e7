"""A cancel that comes before its request is kept for a while; one of nothing is answered and stored (P9)."""

import json
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from tests.support.environment import Environment
from tests.support.traffic import ask, cancel_request, publishing, request
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import EXECUTOR_REQUESTS

pytestmark = pytest.mark.asyncio(loop_scope="module")
NOTHING = 2**60
"""No execution has this id."""
FLOOD = 500


def to_queue(message: Outgoing) -> Outgoing:
    """Return the message as a client sends it that publishes to the queue directly."""
    return replace(message, exchange="", routing_key=EXECUTOR_REQUESTS)


both_addresses = pytest.mark.parametrize(
    "publish", [lambda message: message, to_queue], ids=["by the exchange", "by the queue"]
)


async def early_cancels(env: Environment) -> int:
    return int(await env.history.value("SELECT count(*) FROM ledger.early_cancel"))


def noop_request(reply_to: str) -> Outgoing:
    """Return a request whose answer comes after all earlier messages were decided."""
    return request({"action_ref": "noop"}, reply_to=reply_to)


@both_addresses
async def test_a_cancel_that_comes_before_its_request_acts_with_it(env: Environment, publish: Any) -> None:
    key = str(uuid4())
    async with publishing(env.amqp_url) as publisher:
        await publisher.publish([publish(cancel_request({"idempotency_key": key, "reason": "too early"}))])
        await ask(env.amqp_url, lambda to: [noop_request(to)])
        execution_id = await env.submit("hold", idempotency_key=key)
    assert await env.ended(execution_id) == ["cancelled"]
    assert (await env.get(execution_id))["error"] == {"type": "Cancelled", "message": "too early"}
    assert len(await env.completions(execution_id)) >= 1
    assert await early_cancels(env) == 0


async def test_cancels_of_unknown_ids_are_kept_and_others_are_admitted_meanwhile(env: Environment) -> None:
    async with publishing(env.amqp_url) as publisher:
        await publisher.publish([cancel_request({"execution_id": NOTHING + n}) for n in range(FLOOD)])
    ((kind, _),) = await ask(env.amqp_url, lambda to: [noop_request(to)])
    assert kind == "execution.accepted"
    assert await early_cancels(env) == FLOOD
    await env.history.until("SELECT count(*) = 0 FROM ledger.early_cancel", deadline_seconds=60)
    await env.history.dead_letters(FLOOD)


@both_addresses
async def test_a_cancel_of_an_unknown_execution_is_answered_and_a_dead_letter_after_its_time(
    env: Environment, publish: Any
) -> None:
    nothing = publish(cancel_request({"idempotency_key": "nothing"}, headers={"mine": "m"}))
    ((kind, answer),) = await ask(env.amqp_url, lambda to: [replace(nothing, reply_to=to)])
    (letter,) = await env.history.dead_letters(1)
    assert (kind, answer["code"]) == ("execution.rejected", "unknown_execution")
    assert letter["code"] == "unknown_execution"
    assert json.loads(letter["headers"])["mine"] == "m"
    found = (letter["body"], letter["message_id"], letter["type"])
    assert found == (nothing.body, nothing.message_id, nothing.type)
    assert await early_cancels(env) == 0
