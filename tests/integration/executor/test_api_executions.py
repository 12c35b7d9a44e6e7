"""One execution over HTTP: submit, read, cancel, retry; what is refused, and how."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partialmethod
from typing import Any

import httpx
import pytest

from tests.support.served import Served, serve
from tests.support.traffic import until
from turnstile.executor.inbox import Inbox
from turnstile.executor.settings import ExecutorSettings

URL = "/api/v1/executions"
REPEATED = ("action_ref", "parameters", "concurrency_key", "metadata")


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Served]:
    async with serve(database_url, ExecutorSettings(parameters_bytes_max=4096)) as served:
        await served.define("a.b", max_concurrent=1, submitter_keys=True, timeout=60, runs=False)
        yield served


@pytest.fixture
async def worked(api: Served) -> Served:
    api.join()
    return api


async def post(
    api: Served, execution_id: int, verb: str, key: str | None = None, **sent: Any
) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await api.http.post(f"{URL}/{execution_id}/{verb}", headers=headers, **sent)


async def ended(api: Served, status: str = "failed", **fields: object) -> int:
    execution_id: int = (await api.submit("a.b", **fields))["id"]
    await api.run(execution_id, status)
    return execution_id


async def count(api: Served) -> int:
    return int(await api.database.fetchval("SELECT count(*) FROM ledger.execution"))


def refused(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


async def test_a_singleton_is_refused_with_the_execution_that_has_it(api: Served) -> None:
    first = (await api.http.post(URL, json={"action_ref": "a.b", "singleton": "s"})).json()
    second = await api.http.post(URL, json={"action_ref": "a.b", "singleton": {"key": "s", "then": "refuse"}})
    assert refused(second) == (409, "singleton_exists")
    assert f"execution {first['id']}" in second.json()["detail"]
    unknown = await api.http.post(URL, json={"action_ref": "a.b", "singleton": {"key": "s", "then": "x"}})
    assert refused(unknown) == (422, "invalid_message")


async def test_a_submission_is_answered_with_its_position(api: Served) -> None:
    first = await api.http.post(URL, json={"action_ref": "a.b"})
    assert first.status_code == 202
    accepted = first.json()
    assert accepted == {"id": accepted["id"], "status": "queued", "position": 1, "duplicate": False}
    assert first.headers["location"] == f"{URL}/{accepted['id']}"
    second = await api.submit("a.b")
    assert second == {"id": second["id"], "status": "queued", "position": 2, "duplicate": False}


async def test_a_list_is_answered_in_order_and_an_invalid_item_harms_no_other(api: Served) -> None:
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
    valid = [item["id"] for item in items if "id" in item]
    assert valid == sorted(valid)
    for n in (0, 4, 9):
        assert (await api.get(f"/executions/{items[n]['id']}"))["metadata"] == {"n": n}
    assert (await api.http.post(URL, json=[])).json() == {"items": []}


async def test_the_key_in_the_header_is_utf_8_and_agrees_with_the_body(api: Served) -> None:
    keyed = {b"Idempotency-Key": "schlüssel".encode()}
    in_header = await api.http.post(URL, json={"action_ref": "a.b"}, headers=keyed)
    in_body = await api.http.post(URL, json={"action_ref": "a.b", "idempotency_key": "schlüssel"})
    assert (in_body.status_code, in_body.json()["id"]) == (200, in_header.json()["id"])
    invalid: list[tuple[Any, bytes]] = [
        ({"action_ref": "a.b"}, b"\xe4"),
        ({"action_ref": "a.b", "idempotency_key": "k"}, b"l"),
        ([{"action_ref": "a.b"}], b"k"),
    ]
    for body, header in invalid:
        answer = await api.http.post(URL, json=body, headers={b"Idempotency-Key": header})
        assert refused(answer) == (422, "invalid_message")
        assert "idempotency-key" in answer.json()["detail"].lower()


INVALID: dict[str, tuple[bytes, int, str, str]] = {
    "empty": (b"", 422, "invalid_message", "body"),
    "not UTF-8": (b'{"action_ref": "\xff"}', 422, "invalid_message", "body"),
    "unknown field": (b'{"action_ref": "a.b", "timout": 1}', 422, "unknown_field", "timout"),
    "unknown action": (b'{"action_ref": "no.such"}', 422, "unknown_action", "action_ref"),
    "depth 10,000": (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, 422, "invalid_message", "body"),
    "large parameters": (
        b'{"action_ref": "a.b", "parameters": {"x": "' + b"y" * 5000 + b'"}}',
        413,
        "too_large",
        "parameters",
    ),
    "10 MB": (b'{"action_ref": "' + b"y" * 10_000_000 + b'"}', 413, "too_large", "body"),
    "list of 1001": (b"[" + b",".join([b"{}"] * 1001) + b"]", 413, "too_large", "body"),
}
"""What a route adds to the checks of a message, which are in `tests/unit/common/test_messages.py`."""


async def test_an_invalid_body_is_refused_with_code_and_field(api: Served) -> None:
    for kind, (body, status, code, field) in INVALID.items():
        answer = await api.http.post(URL, content=body)
        assert refused(answer) == (status, code), kind
        assert field in answer.json()["detail"], kind
        assert answer.json()["status"] == status
        assert answer.json()["title"]
        assert answer.json()["type"].endswith(code)
    assert (await api.submit("a.b"))["status"] == "queued"


async def test_each_request_of_a_list_may_have_a_trace_of_its_own(api: Served) -> None:
    own, others, wrong = (f"00-{number:032x}-b7ad6b7169203331-01" for number in (1, 2, 0x30))
    body = [
        {"action_ref": "a.b", "idempotency_key": "k", "traceparent": own},
        {"action_ref": "a.b"},
        {"action_ref": "a.b", "traceparent": wrong.replace("-", "_")},
        {"action_ref": "a.b", "idempotency_key": "k", "traceparent": others},
    ]
    items = (await api.http.post(URL, json=body, headers={"traceparent": others})).json()["items"]
    assert items[2]["detail"] == "traceparent: not a W3C trace context; leave it out, or correct it"
    assert items[3]["duplicate"]
    stored = await api.database.fetch("SELECT traceparent FROM ledger.execution ORDER BY id")
    assert [row["traceparent"] for row in stored] == [own, others]


async def test_a_document_may_be_nested_as_deep_as_it_can_be_shown(api: Served) -> None:
    def nested(levels: int) -> Any:
        return [nested(levels - 1)] if levels else 1

    for field in ("parameters", "metadata"):
        answer = await api.http.post(URL, json={"action_ref": "a.b", field: {"deep": nested(196)}})
        assert refused(answer) == (422, "invalid_parameters")
        assert answer.json()["detail"].startswith(f"{field}: it is nested deeper than 196 levels")
        submitted = await api.submit("a.b", **{field: {"deep": nested(190)}})
        assert (await api.get(f"/executions/{submitted['id']}"))[field] == {"deep": nested(190)}
        assert (await api.get("/executions"))["items"][0][field] == {"deep": nested(190)}


async def test_without_a_database_it_is_unavailable(api: Served) -> None:
    await api.installation.inbox._database.close()
    answer = await api.http.post(URL, json={"action_ref": "a.b"})
    assert refused(answer) == (503, "unavailable")
    assert answer.headers["retry-after"]


async def test_a_submission_without_a_leader_is_kept_and_decided_by_the_next_one(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.leader.kill()
    monkeypatch.setattr(Inbox, "decide", partialmethod(Inbox.decide, seconds=0.1))
    answer = await api.http.post(URL, json={"action_ref": "a.b"})
    assert refused(answer) == (503, "unavailable")
    assert answer.headers["retry-after"]
    detail = answer.json()["detail"]
    assert detail.startswith("kept, not decided yet: ")
    (path,) = re.findall(r"GET (/api/v1/submissions/[0-9a-f-]{36}) to see its result", detail)
    assert (await api.http.get(path)).json()["status"] == "pending"
    api.installation.lead("next")

    async def is_admitted() -> bool:
        return bool((await api.http.get(path)).json()["status"] == "admitted")

    await until(is_admitted, "the next leader to admit it", deadline_seconds=10)
    admitted = (await api.http.get(path)).json()["execution_id"]
    assert (await api.get("/executions"))["items"][0]["id"] == admitted


async def test_without_a_leader_the_page_has_what_the_rows_say(api: Served) -> None:
    run_at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    waiting = (await api.submit("a.b"))["id"]
    delayed = (await api.submit("a.b", run_at=run_at))["id"]
    await api.leader.kill()
    shown = await api.get(f"/executions/{waiting}")
    assert (shown["status"], shown["position"], shown["estimated_start"]) == ("queued", None, None)
    assert (shown["waiting_on"]["reason"], shown["waiting_on"]["part"]) == ("unavailable", "leader")
    shown = await api.get(f"/executions/{delayed}")
    assert (shown["status"], shown["waiting_on"]["reason"]) == ("delayed", "not_due")


async def test_an_execution_is_shown_whole(api: Served) -> None:
    submitted = await api.submit(
        "a.b", parameters={"x": [1, None]}, metadata={"m": "ü"}, idempotency_key="k", ttl="1h"
    )
    shown = await api.get(f"/executions/{submitted['id']}")
    assert list(shown) == [
        "id", "action_ref", "concurrency_key", "idempotency_key", "priority", "status", "attempt",
        "parameters", "result", "error", "metadata", "worker_id", "created_at", "queued_at",
        "scheduled_at", "started_at", "completed_at", "run_at", "expires_at", "retry_of", "position",
        "queue_length", "waiting_on", "blocker", "path", "estimated_start", "stopping", "progress",
        "attempts",
    ]  # fmt: skip
    expected = {
        "parameters": {"x": [1, None]}, "metadata": {"m": "ü"}, "idempotency_key": "k",
        "status": "queued", "attempt": 0, "result": None, "error": None,
    }  # fmt: skip
    assert shown | expected == shown
    created, expires = (datetime.fromisoformat(shown[name]) for name in ("created_at", "expires_at"))
    assert expires - created == timedelta(hours=1)
    assert shown["created_at"].endswith("Z")


async def test_an_unknown_execution_is_not_found(api: Served) -> None:
    for method, rest in (("GET", ""), ("POST", "/cancel"), ("POST", "/retry")):
        answer = await api.http.request(method, f"{URL}/4711{rest}")
        assert refused(answer) == (404, "not_found")
        assert "4711" in answer.json()["detail"]


async def test_a_granted_execution_is_handed_over_to_its_worker(worked: Served) -> None:
    path = f"/executions/{(await worked.submit('a.b'))['id']}"
    await until(lambda: bool(worked.worker.offered), "the offer")
    shown = await worked.get(path)
    assert (shown["status"], shown["attempt"], shown["worker_id"]) == (
        "scheduled",
        1,
        worked.worker.worker_id,
    )
    on = shown["waiting_on"]
    assert (on["reason"], on["pool"], on["granted_at"][:19]) == (
        "handing_over", "default", shown["scheduled_at"][:19],
    )  # fmt: skip
    worked.parts["broker"] = "not connected"
    assert (await worked.get(path))["waiting_on"] == {
        "reason": "unavailable", "part": "broker", "message": "not connected",
    }  # fmt: skip


async def test_what_waits_behind_a_run_has_an_estimate_while_the_broker_works(worked: Served) -> None:
    first, running, waiting = await worked.submit_many("a.b", 3)
    await worked.run(first)
    await worked.start(running)
    estimate = (await worked.get(f"/executions/{waiting}"))["estimated_start"]
    assert list(estimate) == ["earliest", "latest", "overdue"]
    assert datetime.fromisoformat(estimate["earliest"]) < datetime.fromisoformat(estimate["latest"])
    worked.parts["broker"] = "connection refused"
    shown = await worked.get(f"/executions/{waiting}")
    assert (shown["estimated_start"], shown["waiting_on"]["reason"]) == (None, "limit")


async def test_a_running_execution_shows_its_attempt_and_an_ended_one_its_result(worked: Served) -> None:
    execution_id = (await worked.submit("a.b"))["id"]
    path, worker_id = f"/executions/{execution_id}", worked.worker.worker_id
    await worked.start(execution_id)
    shown = await worked.get(path)
    assert (shown["status"], shown["waiting_on"], shown["worker_id"]) == ("running", None, worker_id)
    (attempt,) = shown["attempts"]
    assert attempt["started_at"].endswith("Z")
    assert attempt == {
        "attempt": 1, "worker_id": worker_id, "outcome": None, "error": None,
        "granted_at": attempt["granted_at"], "started_at": attempt["started_at"], "ended_at": None,
        "progress": None,
    }  # fmt: skip
    worked.worker.end(execution_id, result=b'{"pages": 3}')
    await worked.until_status(execution_id, "completed")
    shown = await worked.get(path)
    assert (shown["result"], shown["position"], shown["waiting_on"]) == ({"pages": 3}, None, None)
    assert [a["outcome"] for a in shown["attempts"]] == ["completed"]
    assert shown["attempts"][0]["ended_at"] == shown["completed_at"]


async def test_a_cancel_ends_a_queued_execution_with_the_reason(api: Served) -> None:
    ids = await api.submit_many("a.b", 2)
    answer = await post(api, ids[1], "cancel", json={"reason": "no longer needed"})
    assert (answer.status_code, answer.json()) == (202, {"id": ids[1], "status": "cancelled"})
    shown = await api.get(f"/executions/{ids[1]}")
    assert shown["error"] == {"type": "Cancelled", "message": "no longer needed"}
    assert (shown["position"], shown["waiting_on"]) == (None, None)
    again = await post(api, ids[1], "cancel")
    assert (again.status_code, again.json()["execution_status"]) == (409, "cancelled")


async def test_an_invalid_body_cancels_and_retries_nothing(worked: Served) -> None:
    one, running = await ended(worked), (await worked.submit("a.b"))["id"]
    for execution_id, verb, body, code, field in (
        (running, "cancel", b'{"reson": "x"}', "unknown_field", "reson"),
        (running, "cancel", b'{"reason": 5}', "invalid_message", "reason"),
        (running, "cancel", b'{"reason": "\\u0000"}', "invalid_parameters", "U+0000"),
        (running, "cancel", b"[]", "invalid_message", "body"),
        (one, "retry", b'{"priority": 1}', "unknown_field", "priority"),
        (one, "retry", b'{"parameters": []}', "invalid_parameters", "parameters"),
        (one, "retry", b'{"parameters": {"x": "%s"}}' % (5000 * b"y"), "too_large", "parameters"),
        (
            one,
            "retry",
            b'{"parameters": {"a": [{"pin": "**********"}]}}',
            "invalid_parameters",
            "parameters.a.0.pin: ********** is the mask of a secret",
        ),
        (one, "retry", b"[]", "invalid_message", "body"),
        (one, "retry", b"{", "invalid_message", "body"),
    ):
        answer = await post(worked, execution_id, verb, content=body)
        assert refused(answer) == (413 if code == "too_large" else 422, code)
        assert field in answer.json()["detail"]
    await worked.until_status(running, "scheduled")
    assert await count(worked) == 2


async def test_a_retry_repeats_the_request_and_leaves_the_ended_execution_alone(worked: Served) -> None:
    one = await ended(
        worked, parameters={"n": [1, 2.5, None]}, concurrency_key="k", timeout=7, metadata={"tenant": "acme"},
        callback_url="https://example.org/hook", idempotency_key="first",
    )  # fmt: skip
    before = await worked.get(f"/executions/{one}")
    answer = await post(worked, one, "retry")
    assert answer.status_code == 202
    again = answer.json()
    assert again == {
        "id": again["id"], "status": "scheduled", "position": None, "duplicate": False, "retry_of": one
    }  # fmt: skip
    assert answer.headers["location"] == f"{URL}/{again['id']}"
    shown = await worked.get(f"/executions/{again['id']}")
    assert [shown[name] for name in REPEATED] == [before[name] for name in REPEATED]
    assert (shown["retry_of"], shown["idempotency_key"], shown["attempt"]) == (one, None, 1)
    query = "SELECT timeout_seconds, callback_url FROM ledger.execution WHERE id = $1"
    row = await worked.database.fetchrow(query, again["id"])
    assert row is not None
    assert tuple(row) == (7.0, "https://example.org/hook")
    assert await worked.get(f"/executions/{one}") == before


async def test_a_retry_with_other_parameters_is_checked_like_a_new_request(worked: Served) -> None:
    schema = {"properties": {"customer": {"type": "string"}, "pin": {}, "n": {"type": "integer"}}}
    await worked.define(
        "keyed", max_concurrent=1, concurrency_key="/customer", priority_min=4, parameters_schema=schema,
        runs=False,
    )  # fmt: skip
    one = (await worked.submit("keyed", parameters={"customer": "a", "pin": "5678", "n": 1}, priority=4))[
        "id"
    ]
    await worked.run(one, "failed")
    edited = {"parameters": {"customer": "b", "n": 1, "pin": "1234"}}
    wrong = await post(worked, one, "retry", json={"parameters": {"customer": "b", "n": "x"}})
    assert refused(wrong) == (422, "invalid_parameters")
    assert wrong.json()["detail"].startswith("parameters.n: expected a whole number")
    first = await post(worked, one, "retry", "again", json=edited)
    assert (first.status_code, first.json()["retry_of"]) == (202, one)
    shown = await worked.get(f"/executions/{first.json()['id']}")
    assert (shown["parameters"], shown["concurrency_key"]) == (edited["parameters"], "b")
    assert (shown["retry_of"], shown["priority"]) == (one, 4)
    # The same key is the same retry only with the same parameters.
    assert (await post(worked, one, "retry", "again", json=edited)).json()["duplicate"]
    assert refused(await post(worked, one, "retry", "again")) == (409, "idempotency_conflict")
    entries = (await worked.get("/audit-log", subject_kind="execution"))["items"]
    assert [each["after"] for each in entries] == [
        {"retry_id": first.json()["id"], "changed_parameters": ["customer", "pin"]}
    ]


async def test_a_retry_enters_the_tail_of_the_queue_once_for_each_key(worked: Served) -> None:
    one = await ended(worked)
    queued = await worked.submit_many("a.b", 3)
    again = (await post(worked, one, "retry")).json()
    assert (again["status"], again["position"]) == ("queued", 3)
    assert again["id"] > queued[-1]
    assert (await post(worked, one, "retry")).json()["id"] != again["id"]
    first, second = [await post(worked, one, "retry", "again") for _ in range(2)]
    assert (first.status_code, second.status_code) == (202, 200)
    assert second.json() == first.json() | {"duplicate": True}
    assert await count(worked) == 7


async def test_a_retry_of_what_has_not_ended_is_refused_with_its_status(worked: Served) -> None:
    running, queued = await worked.submit_many("a.b", 2)
    await worked.start(running)
    for execution_id, status in ((running, "running"), (queued, "queued")):
        answer = await post(worked, execution_id, "retry")
        assert refused(answer) == (409, "not_terminal")
        assert answer.json()["execution_status"] == status
    assert await count(worked) == 2
