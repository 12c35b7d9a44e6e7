"""Actions over HTTP: define, change, pause, delete; each change is stored with its author."""

from typing import Any

import pytest

from tests.support.served import Served
from turnstile.executor.api.paging import cursor_of

URL = "/api/v1/actions/a.b"


@pytest.fixture
async def defined(api: Served) -> Served:
    await api.define("a.b", max_concurrent=2)
    api.join()
    return api


async def changes(api: Served, ref: str = "a.b") -> list[dict[str, Any]]:
    return list((await api.get(f"/actions/{ref}/changes"))["items"])


async def test_a_definition_comes_back_as_it_was_stored(api: Served) -> None:
    definition = {
        "runner": "command",
        "entrypoint": ["wc", "-w"],
        "max_concurrent": 2,
        "concurrency_key": "/a~1b/0",
        "timeout": "1m30s",
        "ttl": 5,
        "retry": {"max_attempts": 3, "delay": "500ms"},
        "on_worker_lost": "abandon",
        "runs": False,
        "pool": "gpu",
        "when_full": "reject",
        "max_queued": 10,
        "paused": True,
        "callback_url": "https://example.org/",
        "keep_for": "1h30m",
        "keep_count": 5,
    }
    answer = await api.http.put(URL, json=definition)
    assert answer.status_code == 200
    stored = answer.json()
    seconds = {"timeout": 90.0, "ttl": 5.0, "keep_for": 5400.0}
    assert stored | definition | seconds | {"retry": stored["retry"]} == stored
    assert stored["retry"] == {
        "max_attempts": 3, "delay": 0.5, "factor": 2.0, "max_delay": 300.0, "jitter": 0.1
    }  # fmt: skip
    assert stored["ref"] == "a.b"
    assert stored["updated_at"].endswith("Z")
    for path in (URL, "/actions/a.b"):
        assert (await api.http.get(path)).json() == stored
    (listed,) = (await api.get("/actions"))["items"]
    assert listed == {
        name: stored[name] for name in stored.keys() - {"code_schemas", "parameters_checked_by"}
    }


async def test_put_replaces_a_definition_and_patch_keeps_the_other_fields(api: Served) -> None:
    await api.http.put(
        URL, json={"max_concurrent": 2, "timeout": 5, "retry": {"max_attempts": 3, "delay": 2}}
    )
    changed = (await api.http.patch(URL, json={"max_concurrent": 4, "retry": {"delay": 9}})).json()
    assert (changed["max_concurrent"], changed["timeout"]) == (4, 5.0)
    assert (changed["retry"]["max_attempts"], changed["retry"]["delay"]) == (3, 9.0)
    unlimited = (await api.http.patch(URL, json={"max_concurrent": None, "runs": False})).json()
    assert (unlimited["max_concurrent"], unlimited["runs"]) == (None, False)
    replaced = (await api.http.put(URL, json={})).json()
    assert (replaced["timeout"], replaced["retry"]["max_attempts"], replaced["runs"]) == (None, 1, True)


async def test_an_invalid_definition_is_refused_and_changes_nothing(api: Served) -> None:
    before = (await api.http.put(URL, json={"max_concurrent": 2})).json()
    for body, status, code, field in (
        (b"", 422, "invalid_message", "body"),
        (b'{"max_concurent": 1}', 422, "unknown_field", "max_concurent"),
        (b'{"ref": "c.d"}', 422, "invalid_message", "ref"),
        (b'{"runner": "command"}', 422, "invalid_message", "entrypoint"),
        (b'{"pool": "' + b"x" * 70_000 + b'"}', 413, "too_large", "body"),
    ):
        for method in ("PUT", "PATCH"):
            answer = await api.http.request(method, URL, content=body)
            assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
            assert field in answer.json()["detail"]
    assert (await api.http.get(URL)).json() == before


async def test_an_unknown_action_is_not_found(api: Served) -> None:
    routes = {
        "GET": ("", "/queue", "/queue-stats", "/changes"),
        "PATCH": ("",),
        "POST": ("/pause", "/resume"),
        "DELETE": ("",),
    }
    for ref in ("no.such", "a%20b", "%00", "x" * 300):
        for method, rests in routes.items():
            for rest in rests:
                answer = await api.http.request(method, f"/api/v1/actions/{ref}{rest}", content=b"{}")
                assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), answer.text
                assert answer.json()["detail"].startswith("ref:")


