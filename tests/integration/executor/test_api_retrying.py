"""`POST /executions/{id}/retry`: a new execution does the same again; what has ended never changes (P3)."""

from collections.abc import AsyncIterator

import pytest

from tests.support.served import Served, serve

SAME = ("action_ref", "parameters", "concurrency_key", "metadata")


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Served]:
    async with serve(database_url) as served:
        await served.define("a.b", max_concurrent=1, submitter_keys=True, timeout=60, ttl=3600)
        await served.register_worker()
        yield served


def path(execution_id: int) -> str:
    return f"/api/v1/executions/{execution_id}/retry"


async def failed(api: Served, **fields: object) -> int:
    execution_id: int = (await api.submit("a.b", **fields))["id"]
    await api.claim(execution_id)
    await api.finish(execution_id, status="failed")
    await api.settle(execution_id)
    return execution_id


async def test_it_does_the_same_again_and_leaves_the_ended_one_alone(api: Served) -> None:
    one = await failed(
        api, parameters={"n": [1, 2.5, None]}, concurrency_key="k", timeout=7, metadata={"tenant": "acme"},
        callback_url="https://example.org/hook", idempotency_key="first",
    )  # fmt: skip
    before = await api.get(f"/executions/{one}")
    answer = await api.http.post(path(one))
    assert answer.status_code == 202
    again = answer.json()
    assert again == {
        "id": again["id"], "status": "scheduled", "position": None, "duplicate": False, "retry_of": one
    }  # fmt: skip
    assert answer.headers["location"] == f"/api/v1/executions/{again['id']}"
    shown = await api.get(f"/executions/{again['id']}")
    assert [shown[name] for name in SAME] == [before[name] for name in SAME]
    assert (shown["retry_of"], shown["idempotency_key"], shown["attempt"]) == (one, None, 1)
    kept = "SELECT timeout_seconds, callback_url FROM execution WHERE id = $1"
    row = await api.database.fetchrow(kept, again["id"])
    assert row is not None
    assert tuple(row) == (7.0, "https://example.org/hook")
    assert await api.get(f"/executions/{one}") == before


async def test_it_takes_its_place_at_the_tail(api: Served) -> None:
    one = await failed(api)
    waiting = await api.submit_many("a.b", 3)
    again = (await api.http.post(path(one))).json()
    assert (again["status"], again["position"]) == ("queued", 3)
    assert again["id"] > waiting[-1]


async def test_a_repeated_request_with_the_same_key_is_one_execution(api: Served) -> None:
    one = await failed(api)
    key = {"Idempotency-Key": "again"}
    first, second = [await api.http.post(path(one), headers=key) for _ in range(2)]
    assert (first.status_code, second.status_code) == (202, 200)
    assert second.json() == first.json() | {"duplicate": True}
    assert await api.database.fetchval("SELECT count(*) FROM execution") == 2


async def test_without_a_key_each_request_is_an_execution(api: Served) -> None:
    one = await failed(api)
    ids = {(await api.http.post(path(one))).json()["id"] for _ in range(2)}
    assert len(ids) == 2


async def test_a_key_that_stands_for_something_else_is_a_conflict(api: Served) -> None:
    one, other = await failed(api, idempotency_key="mine"), await failed(api)
    assert (await api.http.post(path(one), headers={"Idempotency-Key": "k"})).status_code == 202
    # Of the execution that is to be done again, and of another one's retry.
    for execution_id, key in ((one, "mine"), (other, "k")):
        answer = await api.http.post(path(execution_id), headers={"Idempotency-Key": key})
        assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_conflict")


async def test_what_has_not_ended_is_refused_with_its_status(api: Served) -> None:
    running, queued = await api.submit_many("a.b", 2)
    await api.claim(running)
    for execution_id, status in ((running, "running"), (queued, "queued")):
        answer = await api.http.post(path(execution_id))
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem["execution_status"]) == (
            409, "not_terminal", status,
        )  # fmt: skip
    assert await api.database.fetchval("SELECT count(*) FROM execution") == 2


async def test_a_full_queue_refuses_it_like_any_request(api: Served) -> None:
    one = await failed(api)
    await api.define("a.b", max_concurrent=1, max_queued=0)
    await api.submit("a.b")
    answer = await api.http.post(path(one))
    assert (answer.status_code, answer.json()["code"]) == (429, "queue_full")


async def test_there_is_nothing_to_say_about_it(api: Served) -> None:
    one = await failed(api)
    for body, code in (
        (b'{"parameters": {}}', "unknown_field"),
        (b"[]", "invalid_message"),
        (b"{", "invalid_message"),
    ):
        answer = await api.http.post(path(one), content=body)
        assert (answer.status_code, answer.json()["code"]) == (422, code)


async def test_an_unknown_execution_is_not_found(api: Served) -> None:
    answer = await api.http.post(path(4711))
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_one_of_a_deleted_action_is_refused_with_the_remedy(api: Served) -> None:
    one = await failed(api)
    assert (await api.http.delete("/api/v1/actions/a.b")).status_code == 200
    answer = await api.http.post(path(one))
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_action")
