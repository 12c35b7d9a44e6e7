"""P5 over plain restarts of our services: nothing is lost or doubled."""

import asyncio
import signal
from pathlib import Path

import httpx

from tests.support.history import history_of, physical
from tests.support.partition import ACTIONS, scene
from tests.support.processes import running
from tests.support.traffic import submit, until
from turnstile.common.lifecycle import EXIT_NOT_STOPPED

HASTE = {"TURNSTILE_DRAIN_TIMEOUT": "0s", "TURNSTILE_STOP_GRACE": "250ms"}


async def test_a_restarted_executor_loses_and_doubles_nothing(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    bodies = [{"action_ref": "record", "parameters": {"file": str(file), "number": n}} for n in range(300)]
    async with running(database_url, amqp_url) as system, history_of(database_url) as history:
        await submit(amqp_url, bodies)
        for _ in range(3):
            await asyncio.sleep(0.2)
            assert await system.executors[-1].stop() == 0
            await system.start_executor()
        await history.ended(300)
    assert [line.number for line in physical(file) if line.event == "start"] == list(range(300))


async def test_a_drained_worker_finishes_what_runs_and_gives_back_what_does_not_end(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    short = {"action_ref": "record", "parameters": {"file": str(file), "seconds": 1.0}}
    settings = {"TURNSTILE_DRAIN_TIMEOUT": "3s", "TURNSTILE_STOP_GRACE": "500ms"}
    async with (
        running(database_url, amqp_url, settings=settings) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
    ):
        answer = await http.post(
            "/executions", json=[short, {"action_ref": "scripted", "parameters": {"steps": ["HANG", "OK"]}}]
        )
        hanging = answer.json()["items"][1]["id"]

        async def both_run() -> bool:
            return bool(await history.value("SELECT count(*) = 2 FROM execution WHERE status = 'running'"))

        await until(both_run, "both run")
        system.workers[0].signal(signal.SIGTERM)
        assert await asyncio.wait_for(system.workers[0].process.wait(), 20) == 0
        assert (
            await history.value("SELECT status::text FROM execution WHERE id <> $1", hanging) == "completed"
        )
        await system.start_worker("tests.e2e.actions")
        await history.ended(2)
        attempts = await history.rows(
            "SELECT attempt, outcome FROM attempt WHERE execution_id = $1 ORDER BY 1", hanging
        )
    assert [(row["attempt"], row["outcome"]) for row in attempts] == [(1, "handed_back"), (2, "completed")]


async def test_a_drained_worker_ends_with_what_it_cannot_stop_and_only_then_that_runs_again(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with scene(database_url, amqp_url, tmp_path, worker_settings=HASTE) as here:
        ids = await here.start(["stubborn", "thread", "command"], seconds=[60.0, 0.1])
        await here.system.start_worker(ACTIONS)
        here.worker.signal(signal.SIGTERM)
        assert await asyncio.wait_for(here.worker.process.wait(), 20) == EXIT_NOT_STOPPED
        await here.history.ended(len(ids))
        for execution_id in ids:
            last = max(tick.at for tick in here.ticks([execution_id], attempt=1))
            assert last < min(tick.at for tick in here.ticks([execution_id], attempt=2))
        # A drain, not a loss: it counts against nobody's reclaims.
        assert await here.attempts(ids) == [(1, "handed_back"), (2, "completed")] * 3
        assert await here.history.value("SELECT count(*) FROM worker WHERE stopped_at IS NOT NULL") == 1
        log = here.worker.log.read_text()
    assert "not_stopped_in_time" in log
    assert f"executions={ids[0]},{ids[1]}" in log


async def test_a_worker_that_an_operator_drains_ends_with_what_it_cannot_stop(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with scene(database_url, amqp_url, tmp_path, worker_settings=HASTE) as here:
        ids = await here.start(["stubborn"], seconds=[60.0, 0.1])
        worker_id = await here.history.value("SELECT id FROM worker")
        assert (await here.http.post(f"/workers/{worker_id}/drain")).is_success
        assert await asyncio.wait_for(here.worker.process.wait(), 20) == EXIT_NOT_STOPPED
        assert await here.attempts(ids) == [(1, "handed_back")]


async def test_a_second_signal_ends_a_worker_at_once_whatever_it_runs(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    async with scene(database_url, amqp_url, tmp_path) as here:
        await here.start(["stubborn", "thread"], seconds=[60.0])
        here.worker.signal(signal.SIGTERM)

        async def drains() -> bool:
            return "draining" in here.worker.log.read_text()

        await until(drains, "the worker drains")
        here.worker.signal(signal.SIGTERM)
        # It would wait for 30 s, and then for ever.
        assert await asyncio.wait_for(here.worker.process.wait(), 10) == EXIT_NOT_STOPPED
