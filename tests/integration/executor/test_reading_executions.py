"""`GET /executions/{id}`: where an execution stands, and why it waits."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.served import WORKER, Served, serve


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Served]:
    async with serve(database_url) as served:
        await served.define("a.b", max_concurrent=2)
        yield served


async def test_an_execution_is_shown_whole(api: Served) -> None:
    taken = await api.submit(
        "a.b", parameters={"x": [1, None]}, metadata={"m": "ü"}, idempotency_key="k", ttl="1h"
    )
    shown = await api.get(f"/executions/{taken['id']}")
    assert list(shown) == [
        "id", "action_ref", "concurrency_key", "idempotency_key", "status", "attempt", "parameters", "result",
        "error", "metadata", "worker_id", "created_at", "queued_at", "scheduled_at", "started_at",
        "completed_at", "run_at", "expires_at", "retry_of", "position", "queue_length", "waiting_on",
        "estimated_start", "attempts",
    ]  # fmt: skip
    assert shown["parameters"] == {"x": [1, None]}
    assert shown["metadata"] == {"m": "ü"}
    assert shown["idempotency_key"] == "k"
    assert (shown["status"], shown["attempt"], shown["result"], shown["error"]) == (
        "scheduled",
        1,
        None,
        None,
    )
    created, expires = (datetime.fromisoformat(shown[name]) for name in ("created_at", "expires_at"))
    assert expires - created == timedelta(hours=1)
    assert shown["created_at"].endswith("Z")


@pytest.mark.parametrize(("execution_id", "status"), [(4711, 404), (2**63 - 1, 404), (2**63, 422), (0, 422)])
async def test_an_unknown_execution_is_not_found(api: Served, execution_id: int, status: int) -> None:
    answer = await api.http.get(f"/api/v1/executions/{execution_id}")
    assert answer.status_code == status
    assert "execution_id" in answer.json()["detail"]


async def test_the_position_is_exact_and_the_limit_names_its_holders(api: Served) -> None:
    ids = await api.submit_many("a.b", 6)
    await api.http.post(f"/api/v1/executions/{ids[3]}/cancel")
    for position, execution_id in enumerate([ids[2], ids[4], ids[5]], start=1):
        shown = await api.get(f"/executions/{execution_id}")
        assert (shown["position"], shown["queue_length"]) == (position, 3)
        assert shown["waiting_on"] == {
            "reason": "limit",
            "max_concurrent": 2,
            "active_count": 2,
            "holders": ids[:2],
        }


async def test_a_limit_of_zero_is_named(api: Served) -> None:
    await api.define("a.b", max_concurrent=0)
    taken = await api.submit("a.b")
    shown = await api.get(f"/executions/{taken['id']}")
    assert shown["waiting_on"] == {"reason": "limit", "max_concurrent": 0, "active_count": 0, "holders": []}


async def test_a_pause_is_named(api: Served) -> None:
    await api.define("a.b", max_concurrent=2, paused=True)
    taken = await api.submit("a.b")
    assert (await api.get(f"/executions/{taken['id']}"))["waiting_on"] == {"reason": "paused"}


async def test_one_that_is_not_due_has_no_position(api: Served) -> None:
    run_at = datetime.now(UTC) + timedelta(hours=1)
    taken = await api.submit("a.b", run_at=run_at.isoformat())
    shown = await api.get(f"/executions/{taken['id']}")
    assert (shown["status"], shown["position"]) == ("delayed", None)
    assert shown["waiting_on"]["reason"] == "not_due"
    assert datetime.fromisoformat(shown["waiting_on"]["run_at"]) == run_at


async def test_a_granted_one_waits_for_a_worker_of_its_pool(api: Served) -> None:
    taken = await api.submit("a.b")
    path = f"/executions/{taken['id']}"
    assert (await api.get(path))["waiting_on"] == {"reason": "no_worker", "pool": "default"}
    await api.register_worker()
    assert (await api.get(path))["waiting_on"] == {"reason": "handing_over", "pool": "default"}
    await api.database.fetch("UPDATE worker SET draining_at = now()")
    assert (await api.get(path))["waiting_on"] == {"reason": "no_worker", "pool": "default"}


async def test_one_that_runs_waits_for_nothing_and_shows_its_attempt(api: Served) -> None:
    await api.register_worker()
    taken = await api.submit("a.b")
    await api.claim(taken["id"])
    shown = await api.get(f"/executions/{taken['id']}")
    assert (shown["status"], shown["waiting_on"], shown["worker_id"]) == ("running", None, WORKER)
    (attempt,) = shown["attempts"]
    assert attempt | {"granted_at": "", "started_at": ""} == {
        "attempt": 1, "worker_id": WORKER, "outcome": None, "error": None,
        "granted_at": "", "started_at": "", "ended_at": None,
    }  # fmt: skip
    assert attempt["started_at"].endswith("Z")


async def test_one_that_ended_shows_its_result_and_its_history(api: Served) -> None:
    await api.register_worker()
    taken = await api.submit("a.b")
    await api.claim(taken["id"])
    await api.finish(taken["id"], result='{"pages": 3}')
    for _ in range(2):
        shown = await api.get(f"/executions/{taken['id']}")
        assert (shown["status"], shown["result"], shown["position"]) == ("completed", {"pages": 3}, None)
        assert [a["outcome"] for a in shown["attempts"]] == ["completed"]
        assert shown["attempts"][0]["ended_at"] == shown["completed_at"]
        await api.settle(taken["id"])


async def test_one_that_failed_says_what_went_wrong(api: Served) -> None:
    await api.register_worker()
    taken = await api.submit("a.b")
    await api.claim(taken["id"])
    await api.finish(taken["id"], status="failed")
    shown = await api.get(f"/executions/{taken['id']}")
    assert shown["error"] == {"type": "Broken", "message": "it broke"}
    assert shown["attempts"][0]["error"] == shown["error"]
