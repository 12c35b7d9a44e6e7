"""P6 and P7 with real processes: what a dead worker held is run again, heads first."""

import asyncio
from pathlib import Path

from tests.support.environment import ACTIONS, StartEnvironment
from tests.support.history import runs_in

SHORT_LEASE = {"TURNSTILE_LEASE_DURATION": "3s", "TURNSTILE_HEARTBEAT_INTERVAL": "1s"}
# The health of the database is checked more often than that, or each tick would seem to be an outage.
SLOW_WATCHDOG = {**SHORT_LEASE, "TURNSTILE_WATCHDOG_INTERVAL": "1500ms"}
KILL_AND_OK = [{"action_ref": "scripted", "parameters": {"steps": [step]}} for step in ("KILL", "OK")]


async def test_a_killed_worker_that_held_messages_with_several_offers_loses_none_of_them(
    start_env: StartEnvironment, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    parameters = [{"file": str(file), "number": n, "seconds": 1} for n in range(96)]
    settings = SLOW_WATCHDOG | {"TURNSTILE_WORKER_CONCURRENCY": "32", "TURNSTILE_DISPATCH_TIMEOUT": "1h"}
    async with start_env(settings=settings) as env:
        await env.patch("record", max_concurrent=None)
        # The watchdog has seen the worker, and offers share messages.
        await asyncio.sleep(2)
        ids = await env.submit_many([{"action_ref": "record", "parameters": p} for p in parameters])
        await env.history.until("SELECT count(*) = 32 FROM slot WHERE claimed_at IS NOT NULL")
        await asyncio.gather(env.worker.kill(), env.start_worker())
        assert set(await env.ended(*ids)) == {"completed"}
    assert {line.number for line in runs_in(file) if line.event == "stop"} == {*range(96)}


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
        await asyncio.gather(env.worker.kill(), env.start_worker())
        # The same five, heads first, and none of those behind them.
        await env.until_running(ids[:5], attempt=2)
        took_seconds = await env.history.value(
            "SELECT extract(epoch FROM max(t.ended_at) - min(w.renewed_at))::float8"
            " FROM turnstile.ended_attempt t"
            " JOIN worker w ON w.id = t.worker_id WHERE t.outcome = 'reclaimed'"
        )
        await env.stop_running()
    assert lease_seconds <= took_seconds < 2 * (lease_seconds + 2 * tick_seconds)
