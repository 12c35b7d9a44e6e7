"""P6 and P7 with real processes: what a dead worker held is run again, heads first."""

import asyncio
from pathlib import Path

import httpx

from tests.support.history import history_of, physical
from tests.support.processes import running
from tests.support.traffic import until

SHORT_LEASE = {"TURNSTILE_LEASE_DURATION": "3s", "TURNSTILE_HEARTBEAT_INTERVAL": "1s"}
# The health of the database is looked at more often than that, or each tick would seem to be an outage.
SLOW_WATCHDOG = {**SHORT_LEASE, "TURNSTILE_WATCHDOG_INTERVAL": "1500ms"}


async def test_the_work_of_a_killed_worker_goes_back_to_the_head_and_is_run_again(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    body = [
        {
            "action_ref": "record",
            "parameters": {"file": str(file), "number": n, "seconds": 3 if n == 0 else 0},
        }
        for n in range(5)
    ]
    async with (
        running(database_url, amqp_url, settings=SLOW_WATCHDOG) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
    ):
        ids = [item["id"] for item in (await http.post("/executions", json=body)).json()["items"]]

        async def head_runs() -> bool:
            return bool(await history.value("SELECT status = 'running' FROM execution WHERE id = $1", ids[0]))

        await until(head_runs, "the head runs")
        await asyncio.gather(system.workers[0].kill(), system.start_worker("tests.e2e.actions"))
        await history.ended(5)
        outcomes = await history.rows(
            "SELECT attempt, outcome FROM attempt WHERE execution_id = $1 ORDER BY 1", ids[0]
        )
    assert [(row["attempt"], row["outcome"]) for row in outcomes] == [(1, "reclaimed"), (2, "completed")]
    assert [line.number for line in physical(file) if line.event == "stop"] == [0, 1, 2, 3, 4]


async def test_an_execution_that_kills_its_workers_ends_abandoned_and_frees_its_slot(
    database_url: str, amqp_url: str
) -> None:
    async with (
        running(database_url, amqp_url, workers=0, settings=SHORT_LEASE) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
    ):
        worker = await system.start_worker("tests.e2e.actions")
        assert (
            await http.patch("/actions/scripted", json={"max_concurrent": 1, "max_reclaims": 1})
        ).status_code == 200
        steps = [{"action_ref": "scripted", "parameters": {"steps": [step]}} for step in ("KILL", "OK")]
        ids = [item["id"] for item in (await http.post("/executions", json=steps)).json()["items"]]
        for _ in range(2):
            await asyncio.wait_for(worker.process.wait(), 30)
            # It may die of it again before anybody sees it ready.
            worker = await system.launch_worker("tests.e2e.actions")
        await history.ended(2)
        first, second = [(await http.get(f"/executions/{i}")).json() for i in ids]
    assert first["status"] == "abandoned"
    assert first["error"]["type"] == "WorkerLost"
    assert second["status"] == "completed"


async def test_a_worker_that_was_given_up_stops_its_work_and_serves_on_under_a_new_id(
    database_url: str, amqp_url: str
) -> None:
    async with (
        running(database_url, amqp_url, settings=SHORT_LEASE) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
    ):
        execution_id = (await http.post("/executions", json={"action_ref": "hold"})).json()["id"]

        async def runs_as(attempt: int) -> bool:
            query = "SELECT status = 'running' AND attempt = $2 FROM execution WHERE id = $1"
            return bool(await history.value(query, execution_id, attempt))

        await until(lambda: runs_as(1), "the first attempt runs")
        await history.value("UPDATE worker SET lost_at = clock_timestamp()")
        await until(lambda: runs_as(2), "the second attempt runs")
        assert (await http.post(f"/executions/{execution_id}/cancel")).status_code == 202
        await history.ended(1)
        attempts = await history.rows("SELECT worker_id, outcome FROM attempt ORDER BY attempt")
    # Whoever notices first takes the work back: the watchdog, or the worker itself.
    assert attempts[0]["outcome"] in ("reclaimed", "handed_back")
    assert attempts[1]["outcome"] == "cancelled"
    assert attempts[0]["worker_id"] != attempts[1]["worker_id"]


async def test_all_that_a_killed_worker_ran_is_back_within_its_lease_and_a_tick_heads_first(
    database_url: str, amqp_url: str
) -> None:
    lease_seconds, tick_seconds = 2.0, 0.25
    settings = {
        "TURNSTILE_LEASE_DURATION": f"{lease_seconds}s",
        "TURNSTILE_HEARTBEAT_INTERVAL": "500ms",
        "TURNSTILE_WATCHDOG_INTERVAL": f"{tick_seconds}s",
    }
    async with (
        running(database_url, amqp_url, settings=settings) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
    ):
        assert (await http.patch("/actions/hold", json={"max_concurrent": 5})).status_code == 200
        answer = await http.post("/executions", json=[{"action_ref": "hold"}] * 8)
        ids = [item["id"] for item in answer.json()["items"]]

        async def run_as(attempt: int) -> bool:
            rows = await history.rows(
                "SELECT id FROM execution WHERE status = 'running' AND attempt = $1 ORDER BY id", attempt
            )
            return [row["id"] for row in rows] == ids[:5]

        await until(lambda: run_as(1), "five run")
        await asyncio.gather(system.workers[0].kill(), system.start_worker("tests.e2e.actions"))
        # The same five, heads first, and none of those behind them.
        await until(lambda: run_as(2), "the same five run again")
        took_seconds = await history.value(
            "SELECT extract(epoch FROM max(t.ended_at) - min(w.renewed_at))::float8 FROM attempt t"
            " JOIN worker w ON w.id = t.worker_id WHERE t.outcome = 'reclaimed'"
        )
        await asyncio.gather(*(http.post(f"/executions/{i}/cancel") for i in ids))
        await history.ended(8)
    assert lease_seconds <= took_seconds < 2 * (lease_seconds + 2 * tick_seconds)


async def test_what_must_not_run_twice_is_abandoned_with_its_worker(database_url: str, amqp_url: str) -> None:
    async with (
        running(database_url, amqp_url, settings=SHORT_LEASE) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
    ):
        definition = {"max_concurrent": 1, "on_worker_lost": "abandon"}
        assert (await http.patch("/actions/scripted", json=definition)).status_code == 200
        steps = [{"action_ref": "scripted", "parameters": {"steps": [step]}} for step in ("KILL", "OK")]
        ids = [item["id"] for item in (await http.post("/executions", json=steps)).json()["items"]]
        await asyncio.wait_for(system.workers[0].process.wait(), 30)
        await system.start_worker("tests.e2e.actions")
        await history.ended(2)
        first, second = [(await http.get(f"/executions/{i}")).json() for i in ids]
    assert (first["status"], first["attempt"], second["status"]) == ("abandoned", 1, "completed")
    assert [attempt["outcome"] for attempt in first["attempts"]] == ["abandoned"]
