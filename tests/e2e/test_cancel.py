"""Cancelling in every state, over HTTP and by message (P3, P6)."""

from collections.abc import Awaitable, Callable
from datetime import datetime

import pytest

from tests.support.environment import Environment
from tests.support.traffic import cancel_request, publishing, request

pytestmark = pytest.mark.asyncio(loop_scope="module")
GRACE_SECONDS = 1.0
OPTIONS = {
    "settings": {
        "TURNSTILE_WATCHDOG_INTERVAL": "250ms",
        "TURNSTILE_LEASE_DURATION": "2s",
        "TURNSTILE_HEARTBEAT_INTERVAL": "500ms",
        "TURNSTILE_STOP_GRACE": f"{GRACE_SECONDS}s",
    },
}


async def by_http(env: Environment, execution_id: int) -> None:
    await env.cancel(execution_id, reason="enough")


async def by_message(env: Environment, execution_id: int) -> None:
    async with publishing(env.amqp_url) as publisher:
        await publisher.publish([cancel_request({"execution_id": execution_id, "reason": "enough"})])


Way = Callable[[Environment, int], Awaitable[None]]
WAYS: list[Way] = [by_http, by_message]


async def seconds_until_ended(env: Environment, execution_id: int, since: datetime) -> float:
    await env.ended(execution_id)
    seconds: float = await env.history.value(
        "SELECT extract(epoch FROM completed_at - $2)::float8 FROM ledger.execution WHERE id = $1",
        execution_id,
        since,
    )
    return seconds


async def now(env: Environment) -> datetime:
    instant: datetime = await env.history.value("SELECT clock_timestamp()")
    return instant


@pytest.mark.parametrize("way", WAYS)
async def test_a_waiting_execution_is_cancelled_within_a_second_and_never_starts(
    env: Environment, way: Way
) -> None:
    key = way.__name__
    head, waiting = [
        await env.submit("retried", concurrency_key=key, parameters={"steps": ["HANG"]}) for _ in "ab"
    ]
    await env.until_status(head, "running")
    since = await now(env)
    await way(env, waiting)
    assert await seconds_until_ended(env, waiting, since) < 2
    await env.cancel(head)
    assert await env.ended(head, waiting) == ["cancelled"] * 2
    shown = await env.get(waiting)
    assert shown["error"] == {"type": "Cancelled", "message": "enough"}
    assert (shown["attempt"], shown["attempts"]) == (0, [])
    assert await env.announced(waiting, 2) == ["queued", "cancelled"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_running_execution_is_cancelled_within_the_grace_and_not_retried(
    env: Environment, way: Way
) -> None:
    execution_id = await env.submit("retried", parameters={"steps": ["HANG"]})
    await env.until_status(execution_id, "running")
    since = await now(env)
    await way(env, execution_id)
    assert await seconds_until_ended(env, execution_id, since) < 2 * (GRACE_SECONDS + 1)
    assert await env.attempts(execution_id) == [(1, "cancelled")]


async def test_a_cancel_of_an_id_out_of_range_is_refused_and_stops_no_other_request(env: Environment) -> None:
    async with publishing(env.amqp_url) as publisher:
        await publisher.publish([cancel_request({"execution_id": 2**63})])
        await publisher.publish([request({"action_ref": "noop", "idempotency_key": "behind"})])
        (letter,) = await env.history.dead_letters(1)
    assert letter["code"] == "invalid_message"
    query = "SELECT completed_at IS NOT NULL FROM ledger.execution WHERE idempotency_key = 'behind'"
    await env.history.until(query)
