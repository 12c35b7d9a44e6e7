"""Messages about executions that do not exist yet, or never: stored or retried in a bounded way (P9)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from tests.support.environment import Environment
from tests.support.listener import Listener, listening
from tests.support.traffic import ask, cancel_request, publishing, request
from turnstile.common.broker.message import Outgoing
from turnstile.common.broker.publisher import Publisher
from turnstile.common.broker.topology import (
    EXECUTION_COMPLETED,
    EXECUTION_SCHEDULED,
    EXECUTOR_REQUESTS,
    EXECUTOR_RETRY,
    WORKER_RETRY,
    scheduled_key,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPTIONS = {
    "settings": {
        "TURNSTILE_DISPATCH_TIMEOUT": "1h",
        "TURNSTILE_SETTLE_TIMEOUT": "1h",
        "TURNSTILE_STOP_GRACE": "300ms",
        "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
    }
}
NOTHING = 2**60
"""No execution has this id."""
FLOOD = 500


def completion(execution_id: int, **properties: Any) -> Outgoing:
    body = {
        "execution_id": execution_id,
        "action_id": 1,
        "action_ref": "hold",
        "status": "completed",
        "attempt": 1,
        "completed_at": "2026-01-01T00:00:00Z",
    }
    return _from_a_service(EXECUTION_COMPLETED, EXECUTION_COMPLETED, body, **properties)


def offer(execution_id: int, **properties: Any) -> Outgoing:
    body = {"execution_id": execution_id, "attempt": 1, "action_ref": "noop"}
    return _from_a_service(EXECUTION_SCHEDULED, scheduled_key("default"), body, **properties)


def _from_a_service(kind: str, routing_key: str, body: dict[str, Any], **properties: Any) -> Outgoing:
    return replace(request(json.dumps(body).encode(), **properties), type=kind, routing_key=routing_key)


@asynccontextmanager
async def retries(
    env: Environment, exchange: str = EXECUTOR_RETRY
) -> AsyncIterator[tuple[Publisher, Listener]]:
    """Lend a publisher, and a listener to the messages that are retried."""
    async with (
        publishing(env.amqp_url) as publisher,
        listening(env.amqp_url, "#", exchange=exchange) as again,
    ):
        yield publisher, again


async def next_id(env: Environment) -> int:
    """Return the id that the next request will have."""
    await env.ended(await env.submit("noop"))
    following: int = await env.history.value("SELECT last_value + 1 FROM execution_id_seq")
    return following


async def test_a_completion_before_its_row_and_before_its_end_is_retried_and_frees_one_slot(
    env: Environment,
) -> None:
    execution_id = await next_id(env)
    async with retries(env) as (publisher, again):
        await publisher.publish([completion(execution_id)])
        await again.until(lambda: len(again.received) == 1, "a try without a row")
        assert await env.submit("hold") == execution_id
        behind = await env.submit("hold")
        await env.until_status(execution_id, "running")
        seen = len(again.received)
        await again.until(lambda: len(again.received) > seen, "a try before the end")
        assert [await env.status(i) for i in (execution_id, behind)] == ["running", "queued"]
        await env.cancel(execution_id, behind)
        await env.ended(execution_id, behind)
        # The early one is retried once more, finds its execution ended, and is acknowledged.
        seen = len(again.received)
        last = completion(NOTHING, headers={"x-tries": 29})
        await publisher.publish([last])
        (letter,) = await env.history.dead_letters(1)
    assert letter["body"] == last.body
    tries = [m.headers["x-tries"] for m in again.received if m.body["execution_id"] == execution_id]
    assert tries == list(range(1, len(tries) + 1))
    assert len(tries) <= seen
    stats = await env.stats("hold")
    assert (stats["total_completed"], stats["active_count"]) == (2, 0)


async def test_an_offer_before_its_row_is_retried_and_runs_once(env: Environment) -> None:
    execution_id = await next_id(env)
    async with retries(env, WORKER_RETRY) as (publisher, again):
        await publisher.publish([offer(execution_id)])
        await again.until(lambda: len(again.received) == 1, "a try without a row")
        # Only the early offer reaches a worker: the executor's own goes to an unserved pool.
        await env.register_silent_worker("unserved")
        await env.put("elsewhere", pool="unserved", entrypoint="tests.e2e.actions:noop")
        assert await env.submit("elsewhere", parameters={"number": 7}) == execution_id
        assert await env.ended(execution_id) == ["completed"]
    assert (await env.get(execution_id))["result"] == 7
    assert await env.attempts(execution_id) == [(1, "completed")]


@pytest.mark.parametrize(
    ("unknown", "exchange"),
    [(completion, EXECUTOR_RETRY), (offer, WORKER_RETRY)],
    ids=["completion", "offer"],
)
async def test_a_message_about_an_unknown_execution_is_retried_a_bounded_number_of_times_and_stored(
    env: Environment, unknown: Any, exchange: str
) -> None:
    message: Outgoing = unknown(NOTHING, headers={"x-tries": 28})
    async with retries(env, exchange) as (publisher, again):
        sent_at = await env.history.value("SELECT clock_timestamp()")
        await publisher.publish([message])
        # Others run meanwhile.
        ids = [await env.submit("noop") for _ in range(20)]
        assert await env.ended(*ids, deadline_seconds=10) == ["completed"] * 20
        (letter,) = await env.history.dead_letters(1)
        took = (await env.history.value("SELECT clock_timestamp()") - sent_at).total_seconds()
    assert [m.headers["x-tries"] for m in again.received if m.body["execution_id"] == NOTHING] == [29, 30]
    assert took >= 2
    assert (letter["code"], letter["tries"]) == ("unknown_execution", 30)
    assert "30 tries" in letter["error"]
    found = (letter["body"], letter["message_id"], letter["type"])
    assert found == (message.body, message.message_id, message.type)


async def test_a_forged_count_of_retries_does_not_add_retries(env: Environment) -> None:
    execution_id = await next_id(env)
    async with retries(env) as (publisher, again):
        await publisher.publish([completion(execution_id, headers={"x-tries": -1_000_000})])
        await again.until(lambda: len(again.received) > 0, "a try")
    assert again.received[0].headers["x-tries"] == 1
    # The completion is acknowledged once its execution has ended: none is left to the next tests.
    assert await env.submit("noop") == execution_id
    assert await env.ended(execution_id) == ["completed"]


async def test_a_flood_of_completions_of_unknown_executions_is_retried_in_bounded_number_and_stored(
    env: Environment,
) -> None:
    count = 1000
    flood = [completion(NOTHING + n, headers={"x-tries": 27}) for n in range(count)]
    async with retries(env) as (publisher, again):
        await publisher.publish(flood)
        assert await env.ended(await env.submit("noop")) == ["completed"]
        stored = (
            "SELECT count(*) = $2 FROM dead_letter WHERE message_id = ANY ($1) AND code = 'unknown_execution'"
        )
        ids = [message.message_id for message in flood]
        await env.history.until(stored, ids, count, deadline_seconds=60)
        await env.history.value("DELETE FROM dead_letter")
        # Without the bound each would be retried three times.
        assert len(again.received) < 2 * count


async def test_an_early_completion_in_a_flood_is_published_again_when_its_attempt_ends(
    env: Environment,
) -> None:
    execution_id = await env.submit("hold")
    await env.until_status(execution_id, "running")
    early = [completion(execution_id, headers={"x-tries": 29}) for _ in range(300)]
    async with publishing(env.amqp_url) as publisher:
        await publisher.publish(early)
    behind = await env.submit("noop")
    assert await env.ended(behind) == ["completed"]
    await env.cancel(execution_id)
    assert await env.ended(execution_id) == ["cancelled"]
    assert (await env.stats("hold"))["active_count"] == 0


def to_queue(message: Outgoing) -> Outgoing:
    """Return the message as a client sends it that publishes to the queue directly."""
    return replace(message, exchange="", routing_key=EXECUTOR_REQUESTS)


both_addresses = pytest.mark.parametrize(
    "publish", [lambda message: message, to_queue], ids=["by the exchange", "by the queue"]
)


async def early_cancels(env: Environment) -> int:
    return int(await env.history.value("SELECT count(*) FROM early_cancel"))


@both_addresses
async def test_a_cancel_that_comes_before_its_request_acts_within_a_tick_of_it(
    env: Environment, publish: Any
) -> None:
    key = str(uuid4())
    async with publishing(env.amqp_url) as publisher:
        await publisher.publish([publish(cancel_request({"idempotency_key": key, "reason": "too early"}))])
        await ask(env.amqp_url, lambda to: [noop_request(to)])
        execution_id = await env.submit("hold", idempotency_key=key)
    assert await env.ended(execution_id) == ["cancelled"]
    assert (await env.get(execution_id))["error"] == {"type": "Cancelled", "message": "too early"}
    assert len(await env.completions(execution_id)) >= 1
    assert await early_cancels(env) == 0


def noop_request(reply_to: str) -> Outgoing:
    """Return a request whose answer comes after all earlier messages were decided."""
    return request({"action_ref": "noop"}, reply_to=reply_to)


async def test_cancels_of_unknown_ids_pass_the_request_queue_once_and_others_are_admitted_meanwhile(
    env: Environment,
) -> None:
    flood = [cancel_request({"execution_id": NOTHING + n}) for n in range(FLOOD)]
    async with retries(env) as (publisher, again):
        await publisher.publish(flood)
        await ask(env.amqp_url, lambda to: [noop_request(to)])

        await env.history.until("SELECT count(*) = $1 FROM early_cancel", FLOOD)
        # Two rounds of the delay queue: no message of the flood is in flight any more.
        await asyncio.sleep(2.2)
        assert again.received == []
        ((kind, _),) = await ask(env.amqp_url, lambda to: [noop_request(to)])
    assert kind == "execution.accepted"
    await env.history.value("DELETE FROM early_cancel")


@both_addresses
async def test_a_cancel_of_an_unknown_execution_is_answered_and_a_dead_letter_after_its_time(
    env: Environment, publish: Any
) -> None:
    # An executor of an older version counted its tries, a second each: two are left.
    nothing = publish(cancel_request({"idempotency_key": "nothing"}, headers={"x-tries": 28, "mine": "m"}))
    sent_at = await env.history.value("SELECT clock_timestamp()")
    ((kind, answer),) = await ask(env.amqp_url, lambda to: [replace(nothing, reply_to=to)])
    took = (await env.history.value("SELECT clock_timestamp()") - sent_at).total_seconds()
    (letter,) = await env.history.dead_letters(1)
    assert (kind, answer["code"]) == ("execution.rejected", "unknown_execution")
    assert took >= 2
    assert letter["code"] == "unknown_execution"
    headers = json.loads(letter["headers"])
    assert (headers["mine"], headers["x-tries"]) == ("m", 28)
    assert letter["original_routing_key"] == nothing.routing_key
    found = (letter["body"], letter["message_id"], letter["type"])
    assert found == (nothing.body, nothing.message_id, nothing.type)
    # The row is deleted after the broker has confirmed the dead letter.
    await env.history.until("SELECT count(*) = 0 FROM early_cancel")
