"""The page of one worker, and what an execution says of workers that it needs."""

from collections.abc import AsyncIterator
from datetime import datetime

import pytest

from tests.integration.executor.page_counts import cost_of
from tests.support.protocol import Protocol
from tests.support.served import WORKER, Served, serve
from turnstile.executor.sql import query


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Served]:
    async with serve(database_url) as served:
        await served.define("a.b", max_concurrent=2, pool="default")
        await _register(served, WORKER, "render-1")
        yield served


async def _register(api: Served, worker_id: str, name: str, notes: list[str] | None = None) -> None:
    await api.database.fetch(
        "SELECT turnstile.register_worker($1, $2, 'host', 7, '{default}', 4, 60, '{a.b}', 1, '1.2.3', 30, 5,"
        " $3)",
        worker_id,
        name,
        notes,
    )


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_a_worker_shows_what_it_runs_serves_and_said_at_its_start(api: Served) -> None:
    await _register(api, "second", "noisy", ["WARNING one", "ERROR two"])
    first, _ = await api.submit_many("a.b", 2)
    await api.claim(first)
    shown = await api.get(f"/workers/{WORKER}")
    assert [(run["id"], run["action_ref"], run["attempt"]) for run in shown["runs"]] == [(first, "a.b", 1)]
    assert (shown["running"], shown["concurrency"], shown["version"]) == (1, 4, "1.2.3")
    assert [pool["pool"] for pool in shown["pool_capacities"]] == ["default"]
    assert [(each["action_ref"], each["max_concurrent"]) for each in shown["actions"]] == [("a.b", 2)]
    assert (shown["failures"], shown["start_notes"]) == ([], [])
    assert (await api.get("/workers/second"))["start_notes"] == ["WARNING one", "ERROR two"]


async def test_its_failed_attempts_are_shown_the_last_first(api: Served) -> None:
    for execution_id in await api.submit_many("a.b", 2):
        await api.claim(execution_id)
        await api.finish(execution_id, status="failed")
    failures = (await api.get(f"/workers/{WORKER}"))["failures"]
    assert [failure["execution_id"] for failure in failures] == [2, 1]
    assert failures[0]["error"] == {"type": "Broken", "message": "it broke"}


async def test_a_name_finds_the_worker_that_is_there_and_then_the_last_one(api: Served) -> None:
    await _register(api, "gone", "render-1")
    await api.database.fetch("SELECT turnstile.sign_off('gone')")
    assert (await api.get("/workers/render-1"))["id"] == WORKER
    await api.database.fetch("SELECT turnstile.sign_off($1)", WORKER)
    assert (await api.get("/workers/render-1"))["id"] == "gone"
    missing = await api.http.get("/api/v1/workers/nobody")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


async def test_a_drain_shows_its_progress_and_its_deadline(api: Served) -> None:
    first, second = await api.submit_many("a.b", 2)
    await api.claim(first)
    await api.claim(second)
    assert (await api.get(f"/workers/{WORKER}"))["draining_until"] is None
    await api.http.post(f"/api/v1/workers/{WORKER}/drain")
    await api.finish(first)
    shown = await api.get(f"/workers/{WORKER}")
    assert (shown["state"], shown["running"], shown["draining_count"]) == ("draining", 1, 2)
    seconds = await api.database.fetchval(
        "SELECT extract(epoch FROM $1::timestamptz - draining_at)::float FROM worker WHERE id = $2",
        _instant(shown["draining_until"]),
        WORKER,
    )
    assert seconds == pytest.approx(30, abs=0.01)


async def test_what_a_worker_says_is_bounded(api: Served) -> None:
    await _register(api, "chatty", "chatty", ["x" * 1000] * 60)
    notes = (await api.get("/workers/chatty"))["start_notes"]
    assert (len(notes), len(notes[0])) == (50, 500)


async def test_a_live_worker_says_with_each_heartbeat_why_it_can_start_nothing(api: Served) -> None:
    async def renew(not_ready: str | None) -> str | None:
        await api.database.fetch("SELECT turnstile.renew($1, 60, $2)", WORKER, not_ready)
        shown = await api.get(f"/workers/{WORKER}")
        (listed,) = (await api.get("/workers"))["items"]
        assert (shown["state"], listed["not_ready"]) == ("live", shown["not_ready"])
        reason: str | None = shown["not_ready"]
        return reason

    assert (await api.get(f"/workers/{WORKER}"))["not_ready"] is None
    assert await renew("broker: refused") == "broker: refused"
    assert await renew("x" * 1000) == "x" * 500
    assert await renew(None) is None


async def test_a_cancelled_run_says_since_when_it_stops_and_when_it_is_killed(api: Served) -> None:
    (first,) = await api.submit_many("a.b", 1)
    await api.claim(first)
    assert (await api.get(f"/executions/{first}"))["stopping"] is None
    await api.http.post(f"/api/v1/executions/{first}/cancel", json={"reason": "wrong month"})
    stopping = (await api.get(f"/executions/{first}"))["stopping"]
    assert (stopping["reason"], stopping["cancel_reason"]) == ("cancel", "wrong month")
    grace = _instant(stopping["kill_at"]) - _instant(stopping["since"])
    assert grace.total_seconds() == 5
    assert (await api.get(f"/workers/{WORKER}"))["runs"][0]["stopping"] == stopping
    await api.finish(first, status="cancelled")
    assert (await api.get(f"/executions/{first}"))["stopping"] is None


