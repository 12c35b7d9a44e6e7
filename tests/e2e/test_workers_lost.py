"""P6 and P7 with real processes: what a dead worker held is run again, heads first.

Whole services: workers are killed.
"""

import asyncio
import time

import pytest

from tests.support.environment import ACTIONS, Environment

pytestmark = pytest.mark.asyncio(loop_scope="module")
LEASE_SECONDS, TICK_SECONDS = 2.0, 0.25
OPTIONS = {
    "workers": 0,
    "settings": {
        "TURNSTILE_LEASE_DURATION": f"{LEASE_SECONDS}s",
        "TURNSTILE_HEARTBEAT_INTERVAL": "500ms",
        "TURNSTILE_WATCHDOG_INTERVAL": f"{TICK_SECONDS}s",
    },
}
KILL_AND_OK = [{"action_ref": "scripted", "parameters": {"steps": [step]}} for step in ("KILL", "OK")]


async def test_an_execution_that_kills_its_workers_ends_abandoned_and_frees_its_slot(
    env: Environment,
) -> None:
    worker = await env.start_worker()
    await env.patch("scripted", max_concurrent=1, max_reclaims=1)
    ids = await env.submit_many(KILL_AND_OK)
    for _ in range(2):
        await asyncio.wait_for(worker.process.wait(), 30)
        # It may be killed again before it is ready.
        worker = await env.system.launch_worker(ACTIONS)
    assert await env.ended(*ids) == ["abandoned", "completed"]
    assert (await env.get(ids[0]))["error"]["type"] == "WorkerLost"
    await worker.stop()


async def test_the_work_of_a_killed_worker_runs_again_within_its_lease_and_a_tick_heads_first(
    env: Environment,
) -> None:
    worker = await env.start_worker()
    await env.patch("hold", max_concurrent=5)
    ids = await env.submit_many([{"action_ref": "hold"}] * 8)
    await env.until_running(ids[:5], attempt=1)
    killed_at = time.time()
    _, other = await asyncio.gather(worker.kill(), env.start_worker())
    # The same five, heads first, and none of those behind them.
    await env.until_running(ids[:5], attempt=2)
    took_seconds = await env.history.value(
        "SELECT extract(epoch FROM max(ended_at) - to_timestamp($1))::float8 FROM ledger.attempt"
        " WHERE outcome = 'reclaimed' AND execution_id = ANY ($2)",
        killed_at,
        ids,
    )
    await env.stop_running()
    await other.stop()
    # Its last heartbeat was at most an interval before.
    assert LEASE_SECONDS - 0.5 <= took_seconds < 2 * (LEASE_SECONDS + 2 * TICK_SECONDS)
