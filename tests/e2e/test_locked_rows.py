"""P9: a row that another database session holds delays its own queue, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.environment import Environment, StartEnvironment
from tests.support.history import session_of, started_in
from tests.support.protocol import CREATE_QUEUES
from tests.support.traffic import cancel_request, publishing, request

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS = {
    "settings": {
        "TURNSTILE_WATCHDOG_INTERVAL": "500ms",
        "TURNSTILE_WORKER_CONCURRENCY": "100",
        "TURNSTILE_LEASE_DURATION": "20s",
        # Small, so that the deferred requests are more than one batch.
        "TURNSTILE_BATCH_MAX": "20",
    }
}
OTHERS = 8
BOUND_SECONDS = 20.0
"""Without isolation the others would not end before the lock does."""
QUEUE = "SELECT FROM action_queue q JOIN action a ON a.id = q.action_id WHERE a.ref = $1 FOR UPDATE OF q"
EXECUTION = "SELECT FROM execution WHERE id = $1 FOR UPDATE"
SLOT = "SELECT FROM slot WHERE execution_id = $1 FOR UPDATE"


@asynccontextmanager
async def locked(database_url: str, query: str, argument: Any) -> AsyncIterator[None]:
    """Hold a row from a session outside of the services."""
    async with session_of(database_url) as connection, connection.transaction():
        assert (await connection.execute(query, argument)) != "SELECT 0"
        yield


async def defined(env: Environment, name: str, function: str, **fields: Any) -> list[str]:
    """Define an action and others beside it, all with a queue."""
    refs = [f"{name}.{n}" for n in range(OTHERS + 1)]
    for ref in refs:
        await env.put(ref, entrypoint=f"tests.e2e.actions:{function}", max_concurrent=1, **fields)
    await env.history.value(
        CREATE_QUEUES.format(
            "SELECT a.id, '', a.max_concurrent, a.paused FROM action a WHERE a.ref = ANY ($1)"
        ),
        refs,
    )
    return refs


async def ended_of(env: Environment, refs: list[str], count: int) -> None:
    """Wait until `count` executions of each have ended and are settled."""
    query = (
        "SELECT count(*) = cardinality($1::text[])"
        " FROM turnstile.current_queue q JOIN action a ON a.id = q.action_id"
        " WHERE a.ref = ANY ($1) AND q.total_completed = $2"
    )
    await env.history.until(query, refs, count, deadline_seconds=BOUND_SECONDS)


async def until_all(env: Environment, ids: list[int], status: str) -> None:
    query = "SELECT bool_and(status::text = $2) FROM turnstile.current_execution WHERE id = ANY ($1)"
    await env.history.until(query, ids, status, deadline_seconds=BOUND_SECONDS)


async def count_of(env: Environment, ref: str) -> int:
    query = "SELECT count(*) FROM execution e JOIN action a ON a.id = e.action_id WHERE a.ref = $1"
    return int(await env.history.value(query, ref))


async def test_requests_behind_a_locked_queue_overtake_it_and_its_own_keep_their_order(
    env: Environment, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    held, *others = await defined(env, "sent", "record")
    mine = [{"action_ref": held, "parameters": {"file": str(file), "number": number}} for number in range(40)]
    theirs = [{"action_ref": ref, "parameters": {"file": str(tmp_path / "others")}} for ref in others]
    async with publishing(env.amqp_url) as publisher:
        async with locked(env.system.database_url, QUEUE, held):
            await publisher.publish([request(body) for body in [*mine[:30], *theirs]])
            await ended_of(env, others, 1)
            await publisher.publish([request(body) for body in [*mine[30:], *theirs]])
            await ended_of(env, others, 2)
            assert await count_of(env, held) == 0
        await publisher.publish([request({**mine[0], "parameters": {"file": str(file), "number": 40}})])
        await ended_of(env, [held], 41)
    assert started_in(file) == list(range(41))


async def test_over_http_a_locked_queue_is_unavailable_after_a_while_and_the_others_are_not(
    env: Environment,
) -> None:
    held, *others = await defined(env, "posted", "one")
    async with locked(env.system.database_url, QUEUE, held):
        refused, *accepted = await asyncio.gather(
            *(env.http.post("/executions", json={"action_ref": ref}) for ref in [held, *others])
        )
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert held in refused.json()["detail"]
        assert refused.headers["retry-after"]
        assert [answer.status_code for answer in accepted] == [202] * OTHERS
        both = await env.http.post("/executions", json=[{"action_ref": ref} for ref in (held, others[0])])
        assert [item.get("code") for item in both.json()["items"]] == ["unavailable", None]
        await ended_of(env, others[1:], 1)
        assert await count_of(env, held) == 0
    again = await env.http.post("/executions", json={"action_ref": held})
    assert again.status_code == 202
    await ended_of(env, [held], 1)


async def test_a_list_that_waits_for_a_lock_of_a_moment_is_admitted_in_its_order(
    env: Environment, tmp_path: Path
) -> None:
    file = tmp_path / "record.jsonl"
    held, other, *_ = await defined(env, "listed", "record")
    bodies = [{"action_ref": held, "parameters": {"file": str(file), "number": n}} for n in range(50)]
    passing = {"action_ref": other, "parameters": {"file": str(tmp_path / "other")}}
    async with locked(env.system.database_url, QUEUE, held):
        answering = asyncio.create_task(env.http.post("/executions", json=[*bodies, passing]))
        await ended_of(env, [other], 1)
    items = (await answering).json()["items"]
    ids = [item["id"] for item in items[:50]]
    assert ids == sorted(ids)
    await ended_of(env, [held], 50)
    assert started_in(file) == list(range(50))


@pytest.mark.parametrize("row", ["queue", "slot"])
async def test_completions_beside_a_locked_row_free_their_slots(
    env: Environment, tmp_path: Path, row: str
) -> None:
    gate = tmp_path / "gate"
    refs = await defined(env, f"ended.{row}", "gate")
    ids = await env.submit_many(
        [{"action_ref": ref, "parameters": {"file": str(gate)}} for ref in refs for _ in "ab"]
    )
    await until_all(env, ids[::2], "running")
    query, argument = (QUEUE, refs[0]) if row == "queue" else (SLOT, ids[0])
    async with locked(env.system.database_url, query, argument):
        gate.touch()
        await ended_of(env, refs[1:], 2)
        assert await env.status(ids[1]) == "queued"
    await ended_of(env, refs[:1], 2)


async def test_cancels_beside_a_locked_queue_are_done_and_its_own_follow(env: Environment) -> None:
    await env.register_silent_worker("unserved")
    refs = await defined(env, "stopped", "hold", pool="unserved")
    ids = await env.submit_many([{"action_ref": ref} for ref in refs for _ in "abc"])
    async with locked(env.system.database_url, QUEUE, refs[0]):
        refused = await env.http.post(f"/executions/{ids[0]}/cancel")
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        for execution_id in ids[3::3]:
            assert (await env.http.post(f"/executions/{execution_id}/cancel")).status_code == 202
        async with publishing(env.amqp_url) as publisher:
            wanted = [*ids[1::3], *ids[2::3]]
            await publisher.publish([cancel_request({"execution_id": i}) for i in wanted])
        others = [i for i in ids if i not in ids[:3]]
        await until_all(env, others, "cancelled")
        assert await env.status(ids[1]) == "queued"
    await until_all(env, ids[1:3], "cancelled")
    await env.cancel(ids[0])
    await env.ended(*ids)


async def test_sweeps_grant_wake_and_expire_beside_a_locked_queue(env: Environment) -> None:
    await env.register_silent_worker("unserved")
    refs = await defined(env, "swept", "hold", pool="unserved", paused=True)
    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    granted, woken, expired = [
        await env.submit_many([{"action_ref": ref, **fields} for ref in refs])
        for fields in ({}, {"run_at": soon}, {"ttl": "2s"})
    ]
    async with locked(env.system.database_url, QUEUE, refs[0]):
        await until_all(env, woken[1:], "queued")
        await until_all(env, expired[1:], "expired")
        # As if the executor that resumed them had died before it granted.
        await env.history.value(
            "WITH resumed AS (UPDATE action SET paused = false WHERE ref = ANY ($1) RETURNING id)"
            " UPDATE action_queue q SET paused = false FROM resumed r WHERE q.action_id = r.id",
            refs[1:],
        )
        await until_all(env, granted[1:], "scheduled")
        assert [await env.status(ids[0]) for ids in (granted, woken, expired)] == [
            "queued",
            "delayed",
            "queued",
        ]
    await until_all(env, woken[:1], "queued")
    await until_all(env, expired[:1], "expired")
    await env.patch(refs[0], paused=False)
    await until_all(env, granted[:1], "scheduled")
    await env.cancel(*granted, *woken)
    await env.ended(*granted, *woken, *expired)


async def test_a_locked_execution_delays_its_own_outcome_alone(env: Environment, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    refs = await defined(env, "head", "gate")
    body = {"parameters": {"file": str(gate)}}
    ids = await env.submit_many([{"action_ref": ref, **body} for ref in refs for _ in "ab"])
    await until_all(env, ids[::2], "running")
    async with locked(env.system.database_url, EXECUTION, ids[1]):
        gate.touch()
        await ended_of(env, refs[1:], 2)
        await ended_of(env, refs[:1], 1)
        async with publishing(env.amqp_url) as publisher:
            await publisher.publish([request({"action_ref": ref, **body}) for ref in refs])
        await ended_of(env, refs[1:], 3)
        assert await env.status(ids[1]) == "running"
    await ended_of(env, refs[:1], 3)
    assert await env.history.grant_order(refs[0]) == sorted(await env.history.grant_order(refs[0]))


async def test_a_limit_change_over_many_keys_stops_no_submit_and_outlives_its_executor(
    start_env: StartEnvironment, database_url: str
) -> None:
    async with start_env(workers=0, settings={"TURNSTILE_WATCHDOG_INTERVAL": "1h"}) as env:
        await env.register_silent_worker("unserved", 30_000)
        await env.put("many", max_concurrent=1, concurrency_key="/key", pool="unserved")
        await env.history.value(
            CREATE_QUEUES.format("SELECT a.id, n::text, 1, false FROM action a, generate_series(1, 20000) n")
        )
        async with locked(
            database_url, "SELECT FROM action_queue WHERE concurrency_key = $1 FOR UPDATE", "7"
        ):
            changing = asyncio.create_task(env.http.patch("/actions/many", json={"max_concurrent": 2}))
            async with asyncio.timeout(BOUND_SECONDS):
                for key in ("8", "a new one"):
                    await env.submit("many", parameters={"key": key})
                assert (await changing).status_code == 200
        limits = "SELECT count(*) FROM action_queue WHERE max_concurrent = $1"
        assert await env.history.value(limits, 1) > 0, "it was changed in one transaction"
        await env.executor.kill()
        await env.system.start_executor(TURNSTILE_WATCHDOG_INTERVAL="500ms")
        changed = "SELECT count(*) = 20001 FROM action_queue WHERE max_concurrent = 2"
        await env.history.until(changed, deadline_seconds=BOUND_SECONDS)
