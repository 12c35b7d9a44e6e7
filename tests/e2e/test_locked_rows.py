"""P9: a row that another database session holds delays its own queue, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from tests.support.history import history_of, physical
from tests.support.processes import running
from tests.support.stage import Stage, repairs_of_counters
from tests.support.traffic import cancel_request, publishing, request, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

STAGE = {
    "settings": {
        "TURNSTILE_WATCHDOG_INTERVAL": "500ms",
        "TURNSTILE_WORKER_CONCURRENCY": "100",
        "TURNSTILE_LEASE_DURATION": "20s",
        # Small, so that what is kept aside is more than one batch.
        "TURNSTILE_BATCH_MAX": "20",
    }
}
OTHERS = 20
BOUND_SECONDS = 20.0
"""Generous: without an end to the lock, none of the others would ever come to its end."""
QUEUE = "SELECT FROM action_queue q JOIN action a ON a.id = q.action_id WHERE a.ref = $1 FOR UPDATE OF q"
EXECUTION = "SELECT FROM execution WHERE id = $1 FOR UPDATE"
SLOT = "SELECT FROM slot WHERE execution_id = $1 FOR UPDATE"


@asynccontextmanager
async def locked(database_url: str, query: str, argument: Any) -> AsyncIterator[None]:
    """Hold a row from a session that is none of ours."""
    connection = await asyncpg.connect(database_url)
    try:
        async with connection.transaction():
            assert (await connection.execute(query, argument)) != "SELECT 0"
            yield
    finally:
        await connection.close()


async def defined(stage: Stage, name: str, function: str, **fields: Any) -> list[str]:
    """Define an action, first, and others beside it; all with a queue."""
    refs = [f"{name}.{n}" for n in range(OTHERS + 1)]
    for ref in refs:
        await stage.put(ref, entrypoint=f"tests.e2e.actions:{function}", max_concurrent=1, **fields)
    await stage.history.value(
        "INSERT INTO action_queue (action_id, max_concurrent, paused)"
        " SELECT a.id, a.max_concurrent, a.paused FROM action a WHERE a.ref = ANY ($1)",
        refs,
    )
    return refs


async def ended_of(stage: Stage, refs: list[str], count: int) -> None:
    """Wait until so many executions of each have ended and were settled."""
    query = (
        "SELECT count(*) FROM action_queue q JOIN action a ON a.id = q.action_id"
        " WHERE a.ref = ANY ($1) AND q.total_completed = $2"
    )

    async def have() -> bool:
        return bool(await stage.history.value(query, refs, count) == len(refs))

    await until(have, f"{count} ends of {refs[0]} and others", deadline_seconds=BOUND_SECONDS)


async def stand(stage: Stage, ids: list[int], status: str) -> None:
    query = "SELECT count(*) FROM execution WHERE id = ANY ($1) AND status::text = $2"

    async def do() -> bool:
        return bool(await stage.history.value(query, ids, status) == len(ids))

    await until(do, f"{len(ids)} are {status}", deadline_seconds=BOUND_SECONDS)


async def count_of(stage: Stage, ref: str) -> int:
    query = "SELECT count(*) FROM execution e JOIN action a ON a.id = e.action_id WHERE a.ref = $1"
    return int(await stage.history.value(query, ref))


async def test_requests_behind_a_locked_queue_pass_it_and_its_own_keep_their_order(
    stage: Stage, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    held, *others = await defined(stage, "sent", "record")
    mine = [{"action_ref": held, "parameters": {"file": str(file), "number": number}} for number in range(40)]
    theirs = [{"action_ref": ref, "parameters": {"file": str(tmp_path / "others")}} for ref in others]
    async with publishing(stage.amqp_url) as publisher:
        async with locked(stage.system.database_url, QUEUE, held):
            await publisher.publish([request(body) for body in [*mine[:30], *theirs]])
            await ended_of(stage, others, 1)
            await publisher.publish([request(body) for body in [*mine[30:], *theirs]])
            await ended_of(stage, others, 2)
            assert await count_of(stage, held) == 0
        await publisher.publish([request({**mine[0], "parameters": {"file": str(file), "number": 40}})])
        await ended_of(stage, [held], 41)
    assert [line.number for line in physical(file) if line.event == "start"] == list(range(41))


async def test_over_http_a_locked_queue_is_unavailable_after_a_while_and_the_others_are_not(
    stage: Stage,
) -> None:
    held, *others = await defined(stage, "posted", "one")
    async with locked(stage.system.database_url, QUEUE, held):
        refused, *accepted = await asyncio.gather(
            *(stage.http.post("/executions", json={"action_ref": ref}) for ref in [held, *others])
        )
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert held in refused.json()["detail"]
        assert refused.headers["retry-after"]
        assert [answer.status_code for answer in accepted] == [202] * OTHERS
        both = await stage.http.post("/executions", json=[{"action_ref": ref} for ref in (held, others[0])])
        assert [item.get("code") for item in both.json()["items"]] == ["unavailable", None]
        await ended_of(stage, others[1:], 1)
        assert await count_of(stage, held) == 0
    again = await stage.http.post("/executions", json={"action_ref": held})
    assert again.status_code == 202
    await ended_of(stage, [held], 1)


async def test_a_list_that_waits_for_a_lock_of_a_moment_is_admitted_in_its_order(
    stage: Stage, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    held, other, *_ = await defined(stage, "listed", "record")
    bodies = [{"action_ref": held, "parameters": {"file": str(file), "number": n}} for n in range(50)]
    passing = {"action_ref": other, "parameters": {"file": str(tmp_path / "other")}}
    async with locked(stage.system.database_url, QUEUE, held):
        answering = asyncio.create_task(stage.http.post("/executions", json=[*bodies, passing]))
        await ended_of(stage, [other], 1)
    items = (await answering).json()["items"]
    ids = [item["id"] for item in items[:50]]
    assert ids == sorted(ids)
    await ended_of(stage, [held], 50)
    assert [line.number for line in physical(file) if line.event == "start"] == list(range(50))


@pytest.mark.parametrize("row", ["queue", "slot"])
async def test_completions_beside_a_locked_row_free_their_slots(
    stage: Stage, tmp_path: Path, row: str
) -> None:
    gate = tmp_path / "gate"
    refs = await defined(stage, f"ended.{row}", "gate")
    ids = await stage.submit_many(
        [{"action_ref": ref, "parameters": {"file": str(gate)}} for ref in refs for _ in "ab"]
    )
    await stand(stage, ids[::2], "running")
    query, argument = (QUEUE, refs[0]) if row == "queue" else (SLOT, ids[0])
    async with locked(stage.system.database_url, query, argument):
        gate.touch()
        await ended_of(stage, refs[1:], 2)
        assert await stage.status(ids[1]) == "queued"
    await ended_of(stage, refs[:1], 2)


async def test_cancels_beside_a_locked_queue_are_done_and_its_own_follow(stage: Stage) -> None:
    refs = await defined(stage, "stopped", "hold", pool="nobody")
    ids = await stage.submit_many([{"action_ref": ref} for ref in refs for _ in "abc"])
    async with locked(stage.system.database_url, QUEUE, refs[0]):
        refused = await stage.http.post(f"/executions/{ids[0]}/cancel")
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        for execution_id in ids[3::3]:
            assert (await stage.http.post(f"/executions/{execution_id}/cancel")).status_code == 202
        async with publishing(stage.amqp_url) as publisher:
            wanted = [*ids[1::3], *ids[2::3]]
            await publisher.publish([cancel_request({"execution_id": i}) for i in wanted])
        others = [i for i in ids if i not in ids[:3]]
        await stand(stage, others, "cancelled")
        assert await stage.status(ids[1]) == "queued"
    await stand(stage, ids[1:3], "cancelled")
    await stage.cancel(ids[0])
    await stage.ended(*ids)


async def test_sweeps_grant_wake_and_expire_beside_a_locked_queue(stage: Stage) -> None:
    refs = await defined(stage, "swept", "hold", pool="nobody", paused=True)
    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    granted, woken, expired = [
        await stage.submit_many([{"action_ref": ref, **fields} for ref in refs])
        for fields in ({}, {"run_at": soon}, {"ttl": "2s"})
    ]
    async with locked(stage.system.database_url, QUEUE, refs[0]):
        await stand(stage, woken[1:], "queued")
        await stand(stage, expired[1:], "expired")
        # As if whoever resumed them had died before it granted.
        await stage.history.value(
            "WITH resumed AS (UPDATE action SET paused = false WHERE ref = ANY ($1) RETURNING id)"
            " UPDATE action_queue q SET paused = false FROM resumed r WHERE q.action_id = r.id",
            refs[1:],
        )
        await stand(stage, granted[1:], "scheduled")
        assert [await stage.status(ids[0]) for ids in (granted, woken, expired)] == [
            "queued",
            "delayed",
            "queued",
        ]
    await stand(stage, woken[:1], "queued")
    await stand(stage, expired[:1], "expired")
    await stage.patch(refs[0], paused=False)
    await stand(stage, granted[:1], "scheduled")
    await stage.cancel(*granted, *woken)
    await stage.ended(*granted, *woken, *expired)


async def test_a_locked_execution_holds_up_its_own_queue_alone(stage: Stage, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    refs = await defined(stage, "head", "gate")
    body = {"parameters": {"file": str(gate)}}
    ids = await stage.submit_many([{"action_ref": ref, **body} for ref in refs for _ in "ab"])
    await stand(stage, ids[::2], "running")
    async with locked(stage.system.database_url, EXECUTION, ids[1]):
        gate.touch()
        await ended_of(stage, refs[1:], 2)
        await ended_of(stage, refs[:1], 1)
        async with publishing(stage.amqp_url) as publisher:
            await publisher.publish([request({"action_ref": ref, **body}) for ref in refs])
        await ended_of(stage, refs[1:], 3)
        assert await stage.status(ids[1]) == "queued"
    await ended_of(stage, refs[:1], 3)
    assert await stage.history.grant_order(refs[0]) == sorted(await stage.history.grant_order(refs[0]))


async def test_a_limit_change_over_many_keys_stops_no_submit_and_outlives_its_executor(
    database_url: str, amqp_url: str
) -> None:
    settings = {"TURNSTILE_WATCHDOG_INTERVAL": "1h"}
    async with (
        running(database_url, amqp_url, workers=0, settings=settings) as system,
        history_of(database_url) as history,
        httpx.AsyncClient(base_url=f"{system.http_url}/api/v1", timeout=30) as http,
    ):
        body = {"max_concurrent": 1, "concurrency_key": "/key", "pool": "nobody"}
        assert (await http.put("/actions/many", json=body)).status_code == 200
        await history.value(
            "INSERT INTO action_queue (action_id, concurrency_key, max_concurrent)"
            " SELECT a.id, n::text, 1 FROM action a, generate_series(1, 20000) n"
        )
        async with locked(
            database_url, "SELECT FROM action_queue WHERE concurrency_key = $1 FOR UPDATE", "7"
        ):
            changing = asyncio.create_task(http.patch("/actions/many", json={"max_concurrent": 2}))
            async with asyncio.timeout(BOUND_SECONDS):
                for key in ("8", "a new one"):
                    asked = {"action_ref": "many", "parameters": {"key": key}}
                    assert (await http.post("/executions", json=asked)).status_code == 202
                assert (await changing).status_code == 200
        limits = "SELECT count(*) FROM action_queue WHERE max_concurrent = $1"
        assert await history.value(limits, 1) > 0, "it was changed in one transaction"
        await system.executors[0].kill()
        await system.start_executor(TURNSTILE_WATCHDOG_INTERVAL="500ms")

        async def all_changed() -> bool:
            return bool(await history.value(limits, 2) == 20_001)

        await until(all_changed, "the new limit of every queue", deadline_seconds=BOUND_SECONDS)
        assert await history.faults() == []
        assert repairs_of_counters(system) == []
