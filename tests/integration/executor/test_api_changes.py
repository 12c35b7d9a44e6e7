"""Who changed an action is noted with the change; two who change it at once do not undo each other."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.protocol import connected
from tests.support.served import Served, serve
from turnstile.common.action_definition import ActionDefinition
from turnstile.executor.settings import ExecutorSettings

URL = "/api/v1/actions/a.b"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Served]:
    async with serve(database_url) as served:
        yield served


async def changes(api: Served, ref: str = "a.b") -> list[dict[str, Any]]:
    return list((await api.get(f"/actions/{ref}/changes"))["items"])


async def test_each_change_says_who_when_and_what_newest_first(api: Served) -> None:
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


async def test_what_changes_nothing_is_no_change(api: Served) -> None:
    before = (await api.http.put(URL, json={"max_concurrent": 2})).json()
    assert (await api.http.put(URL, json={"max_concurrent": 2})).json() == before
    await api.http.post(f"{URL}/resume")
    assert [one["change"] for one in await changes(api)] == ["created"]


async def test_a_token_is_noted_by_its_name(database_url: str) -> None:
    settings = ExecutorSettings.model_validate({"api_tokens": "alice:operate:a-secret-that-is-long-enough"})
    async with serve(database_url, settings) as api:
        headers = {"Authorization": "Bearer a-secret-that-is-long-enough"}
        assert (await api.http.put(URL, json={}, headers=headers)).status_code == 200
        found = (await api.http.get(f"{URL}/changes", headers=headers)).json()["items"]
        assert [one["changed_by"] for one in found] == ["alice"]


async def test_what_a_worker_registers_is_noted_once(api: Served, database_url: str) -> None:
    async with connected(database_url) as protocol:
        for _ in range(2):
            await protocol.register_actions(ActionDefinition(ref="a.b", max_concurrent=3))
    (created,) = await changes(api)
    assert (created["changed_by"], created["change"], created["new"]["max_concurrent"]) == (
        "worker", "created", 3
    )  # fmt: skip


async def test_changes_come_in_pages(api: Served) -> None:
    for number in range(5):
        await api.http.put(URL, json={"max_concurrent": number})
    first = await api.get("/actions/a.b/changes", limit=3)
    rest = await api.get("/actions/a.b/changes", limit=3, cursor=first["next_cursor"])
    assert [one["new"]["max_concurrent"] for one in first["items"] + rest["items"]] == [4, 3, 2, 1, 0]
    assert rest["next_cursor"] is None


async def test_an_action_that_never_was_has_no_changes(api: Served) -> None:
    answer = await api.http.get("/api/v1/actions/no.such/changes")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_an_etag_names_one_state(api: Served) -> None:
    stored = await api.http.put(URL, json={"max_concurrent": 2})
    etag = stored.headers["etag"]
    assert (await api.http.get(URL)).headers["etag"] == etag
    assert (await api.http.put(URL, json={"max_concurrent": 2})).headers["etag"] == etag
    tags = {etag}
    for method, path, body in (
        ("PATCH", URL, {"max_concurrent": 3}), ("POST", f"{URL}/pause", None), ("POST", f"{URL}/resume", None)
    ):  # fmt: skip
        answer = await api.http.request(method, path, json=body)
        assert answer.status_code == 200
        tags.add(answer.headers["etag"])
    assert len(tags) == 4


async def test_what_is_unchanged_is_not_sent_again(api: Served) -> None:
    etag = (await api.http.put(URL, json={})).headers["etag"]
    for header in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        answer = await api.http.get(URL, headers={"If-None-Match": header})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    assert (await api.http.get(URL, headers={"If-None-Match": '"other"'})).status_code == 200


async def test_a_change_of_a_state_that_is_gone_is_refused(api: Served) -> None:
    changing = [
        ("PUT", "", {"ttl": 5}),
        ("PATCH", "", {"ttl": 6}),
        ("POST", "/pause", None),
        ("DELETE", "", None),
    ]
    for number, (method, rest, body) in enumerate(changing):
        seen = (await api.http.put(URL, json={"max_concurrent": number})).headers["etag"]
        current = await api.http.patch(URL, json={"max_concurrent": 9})
        answer = await api.http.request(method, URL + rest, json=body, headers={"If-Match": seen})
        assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed")
        assert "If-Match" in answer.json()["detail"]
        assert (await api.http.get(URL)).json() == current.json()
        headers = {"If-Match": "*" if method == "PUT" else f'"x", {current.headers["etag"]}'}
        assert (await api.http.request(method, URL + rest, json=body, headers=headers)).status_code == 200


async def test_a_condition_on_an_action_that_is_not_there_fails(api: Served) -> None:
    answer = await api.http.put(URL, json={}, headers={"If-Match": "*"})
    assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed")
    assert (await api.http.get(URL)).status_code == 404


async def test_if_none_match_star_creates_and_never_replaces(api: Served) -> None:
    created = await api.http.put(URL, json={}, headers={"If-None-Match": "*"})
    assert created.status_code == 200
    there = await api.http.put(URL, json={"max_concurrent": 2}, headers={"If-None-Match": "*"})
    assert (there.status_code, there.json()["code"]) == (412, "precondition_failed")
    assert "If-None-Match" in there.json()["detail"]
    assert (await api.get("/actions/a.b"))["max_concurrent"] is None
