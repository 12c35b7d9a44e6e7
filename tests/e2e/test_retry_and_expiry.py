"""Retries are counted, delayed and queued by id; what does not start within its time to live expires."""

from typing import Any

import pytest

from tests.support.environment import Environment

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPTIONS = {
    "settings": {
        "TURNSTILE_WATCHDOG_INTERVAL": "200ms",
        "TURNSTILE_WORKER_POOLS": "default",
        "TURNSTILE_STOP_GRACE": "300ms",
    }
}
TICK_SECONDS = 0.2
FLAKY = "tests.e2e.actions:scripted"
"""By its entrypoint, so that each test has an action with a policy of its own."""


async def define(env: Environment, ref: str, **fields: Any) -> None:
    await env.put(ref, entrypoint=FLAKY, **fields)


async def script(env: Environment, ref: str, *steps: str, **fields: Any) -> int:
    return await env.submit(ref, parameters={"steps": steps}, **fields)


async def waits_between(env: Environment, execution_id: int) -> list[float]:
    """Return the seconds from each attempt's end to the next one's grant."""
    rows = await env.history.rows(
        """
        SELECT extract(epoch FROM lead(scheduled_at) OVER (ORDER BY attempt) - ended_at)::float8 AS wait
        FROM (
            SELECT attempt, scheduled_at, ended_at FROM ledger.attempt WHERE execution_id = $1
            UNION ALL SELECT attempt, scheduled_at, completed_at FROM ledger.execution WHERE id = $1
        ) attempts ORDER BY attempt
        """,
        execution_id,
    )
    return [row["wait"] for row in rows[:-1]]


async def test_a_failure_is_retried_with_growing_delays_until_it_succeeds(env: Environment) -> None:
    retry = {"max_attempts": 4, "delay": "300ms", "factor": 2, "jitter": 0}
    await define(env, "grows", retry=retry)
    execution_id = await script(env, "grows", "FAIL", "FAIL", "FAIL", "OK")
    assert await env.ended(execution_id) == ["completed"]
    assert await env.attempts(execution_id) == [
        (1, "retried"),
        (2, "retried"),
        (3, "retried"),
        (4, "completed"),
    ]
    for planned, waited in zip((0.3, 0.6, 1.2), await waits_between(env, execution_id), strict=True):
        assert planned <= waited < planned + 2 * (TICK_SECONDS + 0.5)
    announced = await env.announced(execution_id, 16)
    assert announced[3:] == ["delayed", "queued", "scheduled", "running"] * 3 + ["completed"]


async def seconds_lived(env: Environment, execution_id: int) -> float:
    seconds: float = await env.history.value(
        "SELECT extract(epoch FROM completed_at - created_at)::float8 FROM ledger.execution WHERE id = $1",
        execution_id,
    )
    return seconds


async def test_an_unserved_execution_gives_the_reason_expires_with_a_clear_error_and_its_successor_runs(
    env: Environment,
) -> None:
    await env.put("lonely", pool="lonely", max_concurrent=1, entrypoint="tests.e2e.actions:noop")
    first = await env.submit("lonely", ttl="2s")
    second = await env.submit("lonely", parameters={"number": 7})
    assert (await env.get(first))["waiting_on"] == {
        "reason": "no_worker",
        "pool": "lonely",
        "other_pools": [],
    }
    waiting = (await env.get(second))["waiting_on"]
    assert (waiting["reason"], waiting["holders"]) == ("limit", [])
    assert await env.ended(first) == ["expired"]
    expired = await env.get(first)
    assert expired["error"]["type"] == "Expired"
    assert expired["error"]["message"].startswith("did not start within its time to live, which ended at 20")
    assert 2 <= await seconds_lived(env, first) < 4
    # It waited in its queue: the next one is first now, and runs as soon as a worker serves it.
    assert (await env.get(second))["waiting_on"]["reason"] == "no_worker"
    worker = await env.start_worker(TURNSTILE_WORKER_POOLS="lonely")
    assert await env.ended(second) == ["completed"]
    assert (await env.get(second))["result"] == 7
    await worker.stop()
