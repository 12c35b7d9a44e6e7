"""P2 with real processes: slots are granted in order of arrival."""

import asyncio
from pathlib import Path

import httpx

from tests.e2e.history import history_of, most_running_at_once, physical
from tests.e2e.processes import running
from tests.e2e.traffic import submit


async def test_a_thousand_requests_from_eight_clients_start_in_order_of_arrival(
    database_url: str, amqp_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    async with running(database_url, amqp_url, workers=2) as system, history_of(database_url) as history:
        del system

        async def client(number: int) -> None:
            bodies = [
                {"action_ref": "record", "parameters": {"file": str(file), "client": number, "number": n}}
                for n in range(125)
            ]
            await submit(amqp_url, bodies)

        await asyncio.gather(*(client(number) for number in range(8)))
        await history.ended(1000, deadline_seconds=110)
        granted = await history.grant_order("record")
    lines = physical(file)
    started = [line for line in lines if line.event == "start"]
    assert granted == sorted(granted)
    assert [line.execution_id for line in started] == granted
    for number in range(8):
        assert [line.number for line in started if line.client == number] == list(range(125))
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
            "parameters": {"file": str(file), "number": n, "seconds": 1.0 if n == 0 else 0},
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
