"""P2 with real processes: slots are granted in order of arrival."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from tests.support.history import history_of, most_running_at_once, physical
from tests.support.processes import running
from tests.support.sizes import sizes
from tests.support.stage import repairs_of_counters
from tests.support.tap import tapped
from tests.support.traffic import submit, until
from turnstile.common.messages import STATUS_CHANGED


@sizes("each", short=40, whole=125)
async def test_requests_from_eight_clients_start_in_order_of_arrival(
    database_url: str, amqp_url: str, tmp_path: Path, each: int
) -> None:
    file = tmp_path / "record.jsonl"
    async with running(database_url, amqp_url, workers=2) as system, history_of(database_url) as history:
        del system

        async def client(number: int) -> None:
            bodies = [
                {"action_ref": "record", "parameters": {"file": str(file), "client": number, "number": n}}
                for n in range(each)
            ]
            await submit(amqp_url, bodies)

        await asyncio.gather(*(client(number) for number in range(8)))
        await history.ended(8 * each, deadline_seconds=110)
        granted = await history.grant_order("record")
    lines = physical(file)
    started = [line for line in lines if line.event == "start"]
    assert granted == sorted(granted)
    assert [line.execution_id for line in started] == granted
    for number in range(8):
        assert [line.number for line in started if line.client == number] == list(range(each))
    assert most_running_at_once(lines) == 1


async def test_a_list_keeps_its_order(database_url: str, amqp_url: str, tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    body = [{"action_ref": "record", "parameters": {"file": str(file), "number": n}} for n in range(50)]
    async with running(database_url, amqp_url) as system, history_of(database_url) as history:
        async with httpx.AsyncClient() as http:
            answer = await http.post(f"{system.http_url}/api/v1/executions", json=body)
        items = answer.json()["items"]
        await history.ended(50)
    assert answer.status_code == 202
    assert [item["id"] for item in items] == sorted(item["id"] for item in items)
    assert [line.number for line in physical(file) if line.event == "start"] == list(range(50))


async def test_a_cancelled_head_middle_and_tail_leave_the_order_of_the_rest(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    body = [
        {
            "action_ref": "record",
            "parameters": {"file": str(file), "number": n, "seconds": 2.0 if n == 0 else 0},
        }
        for n in range(30)
    ]
    async with (
        running(database_url, amqp_url) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
    ):
        ids = [item["id"] for item in (await http.post("/executions", json=body)).json()["items"]]
        gone = {ids[1], ids[15], ids[29]}
        for execution_id in gone:
            answer = await http.post(f"/executions/{execution_id}/cancel", json={"reason": "not needed"})
            assert answer.status_code == 202
        await history.ended(30)
        cancelled = await history.value("SELECT count(*) FROM execution WHERE status = 'cancelled'")
    started = [line.execution_id for line in physical(file) if line.event == "start"]
    assert cancelled == 3
    assert started == [execution_id for execution_id in ids if execution_id not in gone]


async def test_a_delayed_execution_blocks_nobody_and_stands_by_its_ticket_when_due(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"

    def body(number: int, **fields: Any) -> dict[str, Any]:
        parameters = {"file": str(file), "number": number}
        return {"action_ref": "record", "parameters": parameters, **fields}

    async with (
        running(database_url, amqp_url) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
    ):
        due_at = datetime.now(UTC) + timedelta(seconds=4)
        delayed = body(0, run_at=due_at.isoformat())
        answer = await http.post("/executions", json=[delayed, body(1), body(2)])
        ids = [item["id"] for item in answer.json()["items"]]
        assert [item["status"] for item in answer.json()["items"]] == ["delayed", "scheduled", "queued"]
        await history.ended(2)
        assert await history.value("SELECT status::text FROM execution WHERE id = $1", ids[0]) == "delayed"
        # Its line is held until it is due, so that younger ones stand there before it.
        assert (await http.patch("/actions/record", json={"paused": True})).status_code == 200
        younger = await http.post("/executions", json=[body(3), body(4)])
        assert [item["position"] for item in younger.json()["items"]] == [1, 2]

        async def is_first() -> bool:
            return bool((await http.get(f"/executions/{ids[0]}")).json()["position"] == 1)

        await until(is_first, "its place at the head", deadline_seconds=10)
        assert (await http.patch("/actions/record", json={"paused": False})).status_code == 200
        await history.ended(5)
        woken_at = await history.value("SELECT queued_at FROM execution WHERE id = $1", ids[0])
        assert repairs_of_counters(system) == []
    assert woken_at >= due_at
    assert [line.number for line in physical(file) if line.event == "start"] == [1, 2, 0, 3, 4]


@sizes("leases", short=4, whole=10)
async def test_over_many_leases_a_run_keeps_its_slot_and_who_waits_is_never_timed_anew(
    database_url: str, amqp_url: str, tmp_path: Path, leases: int
) -> None:
    lease_seconds = 1.5
    settings = {
        "TURNSTILE_LEASE_DURATION": f"{lease_seconds}s",
        "TURNSTILE_HEARTBEAT_INTERVAL": "300ms",
        "TURNSTILE_WATCHDOG_INTERVAL": "200ms",
        "TURNSTILE_DISPATCH_TIMEOUT": "500ms",
        "TURNSTILE_SETTLE_TIMEOUT": "500ms",
    }
    file = tmp_path / "record.jsonl"
    body = {"action_ref": "record", "parameters": {"file": str(file), "seconds": leases * lease_seconds}}
    async with (
        running(database_url, amqp_url, settings=settings) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1") as http,
        tapped(amqp_url) as tap,
    ):
        ids = [item["id"] for item in (await http.post("/executions", json=[body] * 3)).json()["items"]]
        query = "SELECT created_at, queued_at, attempt FROM execution WHERE id = ANY ($1) ORDER BY id"
        # As if they had waited for an hour already.
        await history.value(
            "UPDATE execution SET queued_at = queued_at - interval '1 h' WHERE id = ANY ($1)", ids
        )
        before = await history.rows(query, ids[1:])
        await history.ended(1)
        assert await history.rows(query, ids[2:]) == before[1:]
        # The last first: the end of the one that runs would let the last start.
        for execution_id in reversed(ids[1:]):
            await http.post(f"/executions/{execution_id}/cancel")
        await history.ended(3)
        attempts = await history.rows("SELECT outcome FROM attempt WHERE execution_id = $1", ids[0])
        announced = [[m.body["status"] for m in tap.about(STATUS_CHANGED, i)] for i in ids]
    assert [row["outcome"] for row in attempts] == ["completed"]
    assert [statuses.count("queued") for statuses in announced] == [1, 1, 1]
    assert announced[2] == ["queued", "cancelled"]
    assert [line.execution_id for line in physical(file)][:2] == [ids[0]] * 2
