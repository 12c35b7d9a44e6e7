"""The priority of a request: kept, shown, filtered by, part of the request, and bounded by the action."""

from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from tests.support.served import Served, serve
from turnstile.executor.api.paging import cursor_of
from turnstile.executor.settings import ExecutorSettings

URL = "/api/v1/executions"
SUBMITTER = {"Authorization": "Bearer submitting"}
OPERATOR = {"Authorization": "Bearer operating"}
INVALID: list[object] = [0, 6, -1, 2.5, "high", "2", True, False, None, [1], 2**70]
RANGE = "expected a whole number from 1 (first) to 5 (last)"


@pytest.fixture
async def api(api: Served) -> Served:
    await api.define("a.b", max_concurrent=1, runs=False)
    api.join()
    return api


@pytest.fixture
async def guarded(database_url: str) -> AsyncIterator[Served]:
    tokens = SecretStr("s:submit:submitting,o:operate:operating")
    async with serve(database_url, ExecutorSettings(api_tokens=tokens)) as served:
        await served.installation.define("action", "a.b", max_concurrent=1)
        yield served


async def bound(served: Served, smallest: int, ref: str = "a.b") -> None:
    """Set the smallest priority that submitters of an action may use."""
    path = f"/api/v1/actions/{ref}"
    answer = await served.http.patch(path, json={"priority_min": smallest}, headers=OPERATOR)
    assert answer.status_code == 200, answer.text


async def priority_of(served: Served, execution_id: int) -> int:
    shown = await served.http.get(f"{URL}/{execution_id}", headers=OPERATOR)
    return int(shown.json()["priority"])


def problem_of(answer: httpx.Response) -> tuple[int, str, str]:
    return answer.status_code, answer.json()["code"], answer.json()["detail"]


async def test_a_queue_is_listed_in_the_order_of_starts_over_all_pages(api: Served) -> None:
    await api.define("k.l", max_concurrent=0, submitter_keys=True)
    bodies = [(n, key) for n in (3, 5, 1, 3, 2, 1) for key in ("x", "y")]
    answer = await api.http.post(
        URL, json=[{"action_ref": "k.l", "priority": n, "concurrency_key": key} for n, key in bodies]
    )
    submitted = zip(bodies, (item["id"] for item in answer.json()["items"]), strict=True)
    expected = sorted((n, execution_id, key) for (n, key), execution_id in submitted)
    for key in (None, "x"):
        listed, positions = [], Counter[str]()
        pages = await api.pages("/actions/k.l/queue", limit=5, **({"concurrency_key": key} if key else {}))
        for item in (item for page in pages for item in page):
            listed.append((item["priority"], item["id"], item["concurrency_key"]))
            positions[item["concurrency_key"]] += 1
            assert item["position"] == positions[item["concurrency_key"]]
            assert (await api.get(f"/executions/{item['id']}"))["position"] == item["position"]
        assert listed == [each for each in expected if key in (None, each[2])]


async def test_a_cursor_that_no_queue_returned_is_refused(api: Served) -> None:
    for parts in ((0, 1), (6, 1), (10**18, 1), (7,), (1, 2, 3)):
        answer = await api.http.get("/api/v1/actions/a.b/queue", params={"cursor": cursor_of("line", *parts)})
        assert problem_of(answer)[:2] == (422, "invalid_message"), parts


async def test_lists_and_bulk_changes_are_filtered_by_priority(api: Served) -> None:
    urgent = await api.submit_many("a.b", 2, priority=1)
    usual = await api.submit_many("a.b", 2)
    late = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    delayed = (await api.submit("a.b", priority=1, run_at=late))["id"]
    await api.until_status(urgent[0], "scheduled")

    async def listed(**parameters: Any) -> list[int]:
        return [item["id"] for item in (await api.get("/executions", **parameters))["items"]]

    assert await listed(priority=1) == [delayed, *urgent[::-1]]
    assert await listed(priority=3, action_ref="a.b") == usual[::-1]
    assert await listed(priority=1, status=["scheduled", "delayed"]) == [delayed, urgent[0]]
    assert await listed(priority=1, status="completed") == []
    assert await listed(priority=5) == []
    outcome = await api.http.post(f"{URL}/cancel", json={"filter": {"priority": 1}, "dry_run": True})
    assert [item["id"] for item in outcome.json()["items"]] == [delayed, *urgent[::-1]]
    outcome = await api.http.post(f"{URL}/cancel", json={"filter": {"priority": 3}})
    assert outcome.json()["changed"] == 2
    assert await listed(status="cancelled") == usual[::-1]


async def test_an_invalid_priority_in_a_filter_is_refused_and_changes_nothing(api: Served) -> None:
    (one,) = await api.submit_many("a.b", 1, priority=1)
    for text in ("0", "6", "high", "true", "2.5", "null", "", "-1", "²", "1" * 5000):
        status, code, detail = problem_of(await api.http.get(URL, params={"priority": text}))
        assert (status, code) == (422, "invalid_message"), text
        assert f"priority: {RANGE}" in detail
    for verb in ("cancel", "retry"):
        for priority in (each for each in INVALID if each is not None):
            answer = await api.http.post(f"{URL}/{verb}", json={"filter": {"priority": priority}})
            assert problem_of(answer)[:2] == (422, "invalid_message"), priority
            assert f"filter.priority: {RANGE}" in answer.json()["detail"]
        # No condition at all, as for every field of a filter.
        answer = await api.http.post(f"{URL}/{verb}", json={"filter": {"priority": None}})
        assert problem_of(answer)[:2] == (422, "invalid_message")
    await api.until_status(one, "scheduled")


async def test_a_submitter_may_use_the_priorities_of_the_action_and_an_operator_all(guarded: Served) -> None:
    await bound(guarded, 2)
    body = {"action_ref": "a.b", "priority": 1}
    status, code, detail = problem_of(await guarded.http.post(URL, json=body, headers=SUBMITTER))
    assert (status, code) == (422, "invalid_parameters")
    assert detail.startswith("priority: 1 ")
    assert "2" in detail.removeprefix("priority: 1 ")
    assert "operate" in detail
    for headers, priority in ((SUBMITTER, 2), (SUBMITTER, 5), (OPERATOR, 1)):
        answer = await guarded.http.post(URL, json={**body, "priority": priority}, headers=headers)
        assert answer.status_code == 202, answer.text
        assert await priority_of(guarded, answer.json()["id"]) == priority
    items = (await guarded.http.post(URL, json=[body, {**body, "priority": 2}], headers=SUBMITTER)).json()[
        "items"
    ]
    assert [item.get("code") for item in items] == ["invalid_parameters", None]
    # Another action has its own bound.
    await guarded.installation.define("action", "c.d")
    free = await guarded.http.post(URL, json={**body, "action_ref": "c.d"}, headers=SUBMITTER)
    assert free.status_code == 202
