"""Lists: pages that neither lose nor repeat, filters, and cursors that are checked."""

from typing import Any

import pytest

from tests.support.served import Served
from turnstile.executor.history import selects


@pytest.fixture
async def api(api: Served) -> Served:
    await api.define("a.b", max_concurrent=1, submitter_keys=True)
    await api.define("a.c", max_concurrent=1, submitter_keys=True)
    return api


async def pages(api: Served, path: str, **parameters: Any) -> list[list[Any]]:
    """Return the names or ids of each page."""
    found = await api.pages(path, **parameters)
    return [[item.get("ref", item.get("id")) for item in page] for page in found]


def flat(found: list[list[Any]]) -> list[Any]:
    return [item for page in found for item in page]


async def test_pages_run_from_the_newest_to_the_oldest(api: Served) -> None:
    assert await pages(api, "/executions") == [[]]
    ids = await api.submit_many("a.b", 7)
    assert await pages(api, "/executions", limit=3) == [ids[:3:-1], ids[3:0:-1], ids[:1]]
    assert await pages(api, "/executions", limit=7) == [ids[::-1]]
    assert await pages(api, "/executions") == [ids[::-1]]


async def test_pages_run_from_the_oldest_to_the_newest_whichever_rows_are_read(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.join()
    ids = await api.submit_many("a.b", 7)
    await api.start(ids[0])
    waiting = {"status": ["queued"]}
    oldest: dict[str, Any] = {"order": "oldest", "limit": 3}
    assert await pages(api, "/executions", **oldest) == [ids[:3], ids[3:6], ids[6:]]
    assert await pages(api, "/executions", **oldest, **waiting) == [ids[1:4], ids[4:]]
    assert await pages(api, "/executions", **oldest, status="running") == [ids[:1]]
    assert await pages(api, "/executions", **oldest, **waiting, action_ref="a.b") == [ids[1:4], ids[4:]]
    cursor = (await api.get("/executions", **oldest))["next_cursor"]
    assert (await api.http.get("/api/v1/executions", params={"cursor": cursor})).status_code == 422
    # What is read is bounded in this order too.
    monkeypatch.setattr(selects, "CANDIDATES_MAX", 4)
    assert await pages(api, "/executions", order="oldest", concurrency_key="none") == [[], []]


async def test_a_key_of_an_old_execution_is_found_at_once(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = (await api.submit("a.b", idempotency_key="once"))["id"]
    await api.submit_many("a.b", 6)
    # Far behind what one page reads.
    monkeypatch.setattr(selects, "CANDIDATES_MAX", 2)
    page = await api.get("/executions", idempotency_key="once")
    assert ([each["id"] for each in page["items"]], page["next_cursor"]) == ([keyed], None)
    assert (await api.get("/executions", idempotency_key="never"))["items"] == []
    assert (await api.get("/executions", idempotency_key="once", action_ref="a.c"))["items"] == []


async def test_a_page_reads_a_bounded_number_of_executions(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await api.submit_many("a.b", 10)
    monkeypatch.setattr(selects, "CANDIDATES_MAX", 4)
    assert await pages(api, "/executions", concurrency_key="none") == [[], [], []]
    found = await pages(api, "/executions", limit=3)
    assert flat(found) == ids[::-1]
    assert flat(await pages(api, "/executions", action_ref="a.b", limit=2)) == ids[::-1]


async def test_a_page_contains_a_bounded_number_of_bytes(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await api.submit_many("a.b", 5, parameters={"x": "y" * 1000})
    monkeypatch.setattr(selects, "PAGE_BYTES_MAX", 2500)
    assert [len(page) for page in await pages(api, "/executions")] == [2, 2, 1]
    monkeypatch.setattr(selects, "PAGE_BYTES_MAX", 10)
    assert flat(await pages(api, "/executions")) == ids[::-1]


INVALID = [
    ("limit=0", "invalid_message", "limit"),
    ("stauts=queued", "unknown_field", "stauts"),
    ("created_after=0001-01-01T00:00:00%2B14:00", "invalid_message", "created_after"),
    ("action_ref=%00", "invalid_message", "action_ref"),
    ("metadata=tenant", "invalid_message", "metadata"),
    ("cursor=YWN0aW9ucwphLmI", "invalid_message", "cursor"),
    ("cursor=ZXhlY3V0aW9ucwo5OTk5OTk5OTk5OTk5OTk5OTk5OTk5", "invalid_message", "cursor"),
]


async def test_an_invalid_parameter_is_refused_with_code_and_field(api: Served) -> None:
    for query, code, field in INVALID:
        answer = await api.http.get(f"/api/v1/executions?{query}")
        assert (answer.status_code, answer.json()["code"]) == (422, code), query
        assert field in answer.json()["detail"]


async def test_every_route_refuses_an_unknown_parameter(api: Served) -> None:
    document = (await api.http.get("/openapi.json")).json()
    routes = [
        (method, path)
        for path, methods in document["paths"].items()
        for method in methods
        if path.startswith("/api/v1/")
    ]
    assert len(routes) > 40
    hidden = [("get", "/metrics"), ("get", "/api/v1/metrics"), ("get", "/openapi.json")]
    former = [("get", path.removeprefix("/api/v1")) for _, path in routes if "/actions/{ref}/q" in path]
    bodies: dict[str, Any] = {
        "/api/v1/tokens": {"name": "a", "role": "read"},
        "/api/v1/executions": {"action_ref": "a.b"},
    }
    for method, path in (*routes, *hidden, *former):
        url = path.replace("{ref}", "a.b").replace("{execution_id}", "1").replace("{token_id}", "1")
        body = bodies.get(path, {"ids": ["1"]} if "dead-letters" in path else {"ids": [1]})
        if (path.endswith(("/cancel", "/retry")) and "{" in path) or method in ("put", "patch"):
            body = {}
        sent = None if method in ("get", "delete") else body
        answer = await api.http.request(method, url, params={"no_such": "1"}, json=sent)
        assert (answer.status_code, answer.json().get("code")) == (422, "unknown_field"), (method, path)
        assert answer.json()["detail"].startswith("no_such: no such parameter; "), answer.json()
    for prefix in ("", "/api/v1"):
        assert (await api.http.get(f"{prefix}/livez?no_such=1")).status_code == 200


async def test_a_parameter_that_takes_one_value_is_refused_when_it_is_given_twice(api: Served) -> None:
    answer = await api.http.get("/api/v1/executions?action_ref=a&action_ref=b")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_message")
    assert answer.json()["detail"] == "action_ref: given 2 times; it takes one value"
    for several in ("status=queued&status=running", "metadata=a:1&metadata=b:2"):
        assert (await api.http.get(f"/api/v1/executions?{several}")).status_code == 200


async def test_a_page_that_is_cut_says_how_far_it_has_searched(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await api.submit_many("a.b", 6)
    monkeypatch.setattr(selects, "CANDIDATES_MAX", 4)
    created_at = [(await api.get(f"/executions/{each}"))["created_at"] for each in ids]
    cut = await api.get("/executions", error="no such text")
    assert (cut["items"], cut["searched_until"]) == ([], created_at[2])
    last = await api.get("/executions", error="no such text", cursor=cut["next_cursor"])
    assert (last["next_cursor"], last["searched_until"]) == (None, None)
    full = await api.get("/executions", limit=2)
    assert (len(full["items"]), full["searched_until"]) == (2, None)
    assert full["next_cursor"] is not None
