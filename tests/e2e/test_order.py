"""P2 with real processes: slots are granted in order of arrival.

Whole services: the order is that of the lines that actions write.
"""

import asyncio
from pathlib import Path

from tests.support.environment import StartEnvironment
from tests.support.history import peak_runs, runs_in
from tests.support.sizes import sizes
from tests.support.traffic import submit


@sizes("each", short=10, whole=125)
async def test_requests_from_eight_clients_start_in_order_of_arrival(
    start_env: StartEnvironment, tmp_path: Path, each: int
) -> None:
    file = tmp_path / "record.jsonl"
    async with start_env(workers=2) as env:

        async def client(number: int) -> None:
            parameters = [{"file": str(file), "client": number, "number": n} for n in range(each)]
            await submit(env.amqp_url, [{"action_ref": "record", "parameters": p} for p in parameters])

        await asyncio.gather(*(client(number) for number in range(8)))
        await env.history.ended(8 * each, deadline_seconds=110)
        granted = await env.history.grant_order("record")
    lines = runs_in(file)
    started = [line for line in lines if line.event == "start"]
    assert granted == sorted(granted)
    assert [line.execution_id for line in started] == granted
    for number in range(8):
        assert [line.number for line in started if line.client == number] == list(range(each))
    assert peak_runs(lines) == 1


@sizes("leases", short=4, whole=10)
async def test_over_many_leases_a_run_keeps_its_slot_and_a_waiting_execution_its_times(
    start_env: StartEnvironment, tmp_path: Path, leases: int
) -> None:
    lease_seconds = 1.5
    settings = {
        "TURNSTILE_LEASE_DURATION": f"{lease_seconds}s",
        "TURNSTILE_HEARTBEAT_INTERVAL": "300ms",
        "TURNSTILE_WATCHDOG_INTERVAL": "200ms",
    }
    file = tmp_path / "record.jsonl"
    body = {"action_ref": "record", "parameters": {"file": str(file), "seconds": leases * lease_seconds}}
    async with start_env(settings=settings) as env:
        ids = await env.submit_many([body] * 3)
        query = "SELECT created_at, queued_at, attempt FROM ledger.current_execution WHERE id = $1"
        before = await env.history.rows(query, ids[2])
        await env.history.ended(1)
        assert await env.history.rows(query, ids[2]) == before
        # The last first: the end of the one that runs would let the last start.
        await env.cancel(ids[2], ids[1])
        await env.history.ended(3)
        assert await env.attempts(ids[0]) == [(1, "completed")]
        announced = [
            await env.announced(execution_id, count)
            for execution_id, count in zip(ids, (4, 2, 2), strict=True)
        ]
    assert [statuses.count("queued") for statuses in announced] == [1, 1, 1]
    assert announced[2] == ["queued", "cancelled"]
    assert [line.execution_id for line in runs_in(file)][:2] == [ids[0]] * 2
