"""P6 and P7 with real processes: what a dead worker held is run again, heads first."""

import asyncio
import time

from tests.support.environment import ACTIONS, StartEnvironment

SHORT_LEASE = {"TURNSTILE_LEASE_DURATION": "3s", "TURNSTILE_HEARTBEAT_INTERVAL": "1s"}
KILL_AND_OK = [{"action_ref": "scripted", "parameters": {"steps": [step]}} for step in ("KILL", "OK")]


async def test_an_execution_that_kills_its_workers_ends_abandoned_and_frees_its_slot(
    start_env: StartEnvironment,
) -> None:
    async with start_env(settings=SHORT_LEASE) as env:
        await env.patch("scripted", max_concurrent=1, max_reclaims=1)
        ids, worker = await env.submit_many(KILL_AND_OK), env.worker
        for _ in range(2):
            await asyncio.wait_for(worker.process.wait(), 30)
            # It may be killed again before it is ready.
            worker = await env.system.launch_worker(ACTIONS)
        assert await env.ended(*ids) == ["abandoned", "completed"]
        assert (await env.get(ids[0]))["error"]["type"] == "WorkerLost"


async def test_the_work_of_a_killed_worker_runs_again_within_its_lease_and_a_tick_heads_first(
    start_env: StartEnvironment,
) -> None:
    lease_seconds, tick_seconds = 2.0, 0.25
    settings = {
        "TURNSTILE_LEASE_DURATION": f"{lease_seconds}s",
        "TURNSTILE_HEARTBEAT_INTERVAL": "500ms",
        "TURNSTILE_WATCHDOG_INTERVAL": f"{tick_seconds}s",
    }
    async with start_env(settings=settings) as env:
        await env.patch("hold", max_concurrent=5)
        ids = await env.submit_many([{"action_ref": "hold"}] * 8)
        await env.until_running(ids[:5], attempt=1)
        killed_at = time.time()
        await asyncio.gather(env.worker.kill(), env.start_worker())
        # The same five, heads first, and none of those behind them.
        await env.until_running(ids[:5], attempt=2)
        took_seconds = await env.history.value(
            "SELECT extract(epoch FROM max(ended_at) - to_timestamp($1))::float8 FROM ledger.attempt"
            " WHERE outcome = 'reclaimed'",
            killed_at,
        )
        await env.stop_running()
    # Its last heartbeat was at most an interval before.
    assert lease_seconds - 0.5 <= took_seconds < 2 * (lease_seconds + 2 * tick_seconds)
