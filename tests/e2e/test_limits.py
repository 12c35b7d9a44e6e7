"""P1 and P9 with real processes: the limit holds, and a full queue delays no other."""

import asyncio
from pathlib import Path

import httpx

from tests.support.history import History, history_of, most_running_at_once, physical
from tests.support.processes import running
from tests.support.sizes import sizes
from tests.support.traffic import submit, until


async def _limit(http: httpx.AsyncClient, ref: str, limit: int | None) -> None:
    answer = await http.patch(f"/actions/{ref}", json={"max_concurrent": limit})
    assert answer.status_code == 200, answer.text


@sizes("count", short=1_500, whole=5_000)
async def test_four_replicas_that_start_cold_into_a_full_queue_never_overshoot(
    database_url: str, amqp_url: str, tmp_path: Path, count: int
) -> None:
    one, seven = tmp_path / "one.jsonl", tmp_path / "seven.jsonl"
    bodies = [
        {"action_ref": "record", "parameters": {"file": str(one)}}
        if n % 10 == 0
        else {"action_ref": "record.seven", "parameters": {"file": str(seven)}}
        for n in range(count)
    ]
    async with (
        running(database_url, amqp_url, executors=0, workers=2) as system,
        history_of(database_url) as history,
    ):
        # Everything waits in the broker when the four start at once.
        await submit(amqp_url, bodies)
        await asyncio.gather(*(system.start_executor() for _ in range(4)))
        await history.ended(count, deadline_seconds=110)
        assert await history.most_at_once("record") == 1
        assert await history.most_at_once("record.seven") <= 7
        for ref in ("record", "record.seven"):
            granted = await history.grant_order(ref)
            assert granted == sorted(granted)
    assert most_running_at_once(physical(one)) == 1
    assert most_running_at_once(physical(seven)) <= 7


async def test_a_changed_limit_acts_at_once_and_kills_nothing(database_url: str, amqp_url: str) -> None:
    async with (
        running(database_url, amqp_url, settings={"TURNSTILE_WORKER_CONCURRENCY": "50"}) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
    ):
        await _limit(http, "hold", 10)
        answer = await http.post("/executions", json=[{"action_ref": "hold"}] * 40)
        ids = [item["id"] for item in answer.json()["items"]]
        await _running_is(history, ids[:10])
        await _limit(http, "hold", 2)
        await _running_is(history, ids[:10])
        # Eight end: two run on, and nothing is granted before fewer than two run.
        await _cancel(http, ids[:8])
        await _running_is(history, ids[8:10])
        await _cancel(http, ids[8:9])
        await _running_is(history, ids[9:11])
        await _limit(http, "hold", 10)
        await _running_is(history, ids[9:19])
        await _limit(http, "hold", 0)
        await _cancel(http, ids[9:19])
        await _running_is(history, [])
        assert (await http.get("/actions/hold/queue-stats")).json()["queue_length"] == 21
        await _limit(http, "hold", None)
        await _running_is(history, ids[19:])
        await _cancel(http, ids[19:])
        await history.ended(40)


async def _running_is(history: History, ids: list[int]) -> None:
    async def is_so() -> bool:
        rows = await history.rows("SELECT id FROM execution WHERE status = 'running' ORDER BY id")
        return [row["id"] for row in rows] == ids

    await until(is_so, f"running are {ids}", deadline_seconds=15)


async def _cancel(http: httpx.AsyncClient, ids: list[int]) -> None:
    answers = await asyncio.gather(*(http.post(f"/executions/{i}/cancel") for i in ids))
    assert {answer.status_code for answer in answers} <= {202}


async def test_the_limit_in_the_database_wins_over_what_a_worker_declares(
    database_url: str, amqp_url: str
) -> None:
    async with (
        running(database_url, amqp_url) as system,
        history_of(database_url),
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
    ):
        await _limit(http, "record", 3)
        worker = await system.start_worker("tests.e2e.actions")
        assert (await http.get("/actions/record")).json()["max_concurrent"] == 3
        log = worker.log.read_text()
    assert "action_differs" in log
    assert "max_concurrent" in log


@sizes("depth", short=20_000, whole=100_000)
async def test_a_full_and_very_deep_queue_delays_no_other(
    database_url: str, amqp_url: str, depth: int
) -> None:
    async with (
        running(database_url, amqp_url) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
    ):
        await _limit(http, "hold", 1)
        await submit(amqp_url, [{"action_ref": "hold"}] * depth)

        async def all_wait() -> bool:
            return bool((await http.get("/actions/hold/queue-stats")).json()["queue_length"] == depth - 1)

        await until(all_wait, f"{depth - 1} waiting", deadline_seconds=100)
        for number in range(20):
            body = {"action_ref": "noop", "parameters": {"number": number}}
            execution_id = (await http.post("/executions", json=body)).json()["id"]

            async def has_ended(execution_id: int = execution_id) -> bool:
                return bool((await http.get(f"/executions/{execution_id}")).json()["status"] == "completed")

            await until(has_ended, "the other queue's execution", deadline_seconds=2)
        last = await history.value("SELECT max(execution_id) FROM waiting")
        assert (await http.get(f"/executions/{last}")).json()["position"] == depth - 1
        await _limit(http, "hold", 0)
        head = await history.value("SELECT min(execution_id) FROM slot")
        await _cancel(http, [head])
        await _running_is(history, [])


async def test_executors_that_start_beside_a_full_queue_grant_nothing_before_a_real_end(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    doors = [tmp_path / f"door-{n}" for n in range(8)]
    bodies = [{"action_ref": "gate", "parameters": {"file": str(door)}} for door in doors]
    async with running(database_url, amqp_url) as system, history_of(database_url) as history:
        async with httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http:
            await _limit(http, "gate", 3)
            answer = await http.post("/executions", json=bodies)
            ids = [item["id"] for item in answer.json()["items"]]
        await _running_is(history, ids[:3])
        await system.executors[0].kill()
        await asyncio.gather(*(system.start_executor() for _ in range(2)))
        # They have looked at everything several times, and a request shows that they take new work.
        async with httpx.AsyncClient(base_url=f"{system.executors[-1].http_url}/api/v1") as http:
            await http.post("/executions", json={"action_ref": "noop"})
            await history.ended(1)
            assert (await http.get("/actions/gate/queue-stats")).json()["queue_length"] == 5
        await _running_is(history, ids[:3])
        for number, door in enumerate(doors):
            door.touch()
            await history.ended(number + 2)
        rows = await history.rows(
            "SELECT t.granted_at, t.ended_at FROM attempt t JOIN execution e ON e.id = t.execution_id"
            " JOIN action a ON a.id = e.action_id WHERE a.ref = 'gate' ORDER BY t.execution_id"
        )
        assert await history.most_at_once("gate") == 3
    # The n-th is granted after the end that made room for it: the doors open one by one.
    assert [
        row["granted_at"] > earlier["ended_at"] for earlier, row in zip(rows, rows[3:], strict=False)
    ] == [True] * 5
