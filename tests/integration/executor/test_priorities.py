"""The priority of a request: kept, shown, filtered by, part of the request, and bounded by the action."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.support.served import Served
from turnstile.executor.api.paging import cursor_of

URL = "/api/v1/executions"


@pytest.fixture
async def api(api: Served) -> Served:
    await api.define("a.b", max_concurrent=1, runs=False)
    api.join()
    return api


def problem_of(answer: httpx.Response) -> tuple[int, str, str]:
    return answer.status_code, answer.json()["code"], answer.json()["detail"]


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