async def test_lists_mark_the_runs_that_were_asked_to_stop_as_their_own_pages_do(api: Served) -> None:
    await api.define("a.b", max_concurrent=3, timeout=60)
    cancelled, late, running, waiting = await api.submit_many("a.b", 4)
    for execution_id in (cancelled, late, running):
        await api.claim(execution_id)
    await api.http.post(f"/api/v1/executions/{cancelled}/cancel")
    await api.database.fetch(
        "UPDATE slot SET claimed_at = claimed_at - interval '1 hour' WHERE execution_id = $1", late
    )
    expected = {waiting: False, running: False, late: True, cancelled: True}

    async def marks(path: str, field: str, **query: str) -> dict[int, bool]:
        return {item["id"]: item["stopping"] for item in (await api.get(path, **query))[field]}

    assert await marks("/executions", "items") == expected
    held = {id_: is_stopping for id_, is_stopping in expected.items() if id_ != waiting}
    assert await marks("/executions", "items", status="running") == held
    assert await marks("/actions/a.b/queue", "holders") == held
    for execution_id, is_stopping in expected.items():
        shown = await api.get(f"/executions/{execution_id}")
        assert (shown["stopping"] is not None) == is_stopping
    # What has ended does not stop any more, also while it holds its slot.
    await api.finish(cancelled, status="cancelled")
    assert await marks("/executions", "items", status="cancelled") == {cancelled: False}
    assert (await marks("/executions", "items"))[cancelled] is False
    assert (await marks("/actions/a.b/queue", "holders"))[cancelled] is False


async def test_a_wait_for_holders_that_no_worker_can_run_names_the_cause(api: Served) -> None:
    ids = await api.submit_many("a.b", 3)
    waiting = (await api.get(f"/executions/{ids[2]}"))["waiting_on"]
    assert (waiting["reason"], waiting["root_cause"]) == ("limit", None)
    await api.database.fetch("SELECT turnstile.sign_off($1)", WORKER)
    waiting = (await api.get(f"/executions/{ids[2]}"))["waiting_on"]
    assert waiting["reason"] == "limit"
    assert waiting["root_cause"] == {
        "ids": ids[:2],
        "on": {"reason": "no_worker", "pool": "default", "other_pools": []},
    }


async def test_a_wait_behind_others_that_no_worker_can_run_names_the_cause(api: Served) -> None:
    await api.define("no.worker", max_concurrent=1, pool="nowhere")
    # As an executor notes when it counts the workers: then nothing of the action is granted.
    await api.database.fetch("UPDATE action SET served = false WHERE ref = 'no.worker'")
    ids = await api.submit_many("no.worker", 2)
    waiting = (await api.get(f"/executions/{ids[1]}"))["waiting_on"]
    assert (waiting["reason"], waiting["active_count"]) == ("limit", 0)
    assert waiting["root_cause"] == {
        "ids": [],
        "on": {"reason": "no_worker", "pool": "nowhere", "other_pools": []},
    }


async def test_a_wait_for_a_worker_names_the_pools_where_one_has_the_action(api: Served) -> None:
    await api.define("a.b", max_concurrent=2, pool="gpu")
    (waiting,) = await api.submit_many("a.b", 1)
    shown = (await api.get(f"/executions/{waiting}"))["waiting_on"]
    assert shown == {"reason": "no_worker", "pool": "gpu", "other_pools": ["default"]}
    await api.define("c.d", pool="gpu")
    (waiting,) = await api.submit_many("c.d", 1)
    shown = (await api.get(f"/executions/{waiting}"))["waiting_on"]
    assert shown == {"reason": "no_worker", "pool": "gpu", "other_pools": []}
    await api.database.fetch("UPDATE worker SET draining_at = now()")
    (waiting,) = await api.submit_many("a.b", 1)
    assert (await api.get(f"/executions/{waiting}"))["waiting_on"]["other_pools"] == []


async def test_the_failures_of_a_worker_cost_no_more_with_a_longer_history(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=1)
    await protocol.submit("a", 1)
    await protocol.connection.execute(
        "INSERT INTO execution (action_id, queue_id, status, request_hash, created_at, started_at,"
        " completed_at, worker_id, attempt, error_type, error_message)"
        " SELECT action_id, id, 'failed', gen_random_uuid(), now(), now(), now(), 'w' || n % 3, 1, 'X', 'x'"
        " FROM action_queue, generate_series(1, 60000) n"
    )
    await protocol.connection.execute(
        "INSERT INTO attempt (execution_id, attempt, worker_id, outcome, granted_at, started_at, ended_at,"
        " log) SELECT id, 1, worker_id, 'failed', now(), now(), now(), 'x' FROM execution WHERE id % 2 = 0"
        " AND completed_at IS NOT NULL"
    )
    await protocol.connection.execute("ANALYZE")
    async with protocol.transaction():
        await protocol.connection.execute(
            "SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL enable_seqscan = off"
        )
        statement = protocol.connection.fetch(query("worker_failures"), "w1", 500, 20)
        cost = await cost_of(protocol, statement)
    assert cost.pages < 1000, cost
    assert not cost.full_scans.get("execution"), cost
