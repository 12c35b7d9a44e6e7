"""`DELETE /actions/{ref}`: never under something that runs, and under what waits only if that is said."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.protocol import Protocol, request
from tests.support.served import Served, serve
from tests.support.stepping import blocked
from turnstile.common.action_definition import ActionDefinition
from turnstile.executor.api import definitions
from turnstile.executor.decisions import Rejected

URL = "/api/v1/actions/a.b"


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Served]:
    async with serve(database_url) as served:
        await served.define("a.b", max_concurrent=2)
        await served.register_worker()
        yield served


async def test_one_that_nothing_waits_for_is_gone_and_its_record_stays(api: Served) -> None:
    (one,) = await api.submit_many("a.b", 1)
    await api.claim(one)
    await api.finish(one)
    await api.settle(one)
    answer = await api.http.delete(URL)
    assert (answer.status_code, answer.json()) == (200, {"action_ref": "a.b", "cancelled": 0})
    assert (await api.get("/actions"))["items"] == []
    for rest in ("", "/queue", "/queue-stats"):
        assert (await api.http.get(URL + rest)).status_code == 404
    assert (await api.get(f"/executions/{one}"))["action_ref"] == "a.b"
    assert len((await api.get("/executions", action_ref="a.b"))["items"]) == 1
    refused = await api.http.post("/api/v1/executions", json={"action_ref": "a.b"})
    assert (refused.status_code, refused.json()["code"]) == (422, "unknown_action")
    assert (await api.http.delete(URL)).status_code == 404


async def test_while_some_wait_it_stays_and_says_what_to_send(api: Served) -> None:
    await api.submit_many("a.b", 3)
    await api.submit("a.b", run_at="2100-01-01T00:00:00Z")
    answer = await api.http.delete(URL)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "in_use")
    assert (problem["waiting"], problem["running"]) == (4, 0)
    assert "?waiting=cancel" in problem["detail"]
    assert (await api.http.get(URL)).status_code == 200


async def test_those_that_wait_end_with_it_when_that_is_said(api: Served) -> None:
    ids = await api.submit_many("a.b", 3)
    ids.append((await api.submit("a.b", run_at="2100-01-01T00:00:00Z"))["id"])
    answer = await api.http.delete(URL, params={"waiting": "cancel"})
    assert (answer.status_code, answer.json()["cancelled"]) == (200, 4)
    for one in ids:
        assert (await api.get(f"/executions/{one}"))["status"] == "cancelled"
    assert (await api.get("/audit"))["clean"]


async def test_while_one_runs_it_stays_whatever_is_said(api: Served) -> None:
    ids = await api.submit_many("a.b", 3)
    await api.claim(ids[0])
    for waiting in ("refuse", "cancel"):
        answer = await api.http.delete(URL, params={"waiting": waiting})
        problem = answer.json()
        assert (answer.status_code, problem["waiting"], problem["running"]) == (409, 2, 1)
        assert "/executions/cancel" in problem["detail"]
    assert (await api.get(f"/executions/{ids[2]}"))["status"] == "queued"


async def test_more_than_one_call_may_end_are_left_alone(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "DELETED_WITH_MAX", 2)
    ids = await api.submit_many("a.b", 3)
    answer = await api.http.delete(URL, params={"waiting": "cancel"})
    assert (answer.status_code, answer.json()["code"]) == (409, "in_use")
    assert (await api.get(f"/executions/{ids[2]}"))["status"] == "queued"


async def test_a_word_that_is_not_known_is_refused(api: Served) -> None:
    answer = await api.http.delete(URL, params={"waiting": "keep"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_message")
    assert "waiting" in answer.json()["detail"]


async def test_its_name_comes_back_as_a_new_action_with_its_own_limit(api: Served) -> None:
    await api.submit_many("a.b", 3)
    before = (await api.http.get(URL)).json()
    await api.http.delete(URL, params={"waiting": "cancel"})
    again = (await api.http.put(URL, json={"max_concurrent": 1})).json()
    assert again["created_at"] > before["created_at"]
    (_, queued) = await api.submit_many("a.b", 2)
    shown = await api.get(f"/executions/{queued}")
    assert shown["waiting_on"]["max_concurrent"] == 1


async def test_a_worker_that_serves_it_brings_it_back(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=7)
    await protocol.submit("a")
    deletion = await protocol.queue_manager.delete_action("a", cancel_max=9, reason="r", changed_by="b")
    assert deletion is not None
    assert (deletion.deleted, len(deletion.ended)) == (True, 1)
    assert await protocol.register_actions(ActionDefinition(ref="a", max_concurrent=3)) == []
    assert (await protocol.queue())["max_concurrent"] == 3
    await protocol.submit("a")


@pytest.mark.parametrize("key", [None, "a-new-line"])
async def test_an_admission_that_waited_for_the_deletion_is_refused(
    protocol: Protocol, other: Protocol, key: str | None
) -> None:
    await protocol.put("a", submitter_keys=True)
    await protocol.put("b")
    await protocol.submit("a", count=2)
    await protocol.run(*await protocol.held())
    await protocol.settle(*((i, 1) for i in await protocol.held()))
    transaction = protocol.transaction()
    await transaction.start()
    await protocol.queue_manager.delete_action("a", cancel_max=0, reason="r", changed_by="b")
    late = await blocked(other, protocol, other.admit(request("b"), request("a", concurrency_key=key)))
    await transaction.commit()
    (taken, refused), _ = await late
    assert not isinstance(taken, Rejected)
    assert isinstance(refused, Rejected)
    assert refused.code == "unknown_action"
    assert "no action 'a'" in refused.message


async def test_a_claim_behind_the_deletion_finds_the_execution_ended(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put("a", max_concurrent=1)
    (one,) = await protocol.submit("a")
    transaction = protocol.transaction()
    await transaction.start()
    deletion = await protocol.queue_manager.delete_action("a", cancel_max=1, reason="r", changed_by="b")
    late = await blocked(other, protocol, other.claim_verdicts(one))
    await transaction.commit()
    assert deletion is not None
    assert deletion.deleted
    assert await asyncio.wait_for(late, 10) == ["stale"]
