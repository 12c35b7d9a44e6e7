"""The page of one worker, and what an execution says of workers that it needs."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest

from tests.integration.executor.page_counts import cost_of
from tests.support.inbox import ScriptedWorker
from tests.support.served import Served, serve
from tests.support.traffic import until
from turnstile.executor.queries.worker_reader import _STATEMENTS

ABOUT = {"host": "host", "pid": 7, "version": "1.2.3", "drain_seconds": 30.0, "stop_grace_seconds": 5.0}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Served]:
    async with serve(database_url) as served:
        await served.define("a.b", max_concurrent=2, pool="default")
        served.join(actions=("a.b",), about={**ABOUT, "start_notes": []})
        await until_state(served, served.worker, "live")
        yield served


async def until_state(api: Served, worker: ScriptedWorker, state: str) -> dict[str, Any]:
    async def is_there() -> bool:
        answer = await api.http.get(f"/api/v1/workers/{worker.worker_id}")
        return answer.is_success and answer.json()["state"] == state

    await until(is_there, f"{worker.name} is {state}", deadline_seconds=20)
    return await api.get(f"/workers/{worker.worker_id}")


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_a_worker_shows_what_it_runs_serves_and_said_at_its_start(api: Served) -> None:
    second = api.new_worker("noisy")
    second.hello(about={**ABOUT, "start_notes": ["WARNING one", "ERROR two"]}, pools=("other",))
    first, _ = await api.submit_many("a.b", 2)
    await api.start(first)
    shown = await api.get(f"/workers/{api.worker.worker_id}")
    assert [(run["id"], run["action_ref"], run["attempt"]) for run in shown["runs"]] == [(first, "a.b", 1)]
    assert (shown["running"], shown["concurrency"], shown["version"]) == (1, 4, "1.2.3")
    assert (shown["name"], shown["host"], shown["pid"]) == ("w", "host", 7)
    (pool,) = shown["pool_capacities"]
    assert (pool["pool"], pool["capacity"], pool["held"]) == ("default", 4, 2)
    assert [(each["action_ref"], each["max_concurrent"]) for each in shown["actions"]] == [("a.b", 2)]
    assert (shown["failures"], shown["start_notes"]) == ([], [])
    assert (await until_state(api, second, "live"))["start_notes"] == ["WARNING one", "ERROR two"]
    assert (await api.get(f"/workers/{second.worker_id}"))["actions"] is None


async def test_its_failed_attempts_are_shown_the_last_first(api: Served) -> None:
    for execution_id in await api.submit_many("a.b", 2):
        await api.run(execution_id, "failed")
    failures = (await api.get(f"/workers/{api.worker.worker_id}"))["failures"]
    assert [failure["execution_id"] for failure in failures] == [2, 1]
    assert failures[0]["error"] == {"type": "Broken", "message": "it broke"}


async def test_a_name_finds_the_worker_that_is_there_and_then_the_last_one(api: Served) -> None:
    gone = api.new_worker("w")
    gone.hello(about=ABOUT)
    await until_state(api, gone, "live")
    gone.leave()
    await until_state(api, gone, "stopped")
    assert (await api.get("/workers/w"))["id"] == api.worker.worker_id
    api.worker.leave()
    stopped = await until_state(api, api.worker, "stopped")
    assert stopped["stopped_at"] is not None
    assert (await api.get("/workers/w"))["id"] == gone.worker_id
    missing = await api.http.get("/api/v1/workers/unknown")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


async def test_workers_are_listed_by_state_and_page_the_newest_first(api: Served) -> None:
    others = [api.new_worker(name) for name in ("x", "y")]
    for worker in others:
        worker.hello(about=ABOUT)
        await until_state(api, worker, "live")
    others[0].leave()
    await until_state(api, others[0], "stopped")
    pages = await api.pages("/workers", limit=1)
    assert [item["name"] for page in pages for item in page] == ["y", "x", "w"]
    for states, names in ((["stopped"], ["x"]), (["live", "draining"], ["y", "w"]), (["lost"], [])):
        assert [item["name"] for item in (await api.get("/workers", state=states))["items"]] == names


async def test_a_drain_shows_its_progress_and_its_deadline(api: Served) -> None:
    first, second = await api.submit_many("a.b", 2)
    await api.start(first, second)
    url = f"/workers/{api.worker.worker_id}"
    assert (await api.get(url))["draining_until"] is None
    assert (await api.http.post(f"/api/v1{url}/drain")).status_code == 202
    api.worker.end(first)
    await api.until_status(first, "completed")
    shown = await api.get(url)
    assert (shown["state"], shown["running"], shown["draining_count"]) == ("draining", 1, 2)
    seconds = (_instant(shown["draining_until"]) - _instant(shown["draining_at"])).total_seconds()
    assert seconds == pytest.approx(30, abs=0.01)


async def test_what_is_gone_is_not_drained(api: Served) -> None:
    api.worker.leave()
    await until_state(api, api.worker, "stopped")
    answer = await api.http.post(f"/api/v1/workers/{api.worker.worker_id}/drain")
    assert (answer.status_code, answer.json()["code"]) == (409, "already_terminal")
    assert answer.json()["worker_state"] == "stopped"
    for unknown in ("unknown", "a%00"):
        answer = await api.http.post(f"/api/v1/workers/{unknown}/drain")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def lost(api: Served) -> tuple[ScriptedWorker, list[int]]:
    """Return a worker that was lost, and what it held: the first had started."""
    worker = api.new_worker("short")
    worker.hello(about=ABOUT, pools=("short",), concurrency=4, lease_seconds=0.5)
    await api.define("short", max_concurrent=4, pool="short")
    ids = await api.submit_many("short", 2)
    await until(lambda: set(ids) <= worker.offered.keys(), "it has both")
    worker.start(ids[0])
    await until_state(api, worker, "lost")
    return worker, ids


async def test_a_lost_worker_shows_what_it_held_and_whether_that_had_started(api: Served) -> None:
    worker, (first, second) = await lost(api)

    async def is_gone() -> bool:
        return (await api.get(f"/workers/{worker.worker_id}"))["lost_at"] is not None

    await until(is_gone, "its row says so")
    shown = await api.get(f"/workers/{worker.worker_id}")
    assert (shown["held_count"], shown["held_ids"]) == (2, [first, second])
    assert [(each["id"], each["started_at"] is not None, each["status"]) for each in shown["held"]] == [
        (first, True, "queued"),
        (second, False, "queued"),
    ]
    (listed,) = (await api.get("/workers", state="lost"))["items"]
    assert listed["held_ids"] == [first, second]


async def test_a_loss_is_acknowledged_once_and_recorded(api: Served) -> None:
    worker, _ = await lost(api)
    url = f"/api/v1/workers/{worker.worker_id}"

    async def is_acknowledged() -> bool:
        return (await api.http.post(f"{url}/acknowledge")).status_code == 200

    await until(is_acknowledged, "it is acknowledged")
    at = (await api.get(f"/workers/{worker.worker_id}"))["acknowledged_at"]
    again = await api.http.post(f"{url}/acknowledge")
    assert (again.status_code, again.json()["acknowledged_at"]) == (200, at)
    recorded = (await api.get("/audit-log", subject_kind="worker"))["items"]
    assert [(each["verb"], each["subject"]) for each in recorded] == [("acknowledged", worker.worker_id)]
    # It may have been cut off only, and joins again.
    worker.hello(about=ABOUT)
    assert (await until_state(api, worker, "live"))["acknowledged_at"] is None


async def test_only_a_lost_worker_is_acknowledged(api: Served) -> None:
    answer = await api.http.post(f"/api/v1/workers/{api.worker.worker_id}/acknowledge")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_terminal")
    assert answer.json()["worker_state"] == "live"
    answer = await api.http.post("/api/v1/workers/unknown/acknowledge")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_what_a_worker_says_is_bounded(api: Served) -> None:
    chatty = api.new_worker("chatty")
    chatty.hello(about={"start_notes": ["x" * 1000] * 60, "pid": "x", "drain_seconds": "long"})
    shown = await until_state(api, chatty, "live")
    assert (len(shown["start_notes"]), len(shown["start_notes"][0])) == (50, 500)
    assert (shown["host"], shown["pid"], shown["version"]) == ("", 0, None)


async def test_a_live_worker_says_with_each_heartbeat_why_it_can_start_nothing(api: Served) -> None:
    async def renew(not_ready: str | None, shown: str | None) -> None:
        api.worker.heartbeat(not_ready=not_ready, is_taking=not_ready is None)

        async def is_shown() -> bool:
            (listed,) = (await api.get("/workers"))["items"]
            found = await api.get(f"/workers/{api.worker.worker_id}")
            return (found["state"], found["not_ready"], listed["not_ready"]) == ("live", shown, shown)

        await until(is_shown, "it is shown", deadline_seconds=10)

    assert (await api.get(f"/workers/{api.worker.worker_id}"))["not_ready"] is None
    await renew("broker: refused", "broker: refused")
    await renew("x" * 1000, "x" * 500)
    await renew(None, None)


async def test_while_no_executor_leads_the_rows_say_which_workers_there_are(api: Served) -> None:
    (first,) = await api.submit_many("a.b", 1)
    await api.start(first)
    await api.leader.kill()
    (listed,) = (await api.get("/workers"))["items"]
    assert (listed["state"], listed["running"], listed["version"]) == ("live", 1, "1.2.3")
    shown = await api.get(f"/workers/{api.worker.worker_id}")
    assert [run["id"] for run in shown["runs"]] == [first]


async def test_nothing_of_a_worker_is_reclaimed_for_its_lease_while_the_leader_has_no_broker(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def promised(worker_id: str) -> float:
        answer = await api.http.post(f"/api/v1/workers/{worker_id}/no-reclaim")
        assert answer.status_code == 200, answer.text
        return float(answer.json()["seconds"])

    assert await promised(api.worker.worker_id) == 0
    monkeypatch.setattr(api.leader.broker, "is_open", False)
    assert await promised(api.worker.worker_id) == 60
    assert await promised("unknown") == 0
    assert await promised("a%00") == 0
    await api.leader.kill()
    answer = await api.http.post(f"/api/v1/workers/{api.worker.worker_id}/no-reclaim")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


async def test_lists_mark_the_runs_that_were_asked_to_stop_as_their_own_pages_do(api: Served) -> None:
    await api.define("a.b", max_concurrent=3, timeout=60)
    cancelled, late, running, waiting = [
        (await api.submit("a.b", **fields))["id"] for fields in ({}, {"timeout": "50ms"}, {}, {})
    ]
    await api.start(cancelled, late, running)

    async def is_late() -> bool:
        return (await api.get(f"/executions/{late}"))["stopping"] is not None

    await until(is_late, "it runs for too long", deadline_seconds=10)
    await api.http.post(f"/api/v1/executions/{cancelled}/cancel")
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
    api.worker.end(cancelled, "cancelled")
    await api.until_status(cancelled, "cancelled")
    assert await marks("/executions", "items", status="cancelled") == {cancelled: False}
    assert (await marks("/executions", "items"))[cancelled] is False


async def test_the_failures_of_a_worker_cost_no_more_with_a_longer_history(api: Served) -> None:
    session = api.installation.session
    await session.execute(
        "INSERT INTO ledger.execution (id, created_at, queued_at, scheduled_at, completed_at, request_hash,"
        " status, priority, action_ref, key, attempt, worker_id, error_type, error_message, parameters)"
        " SELECT n, now(), now(), now(), now(), gen_random_uuid(), 'failed', 3, 'a.b', '', 2, 'w' || n % 3,"
        " 'X', 'x', '{}' FROM generate_series(1, 60000) n"
    )
    await session.execute(
        "INSERT INTO ledger.attempt (execution_id, attempt, outcome, worker_id, scheduled_at, ended_at)"
        " SELECT id, 1, 'retried', worker_id, now(), now() FROM ledger.execution WHERE id % 2 = 0"
    )
    await session.execute("ANALYZE")
    async with session.transaction():
        await session.execute("SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL enable_seqscan = off")
        cost = await cost_of(session, session.fetch(_STATEMENTS["worker_failures"], "w1", None, 500, 20))
    assert cost.pages < 1000, cost
    assert not cost.full_scans.get("execution"), cost
