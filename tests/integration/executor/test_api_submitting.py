"""`POST /executions`: what is taken, what is refused, and how it is said."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.served import Served, serve
from turnstile.executor.settings import ExecutorSettings

URL = "/api/v1/executions"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Served]:
    async with serve(database_url, ExecutorSettings(parameters_bytes_max=4096)) as served:
        await served.define("a.b", max_concurrent=1)
        yield served


async def test_one_request_is_accepted_with_its_place(api: Served) -> None:
    first = await api.http.post(URL, json={"action_ref": "a.b"})
    assert first.status_code == 202
    accepted = first.json()
    assert accepted == {"id": accepted["id"], "status": "scheduled", "position": None, "duplicate": False}
    assert first.headers["location"] == f"{URL}/{accepted['id']}"
    assert (await api.submit("a.b"))["position"] == 1
    assert (await api.submit("a.b")) | {"id": 0} == {
        "id": 0,
        "status": "queued",
        "position": 2,
        "duplicate": False,
    }


async def test_a_list_is_answered_in_its_order_and_a_bad_item_harms_no_other(api: Served) -> None:
    body: list[Any] = [{"action_ref": "a.b", "metadata": {"n": n}} for n in range(10)]
    body[3] = {"action_ref": "no.such"}
    body[5] = {"action_ref": "a.b", "paramters": {}}
    body[7] = 17
    answer = await api.http.post(URL, json=body)
    assert answer.status_code == 202
    items = answer.json()["items"]
    assert [item.get("code") for item in items] == [
        None, None, None, "unknown_action", None, "unknown_field", None, "invalid_message", None, None,
    ]  # fmt: skip
    good = [item["id"] for item in items if "id" in item]
    assert good == sorted(good)
    for n in (0, 4, 9):
        assert (await api.get(f"/executions/{items[n]['id']}"))["metadata"] == {"n": n}


async def test_an_empty_list_is_accepted(api: Served) -> None:
    answer = await api.http.post(URL, json=[])
    assert (answer.status_code, answer.json()) == (202, {"items": []})


async def test_a_known_key_returns_its_execution(api: Served) -> None:
    body = {"action_ref": "a.b", "parameters": {"x": 1, "y": 2}}
    first = await api.http.post(URL, json=body, headers={"Idempotency-Key": "k"})
    again = await api.http.post(
        URL, json={"parameters": {"y": 2, "x": 1}, "action_ref": "a.b", "idempotency_key": "k"}
    )
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json()["id"] == first.json()["id"]
    assert again.json()["duplicate"] is True


async def test_a_known_key_with_another_request_is_refused(api: Served) -> None:
    await api.submit("a.b", idempotency_key="k", parameters={"x": 1})
    answer = await api.http.post(
        URL, json={"action_ref": "a.b", "idempotency_key": "k", "parameters": {"x": 2}}
    )
    assert answer.status_code == 409
    assert answer.json()["code"] == "idempotency_conflict"
    assert "idempotency_key" in answer.json()["detail"]


async def test_fifty_submitters_with_one_key_get_one_execution(api: Served) -> None:
    answers = await asyncio.gather(
        *(api.http.post(URL, json={"action_ref": "a.b", "idempotency_key": "k"}) for _ in range(50))
    )
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sorted(answer.status_code for answer in answers) == [200] * 49 + [202]


async def test_a_key_in_the_header_must_equal_the_one_in_the_body(api: Served) -> None:
    answer = await api.http.post(
        URL, json={"action_ref": "a.b", "idempotency_key": "k"}, headers={"Idempotency-Key": "l"}
    )
    assert answer.status_code == 422
    assert "idempotency_key" in answer.json()["detail"]


async def test_a_key_in_the_header_is_text_as_in_the_body(api: Served) -> None:
    in_header = await api.http.post(
        URL, json={"action_ref": "a.b"}, headers={b"Idempotency-Key": "schlüssel".encode()}
    )
    in_body = await api.http.post(URL, json={"action_ref": "a.b", "idempotency_key": "schlüssel"})
    assert (in_body.status_code, in_body.json()["id"]) == (200, in_header.json()["id"])
    broken = await api.http.post(URL, json={"action_ref": "a.b"}, headers={b"Idempotency-Key": b"\xe4"})
    assert broken.status_code == 422
    assert "Idempotency-Key" in broken.json()["detail"]


@pytest.mark.parametrize(
    "run_at",
    [
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
        "0001-01-01T00:00:00+14:00",
        "1969-12-31T23:59:59Z",
    ],
)
async def test_an_instant_that_no_clock_holds_is_refused(api: Served, run_at: str) -> None:
    answer = await api.http.post(URL, json={"action_ref": "a.b", "run_at": run_at})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_message")
    assert "run_at" in answer.json()["detail"]
    assert "leave it out" in answer.json()["detail"]


@pytest.mark.parametrize("number", ["1e400", "-1e999", "1" + "0" * 400 + ".0"])
async def test_a_number_beyond_all_is_refused(api: Served, number: str) -> None:
    body = f'{{"action_ref": "a.b", "parameters": {{"x": [{number}]}}}}'
    answer = await api.http.post(URL, content=body.encode())
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_message")
    assert "too large" in answer.json()["detail"]


async def test_of_many_unknown_fields_some_are_named(api: Served) -> None:
    body = {"action_ref": "a.b"} | {f"field{n}": n for n in range(1000)}
    answer = await api.http.post(URL, json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_field")
    assert "field0" in answer.json()["detail"]
    assert "995 more" in answer.json()["detail"]
    assert len(answer.json()["detail"]) < 1000


async def test_a_key_in_the_header_names_no_list(api: Served) -> None:
    answer = await api.http.post(URL, json=[{"action_ref": "a.b"}], headers={"Idempotency-Key": "k"})
    assert answer.status_code == 422
    assert "Idempotency-Key" in answer.json()["detail"]


BAD_BODIES: dict[str, tuple[bytes, int, str, str]] = {
    "empty": (b"", 422, "invalid_message", "body"),
    "not JSON": (b"{nope", 422, "invalid_message", "body"),
    "not UTF-8": (b'{"action_ref": "\xff"}', 422, "invalid_message", "body"),
    "a number": (b"1", 422, "invalid_message", "body"),
    "missing field": (b"{}", 422, "invalid_message", "action_ref"),
    "wrong type": (b'{"action_ref": 5}', 422, "invalid_message", "action_ref"),
    "parameters not an object": (
        b'{"action_ref": "a.b", "parameters": [1]}',
        422,
        "invalid_parameters",
        "parameters",
    ),
    "unknown field": (b'{"action_ref": "a.b", "timout": 1}', 422, "unknown_field", "timout"),
    "unknown action": (b'{"action_ref": "no.such"}', 422, "unknown_action", "action_ref"),
    "NaN": (b'{"action_ref": "a.b", "parameters": {"x": NaN}}', 422, "invalid_message", "body"),
    "infinite": (b'{"action_ref": "a.b", "parameters": {"x": 1e999}}', 422, "invalid_message", ""),
    "NUL": (b'{"action_ref": "a.b", "parameters": {"x": "\\u0000"}}', 422, "invalid_parameters", "U+0000"),
    "surrogate": (b'{"action_ref": "a.b", "parameters": {"x": "\\ud800"}}', 422, "invalid_message", "body"),
    "run_at without zone": (
        b'{"action_ref": "a.b", "run_at": "2030-01-01T00:00:00"}',
        422,
        "invalid_message",
        "run_at",
    ),
    "bad duration": (b'{"action_ref": "a.b", "ttl": "soon"}', 422, "invalid_message", "ttl"),
    "depth 10,000": (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, 422, "invalid_message", "body"),
    "depth 1,000": (b'{"a":' * 1000 + b"1" + b"}" * 1000, 422, "invalid_message", "body"),
    "depth 1,000 in a list": (b"[" * 1000 + b"]" * 1000, 422, "invalid_message", "body"),
    "large parameters": (
        b'{"action_ref": "a.b", "parameters": {"x": "' + b"y" * 5000 + b'"}}',
        413,
        "too_large",
        "parameters",
    ),
    "10 MB": (b'{"action_ref": "' + b"y" * 10_000_000 + b'"}', 413, "too_large", "body"),
    "list of 10 MB": (b'["' + b"y" * 10_000_000 + b'"]', 413, "too_large", "body"),
    "list of 1001": (b"[" + b",".join([b"{}"] * 1001) + b"]", 413, "too_large", "body"),
}


@pytest.mark.parametrize("kind", BAD_BODIES)
async def test_a_bad_body_is_refused_with_code_and_field(api: Served, kind: str) -> None:
    body, status, code, field = BAD_BODIES[kind]
    answer = await api.http.post(URL, content=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert field in answer.json()["detail"]
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert answer.json()["title"]
    assert answer.json()["type"].endswith(code)
    assert (await api.submit("a.b"))["status"] == "scheduled"


@pytest.mark.parametrize("field", ["parameters", "metadata"])
async def test_what_is_nested_deeper_than_it_could_be_shown_is_refused(api: Served, field: str) -> None:
    deep: Any = 1
    for _ in range(196):
        deep = [deep]
    answer = await api.http.post(URL, json={"action_ref": "a.b", field: {"deep": deep}})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameters")
    assert answer.json()["detail"].startswith(f"{field}: it is nested deeper than 196 levels")


async def test_what_is_nested_as_deep_as_a_request_may_be_comes_back(api: Served) -> None:
    deep: Any = 1
    for _ in range(190):
        deep = [deep]
    taken = await api.submit("a.b", parameters={"deep": deep})
    assert (await api.get(f"/executions/{taken['id']}"))["parameters"] == {"deep": deep}
    assert (await api.get("/executions"))["items"][0]["parameters"] == {"deep": deep}


async def test_a_full_queue_refuses(api: Served) -> None:
    await api.define("small", max_concurrent=1, max_queued=1)
    await api.submit_many("small", 2)
    answer = await api.http.post(URL, json={"action_ref": "small"})
    assert (answer.status_code, answer.json()["code"]) == (429, "queue_full")
    assert answer.headers["retry-after"]


async def test_without_a_database_it_is_unavailable(api: Served) -> None:
    await api.database.close()
    answer = await api.http.post(URL, json={"action_ref": "a.b"})
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["retry-after"]
