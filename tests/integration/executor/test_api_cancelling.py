"""`POST /executions/{id}/cancel`."""

from collections.abc import AsyncIterator

import pytest

from tests.support.served import Served, serve


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Served]:
    async with serve(database_url) as served:
        await served.define("a.b", max_concurrent=1)
        await served.register_worker()
        yield served


def path(execution_id: int) -> str:
    return f"/api/v1/executions/{execution_id}/cancel"


async def test_one_that_waits_ends_at_once_with_the_reason(api: Served) -> None:
    ids = await api.submit_many("a.b", 2)
    answer = await api.http.post(path(ids[1]), json={"reason": "no longer needed"})
    assert (answer.status_code, answer.json()) == (202, {"id": ids[1], "status": "cancelled"})
    shown = await api.get(f"/executions/{ids[1]}")
    assert shown["error"] == {"type": "Cancelled", "message": "no longer needed"}
    assert (shown["position"], shown["waiting_on"]) == (None, None)


async def test_one_that_runs_is_asked_to_stop(api: Served) -> None:
    taken = await api.submit("a.b")
    await api.claim(taken["id"])
    answer = await api.http.post(path(taken["id"]))
    assert (answer.status_code, answer.json()) == (202, {"id": taken["id"], "status": "running"})


async def test_one_that_has_ended_never_changes(api: Served) -> None:
    taken = await api.submit("a.b")
    await api.claim(taken["id"])
    await api.finish(taken["id"])
    before = await api.get(f"/executions/{taken['id']}")
    answer = await api.http.post(path(taken["id"]))
    assert (answer.status_code, answer.json()["code"]) == (409, "already_terminal")
    assert answer.json()["execution_status"] == "completed"
    assert await api.get(f"/executions/{taken['id']}") == before


async def test_cancelling_twice_says_so(api: Served) -> None:
    taken = await api.submit("a.b")
    assert (await api.http.post(path(taken["id"]))).status_code == 202
    answer = await api.http.post(path(taken["id"]))
    assert (answer.status_code, answer.json()["execution_status"]) == (409, "cancelled")


async def test_an_unknown_execution_is_not_found(api: Served) -> None:
    answer = await api.http.post(path(4711))
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b'{"reson": "x"}', "unknown_field", "reson"),
        (b'{"reason": 5}', "invalid_message", "reason"),
        (b'{"reason": "\\u0000"}', "invalid_parameters", "U+0000"),
        (b"[]", "invalid_message", "body"),
    ],
)
async def test_a_bad_body_is_refused_and_cancels_nothing(
    api: Served, body: bytes, code: str, field: str
) -> None:
    taken = await api.submit("a.b")
    answer = await api.http.post(path(taken["id"]), content=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert field in answer.json()["detail"]
    assert (await api.get(f"/executions/{taken['id']}"))["status"] == "scheduled"
