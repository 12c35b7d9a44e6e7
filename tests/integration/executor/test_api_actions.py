"""Actions over HTTP: define, change, pause; what is granted by it is handed over."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.served import Served, serve

URL = "/api/v1/actions/a.b"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Served]:
    async with serve(database_url) as served:
        yield served


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
        "pool": "gpu",
        "when_full": "reject",
        "max_queued": 10,
        "paused": True,
    }
    answer = await api.http.put(URL, json=definition)
    assert answer.status_code == 200
    stored = answer.json()
    assert stored | definition | {"timeout": 90.0, "ttl": 5.0, "retry": stored["retry"]} == stored
    assert stored["retry"] == {
        "max_attempts": 3, "delay": 0.5, "factor": 2.0, "max_delay": 300.0, "jitter": 0.1
    }  # fmt: skip
    assert stored["ref"] == "a.b"
    assert stored["updated_at"].endswith("Z")
    for path in (URL, "/actions/a.b"):
        assert (await api.http.get(path)).json() == stored
    assert (await api.get("/actions"))["items"] == [stored]


async def test_put_replaces_and_patch_keeps_the_rest(api: Served) -> None:
    await api.http.put(
        URL, json={"max_concurrent": 2, "timeout": 5, "retry": {"max_attempts": 3, "delay": 2}}
    )
    changed = (await api.http.patch(URL, json={"max_concurrent": 4, "retry": {"delay": 9}})).json()
    assert (changed["max_concurrent"], changed["timeout"]) == (4, 5.0)
    assert (changed["retry"]["max_attempts"], changed["retry"]["delay"]) == (3, 9.0)
    unlimited = (await api.http.patch(URL, json={"max_concurrent": None})).json()
    assert unlimited["max_concurrent"] is None
    replaced = (await api.http.put(URL, json={})).json()
    assert (replaced["timeout"], replaced["retry"]["max_attempts"]) == (None, 1)


async def test_a_raised_limit_grants_at_once(api: Served) -> None:
    await api.http.put(URL, json={"max_concurrent": 1})
    ids = await api.submit_many("a.b", 4)
    await api.http.patch(URL, json={"max_concurrent": 3})
    assert [grant.execution_id for grant in api.granted] == ids[:3]


async def test_a_pause_admits_and_grants_nothing_until_it_ends(api: Served) -> None:
    await api.http.put(URL, json={"max_concurrent": 2})
    paused = await api.http.post(f"{URL}/pause")
    assert (paused.status_code, paused.json()["paused"]) == (200, True)
    ids = await api.submit_many("a.b", 3)
    assert not api.granted
    resumed = await api.http.post(f"{URL}/resume")
    assert (resumed.json()["paused"], resumed.json()["max_concurrent"]) == (False, 2)
    assert [grant.execution_id for grant in api.granted] == ids[:2]


async def test_changes_at_the_same_time_undo_none(api: Served) -> None:
    await api.http.put(URL, json={})
    changes: list[dict[str, Any]] = [
        {"max_concurrent": 7}, {"timeout": 3}, {"pool": "gpu"}, {"paused": True}, {"ttl": 9},
    ]  # fmt: skip
    await asyncio.gather(*(api.http.patch(URL, json=change) for change in changes))
    stored = (await api.http.get(URL)).json()
    for change in changes:
        assert stored | change == stored


async def test_changes_through_two_executors_undo_none(api: Served, database_url: str) -> None:
    async with serve(database_url) as other:
        await api.http.put(URL, json={})
        for number in range(10):
            await asyncio.gather(
                api.http.patch(URL, json={"max_concurrent": number}),
                other.http.patch(URL, json={"max_queued": number}),
            )
            stored = (await api.http.get(URL)).json()
            assert (stored["max_concurrent"], stored["max_queued"]) == (number, number)


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        (b"", 422, "invalid_message", "body"),
        (b"[]", 422, "invalid_message", "body"),
        (b'{"max_concurrent": -1}', 422, "invalid_message", "max_concurrent"),
        (b'{"max_concurent": 1}', 422, "unknown_field", "max_concurent"),
        (b'{"ref": "c.d"}', 422, "invalid_message", "ref"),
        (b'{"runner": "command"}', 422, "invalid_message", "entrypoint"),
        (b'{"timeout": "soon"}', 422, "invalid_message", "timeout"),
        (b'{"concurrency_key": "x"}', 422, "invalid_message", "concurrency_key"),
        (b'{"retry": {"tries": 1}}', 422, "unknown_field", "retry.tries"),
        (b'{"retry": 5}', 422, "invalid_message", "retry"),
        (b'{"max_queued": 99999999999}', 422, "invalid_message", ""),
        (b'{"pool": "' + b"x" * 70_000 + b'"}', 413, "too_large", "body"),
    ],
)
async def test_a_bad_definition_is_refused_and_changes_nothing(
    api: Served, body: bytes, status: int, code: str, field: str
) -> None:
    before = (await api.http.put(URL, json={"max_concurrent": 2})).json()
    for method in ("PUT", "PATCH"):
        answer = await api.http.request(method, URL, content=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        assert field in answer.json()["detail"]
    assert (await api.http.get(URL)).json() == before


async def test_a_name_that_cannot_be_one_is_refused(api: Served) -> None:
    answer = await api.http.put("/api/v1/actions/a%20b", json={})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_message")
    assert "ref" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "rest"),
    [
        ("GET", ""),
        ("PATCH", ""),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("GET", "/queue"),
        ("GET", "/queue-stats"),
    ],
)
async def test_an_unknown_action_is_not_found(api: Served, method: str, rest: str) -> None:
    for ref in ("no.such", "a%20b", "%00", "x" * 300):
        answer = await api.http.request(method, f"/api/v1/actions/{ref}{rest}", content=b"{}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), answer.text
        assert answer.json()["detail"].startswith("ref:")
