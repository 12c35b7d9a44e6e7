"""The routes of webhooks: lists by state, and replays with a result for each."""

from typing import Any

import pytest

from tests.support.served import Served

_ROWS = """
INSERT INTO ledger.webhook (execution_id, url, origin, due_at, created_at, state, ended_at, last_status)
SELECT e.id, e.callback_url, '', now(), now(), s.state, CASE WHEN s.state <> 'pending' THEN now() END, 500
FROM ledger.execution e JOIN unnest($1::bigint[], $2::text[]) s(id, state) ON s.id = e.id
"""


@pytest.fixture
async def api(api: Served) -> Served:
    await api.define("a")
    return api


async def webhooks(api: Served, *states: str) -> list[int]:
    ids = await api.submit_many("a", len(states), callback_url="https://example.org/hook")
    await api.database.fetch(_ROWS, ids, list(states))
    return ids


async def listed(api: Served, **parameters: Any) -> list[int]:
    found, cursor = [], None
    while True:
        page = await api.get("/webhooks", **parameters, **({"cursor": cursor} if cursor else {}))
        found += [item["execution_id"] for item in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            return found


async def replay(api: Served, body: Any) -> tuple[int, dict[str, Any]]:
    answer = await api.http.post("/api/v1/webhooks/replay", json=body)
    return answer.status_code, answer.json()


async def test_webhooks_are_listed_by_state_the_newest_first_in_pages(api: Served) -> None:
    assert await listed(api) == []
    ids = await webhooks(api, "failed", "pending", "delivered", "failed", "pending")
    assert await listed(api, limit=2) == ids[::-1]
    assert await listed(api, limit=1, state="failed") == [ids[3], ids[0]]
    assert await listed(api, limit=2, state=["pending", "failed"]) == [ids[4], ids[3], ids[1], ids[0]]
    first = (await api.get("/webhooks", limit=1))["items"][0]
    assert (first["action_ref"], first["url"], first["state"]) == ("a", "https://example.org/hook", "pending")
    assert (first["last_status"], first["execution_status"]) == (500, "queued")


async def test_a_dry_run_counts_what_a_replay_reports_for_each_webhook_and_changes_nothing(
    api: Served,
) -> None:
    failed, pending, delivered, other = await webhooks(api, "failed", "pending", "delivered", "failed")
    named = {"ids": [failed, pending, delivered, 999]}
    result = {"refused": [{"id": pending, "reason": "it is pending"}], "missing": [999]}
    assert await replay(api, {**named, "dry_run": True}) == (200, {"done": 0, **result, "left": 2})
    for _ in range(2):
        planned = await replay(api, {"all": True, "limit": 1, "dry_run": True})
        assert planned == (200, {"done": 0, "refused": [], "missing": [], "left": 2})
    assert await listed(api, state="pending") == [pending]
    assert (await api.get("/audit-log", subject_kind="webhook"))["items"] == []

    assert await replay(api, named) == (200, {"done": 2, **result, "left": 1})
    assert await listed(api, state="failed") == [other]
    assert await replay(api, {"all": True}) == (200, {"done": 1, "refused": [], "missing": [], "left": 0})


async def test_an_unclear_replay_or_list_is_refused_with_the_remedy(api: Served) -> None:
    for body, code, says in [
        ({}, "invalid_message", "give exactly one of ids and all"),
        ({"ids": [1], "all": True}, "invalid_message", "give exactly one of ids and all"),
        ({"ids": [0]}, "invalid_message", "ids.0"),
        ({"ids": []}, "invalid_message", "ids"),
        ({"states": ["failed"]}, "unknown_field", "known are ids, all, limit, dry_run"),
        ([], "invalid_message", "not an object"),
    ]:
        status, problem = await replay(api, body)
        assert (status, problem["code"]) == (422, code), body
        assert says in problem["detail"]
    for query in "state=lost", "limit=0", "cursor=x", "status=failed":
        answer = await api.http.get(f"/api/v1/webhooks?{query}")
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