async def test_changes_are_listed_with_author_time_and_fields_newest_first(api: Served) -> None:
    await api.http.put(URL, json={"max_concurrent": 2})
    await api.http.patch(URL, json={"max_concurrent": 5})
    await api.http.post(f"{URL}/pause")
    await api.http.post(f"{URL}/resume")
    await api.http.patch(URL, json={"timeout": "5m", "retry": {"delay": 9}})
    await api.http.delete(URL)
    found = await changes(api)
    assert [one["change"] for one in found] == [
        "deleted", "changed", "resumed", "paused", "limit_changed", "created"
    ]  # fmt: skip
    deleted, changed, resumed, paused, limited, created = found
    assert (limited["old"], limited["new"]) == ({"max_concurrent": 2}, {"max_concurrent": 5})
    assert (paused["old"], paused["new"]) == ({"paused": False}, {"paused": True})
    assert (resumed["old"], resumed["new"]) == ({"paused": True}, {"paused": False})
    assert (changed["old"], changed["new"]) == (
        {"timeout": None, "retry.delay": 1}, {"timeout": 300, "retry.delay": 9}
    )  # fmt: skip
    assert (created["old"], created["new"]["max_concurrent"]) == ({}, 2)
    assert (deleted["old"]["max_concurrent"], deleted["new"]) == (5, {})
    assert {one["changed_by"] for one in found} == {"local"}
    assert [one["changed_at"] for one in found] == sorted((o["changed_at"] for o in found), reverse=True)


async def test_a_write_without_effect_is_no_change(api: Served) -> None:
    before = (await api.http.put(URL, json={"max_concurrent": 2})).json()
    assert (await api.http.put(URL, json={"max_concurrent": 2})).json() == before
    await api.http.post(f"{URL}/resume")
    assert [one["change"] for one in await changes(api)] == ["created"]


async def test_a_deleted_action_is_gone_and_its_executions_stay(defined: Served) -> None:
    (one,) = await defined.submit_many("a.b", 1)
    await defined.run(one)
    answer = await defined.http.delete(URL)
    assert (answer.status_code, answer.json()) == (200, {"action_ref": "a.b", "cancelled": 0})
    assert (await defined.get("/actions"))["items"] == []
    for rest in ("", "/queue", "/queue-stats"):
        assert (await defined.http.get(URL + rest)).status_code == 404
    assert (await defined.get(f"/executions/{one}"))["action_ref"] == "a.b"
    assert len((await defined.get("/executions", action_ref="a.b"))["items"]) == 1
    refused = await defined.http.post("/api/v1/executions", json={"action_ref": "a.b"})
    assert (refused.status_code, refused.json()["code"]) == (422, "unknown_action")
    assert (await defined.http.delete(URL)).status_code == 404


async def test_an_action_with_waiting_executions_is_not_deleted_by_default(defined: Served) -> None:
    await defined.http.post(f"{URL}/pause")
    await defined.submit_many("a.b", 3)
    await defined.submit("a.b", run_at="2100-01-01T00:00:00Z")
    answer = await defined.http.delete(URL)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "in_use")
    assert (problem["waiting"], problem["running"]) == (4, 0)
    assert "?waiting=cancel" in problem["detail"]
    assert (await defined.http.get(URL)).status_code == 200


async def test_waiting_executions_are_cancelled_with_their_action_on_request(defined: Served) -> None:
    await defined.http.post(f"{URL}/pause")
    ids = await defined.submit_many("a.b", 3)
    ids.append((await defined.submit("a.b", run_at="2100-01-01T00:00:00Z"))["id"])
    answer = await defined.http.delete(URL, params={"waiting": "cancel"})
    assert (answer.status_code, answer.json()["cancelled"]) == (200, 4)
    for one in ids:
        assert (await defined.get(f"/executions/{one}"))["status"] == "cancelled"


async def test_the_queue_lists_what_waits_and_who_holds_its_slots(defined: Served) -> None:
    await defined.http.patch(URL, json={"submitter_keys": True})
    ids = [
        (await defined.submit("a.b", concurrency_key=key, priority=priority))["id"]
        for key, priority in (("x", 3), ("x", 3), ("x", 3), ("y", 3), ("x", 1), ("x", 3))
    ]
    await defined.start(ids[0])
    pages = await defined.pages("/actions/a.b/queue", limit=2)
    assert [[(each["id"], each["position"]) for each in page] for page in pages] == [
        [(ids[4], 1), (ids[2], 2)], [(ids[5], 3)],
    ]  # fmt: skip
    shown = await defined.get("/actions/a.b/queue", concurrency_key="x")
    assert [(each["id"], each["status"]) for each in shown["holders"]] == [
        (ids[0], "running"), (ids[1], "scheduled"),
    ]  # fmt: skip
    (first, _) = shown["holders"]
    assert (first["worker_id"], first["stopping"], first["finished_at"]) == (
        defined.worker.worker_id, False, None
    )  # fmt: skip
    assert first["started_at"] >= first["granted_at"]
    for parts in ((0, 1), (6, 1), (10**18, 1), (7,), (1, 2, 3)):
        cursor = {"cursor": cursor_of("line", *parts)}
        answer = await defined.http.get("/api/v1/actions/a.b/queue", params=cursor)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_message"), parts
    created_at = (await defined.get(f"/executions/{ids[4]}"))["created_at"]
    assert shown["items"][0]["created_at"] == created_at
