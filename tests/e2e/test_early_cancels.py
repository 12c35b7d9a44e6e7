"""A cancel that comes before its request is kept for a while; one of nothing is answered and stored (P9)."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from tests.support.environment import Environment
from tests.support.traffic import ask, cancel_request, in_background, publishing, request
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.topology import EXECUTION_CANCEL_REQUESTED, EXECUTOR_REQUESTS
from turnstile.executor.leader.admission import EARLY_SECONDS

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(200)]
NOTHING = 2**60
"""No execution has this id."""
FLOOD = 500
SLACK_SECONDS = 30.0


def to_queue(message: Outgoing) -> Outgoing:
    """Return the message as a client sends it that publishes to the queue directly."""
    return replace(message, exchange="", routing_key=EXECUTOR_REQUESTS)


ADDRESSES: dict[str, Callable[[Outgoing], Outgoing]] = {
    "by the exchange": lambda message: message,
    "by the queue": to_queue,
}


async def early_cancels(env: Environment, key: str | None = None) -> int:
    """Count those that are kept: of this idempotency key, or all."""
    query = "SELECT count(*) FROM ledger.early_cancel WHERE $1::text IS NULL OR idempotency_key = $1"
    return int(await env.history.value(query, key))


def noop_request(reply_to: str) -> Outgoing:
    """Return a request whose answer comes after all earlier messages were decided."""
    return request({"action_ref": "noop"}, reply_to=reply_to)


@pytest.mark.parametrize("address", ADDRESSES)
async def test_a_cancel_that_comes_before_its_request_acts_with_it(env: Environment, address: str) -> None:
    key = str(uuid4())
    early = cancel_request({"idempotency_key": key, "reason": "too early"})
    async with publishing(env.amqp_url) as publisher:
        await publisher.publish([ADDRESSES[address](early)])
        await ask(env.amqp_url, lambda to: [noop_request(to)])
        assert await early_cancels(env, key) == 1
        execution_id = await env.submit("hold", idempotency_key=key)
    assert await env.ended(execution_id) == ["cancelled"]
    assert (await env.get(execution_id))["error"] == {"type": "Cancelled", "message": "too early"}
    assert len(await env.completions(execution_id)) >= 1
    assert await early_cancels(env, key) == 0


async def test_cancels_of_nothing_delay_no_request_and_are_answered_and_dead_letters_after_their_time(
    env: Environment,
) -> None:
    unknown = {
        name: readdressed(cancel_request({"idempotency_key": name}))
        for name, readdressed in ADDRESSES.items()
    }
    began = asyncio.get_running_loop().time()

    async def refused() -> list[tuple[str, dict[str, Any]]]:
        return await ask(
            env.amqp_url,
            lambda to: [replace(each, reply_to=to) for each in unknown.values()],
            deadline_seconds=EARLY_SECONDS + SLACK_SECONDS,
        )

    async with publishing(env.amqp_url) as publisher:
        await publisher.publish([cancel_request({"execution_id": NOTHING + n}) for n in range(FLOOD)])
    async with in_background(refused()) as answers:
        await env.history.until("SELECT count(*) = $1 FROM ledger.early_cancel", FLOOD + len(unknown))
        ((kind, _),) = await ask(env.amqp_url, lambda to: [noop_request(to)])
        assert kind == "execution.accepted"
        assert await early_cancels(env) == FLOOD + len(unknown)
        for kind, answer in await answers:
            assert (kind, answer["code"]) == ("execution.rejected", "unknown_execution")
        assert asyncio.get_running_loop().time() - began >= EARLY_SECONDS
    letters = await env.history.dead_letters(FLOOD + len(unknown))
    assert {(letter["code"], letter["type"]) for letter in letters} == {
        ("unknown_execution", EXECUTION_CANCEL_REQUESTED)
    }
    sent = {each.message_id for each in unknown.values()}
    assert sent <= {letter["message_id"] for letter in letters}
    # The messages were acknowledged when they were kept: each letter says what its cancel asked for.
    cancels = [dict(json.loads(letter["body"])) for letter in letters]
    wanted = [{"execution_id": NOTHING + n} for n in range(FLOOD)] + [{"idempotency_key": k} for k in unknown]
    assert sorted(cancels, key=str) == sorted(wanted, key=str)
    assert await early_cancels(env) == 0
