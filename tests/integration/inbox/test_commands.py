"""Commands of HTTP over a real database: decided once, in order, answered exactly."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest

from tests.support.inbox import (
    ANN,
    Installation,
    command_ids,
    delete,
    numbered,
    patch,
    put,
    put_key,
    request,
)
from tests.support.ledger import until
from turnstile.common.domain.states import Status
from turnstile.executor.callers import Caller
from turnstile.executor.inbox import NotDecidedYet
from turnstile.executor.leader.command_rows import definition_tag
from turnstile.executor.leader.ports import DefinitionCommand


async def _of_action(installation: Installation, ref: str = "a") -> dict[str, Any]:
    query = "SELECT body FROM ledger.definition WHERE kind = 'action' AND name = $1"
    found: dict[str, Any] = json.loads((await installation.fetch(query, ref))[0][0])
    return found


async def test_requests_are_admitted_in_order_and_answered(installation: Installation) -> None:
    installation.lead()
    await installation.define("action", "a", max_concurrent=1)
    answers = await installation.submit(*numbered(1000))
    assert [each["execution_id"] for each in answers] == list(range(1, 1001))
    assert [each["position"] for each in answers][:3] == [1, 2, 3]
    assert {(each["status"], each["duplicate"]) for each in answers} == {("queued", False)}


async def test_a_repeated_command_finds_its_answer_and_is_not_decided_again(
    installation: Installation,
) -> None:
    installation.lead()
    await installation.define("action", "a")
    ids = command_ids(3)
    first = await installation.submit(*numbered(3), command_ids=ids)
    second = await installation.submit(*numbered(3), command_ids=ids)
    assert first == second
    assert await installation.fetch("SELECT count(*)::int FROM ledger.execution") == [(3,)]

    async def is_empty() -> bool:
        return not await installation.fetch("SELECT FROM ledger.inbox")

    await until(is_empty)


async def test_what_nobody_decides_in_time_is_kept_and_decided_later(installation: Installation) -> None:
    ids = command_ids(2)
    with pytest.raises(NotDecidedYet, match="kept, not decided yet") as kept:
        await installation.submit(*numbered(2), command_ids=ids, seconds=0.2)
    assert kept.value.command_ids == tuple(ids)
    installation.lead()
    await installation.define("action", "b")
    answers = await installation.submit(*numbered(2), command_ids=ids)
    # It was decided before the action existed, and stays so.
    assert {each["code"] for each in answers} == {"unknown_action"}
    assert answers[0]["message"].startswith("action_ref: no action 'a'; start a worker that has it")


async def test_fifty_submitters_of_one_key_get_one_execution(installation: Installation) -> None:
    installation.lead()
    await installation.define("action", "a")
    keyed = request(idempotency_key="k", parameters={"n": 1})
    answers = await asyncio.gather(*(installation.submit(keyed) for _ in range(50)))
    assert len({answer["execution_id"] for (answer,) in answers}) == 1
    assert sorted(answer["duplicate"] for (answer,) in answers) == [False] + 49 * [True]
    assert await installation.fetch("SELECT count(*)::int FROM ledger.execution") == [(1,)]


async def test_an_idempotency_key_is_one_execution_with_its_present_status(
    installation: Installation,
) -> None:
    leader = installation.lead()
    await installation.define("action", "a", max_concurrent=1)
    keyed = request(idempotency_key="k", parameters={"n": 1})
    (first,) = await installation.submit(keyed)
    (again,) = await installation.submit(keyed)
    assert (again["execution_id"], again["status"], again["position"], again["duplicate"]) == (
        first["execution_id"], "queued", 1, True,
    )  # fmt: skip
    leader.broker.worker.hello()
    await until(lambda: _is(leader.broker.worker.offered))
    (again,) = await installation.submit(keyed)
    assert (again["status"], again["position"]) == ("scheduled", None)
    assert leader.leader.leadership is not None
    leader.broker.worker.end(first["execution_id"], Status.COMPLETED)
    await until(lambda: installation.fetch("SELECT FROM ledger.execution WHERE status = 'completed'"))
    (again,) = await installation.submit(keyed)
    assert (again["status"], again["duplicate"]) == ("completed", True)
    (other,) = await installation.submit(request(idempotency_key="k", parameters={"n": 2}))
    assert other["code"] == "idempotency_conflict"
    assert other["message"] == (
        "idempotency_key: 'k' already names execution 1, which is a different request; use another key, or "
        "repeat the same request"
    )


async def _is(value: object) -> bool:
    return bool(value)


async def test_a_cancel_answers_each_execution_and_leaves_out_unknown_ones(
    installation: Installation,
) -> None:
    leader = installation.lead()
    await installation.define("action", "a", max_concurrent=1)
    await installation.submit(*numbered(3))
    leader.broker.worker.hello()
    await until(lambda: _is(leader.broker.worker.offered))
    moves = await installation.inbox.cancel([3, 99, 1], "no longer needed", ANN)
    assert moves == [
        (3, Status.QUEUED, Status.CANCELLED),
        (1, Status.SCHEDULED, Status.SCHEDULED),
    ]
    assert await installation.inbox.cancel([3], None, ANN) == [(3, Status.CANCELLED, Status.CANCELLED)]
    rows = await installation.fetch(
        "SELECT subject, before, after, action_ref, actor, address, channel FROM ledger.audit_log"
        " WHERE verb = 'cancelled' ORDER BY id"
    )
    assert [tuple(row) for row in rows] == [
        ("3", '{"status": "queued"}', '{"reason": "no longer needed", "status": "cancelled"}', "a", *ANN),
        (
            "1",
            '{"status": "scheduled"}',
            '{"reason": "no longer needed", "status": "scheduled", "cancel_requested": true}',
            "a",
            *ANN,
        ),
    ]


async def test_a_cancel_of_many_is_done_in_slices_and_others_go_between(installation: Installation) -> None:
    installation.lead()
    await installation.define("action", "a", max_concurrent=0)
    for _ in range(10):
        await installation.submit(*numbered(1000))
    many = asyncio.create_task(installation.inbox.cancel(range(10_000, 0, -1), None, ANN))
    await until(lambda: installation.fetch("SELECT FROM ledger.execution WHERE status = 'cancelled'"))
    (between,) = await installation.submit(request())
    assert not many.done()
    moves = await many
    assert [each for each, _, _ in moves] == list(range(10_000, 0, -1))
    assert {after for _, _, after in moves} == {Status.CANCELLED}
    assert between["execution_id"] == 10_001
    assert await installation.fetch(
        "SELECT count(*)::int FROM ledger.audit_log WHERE verb = 'cancelled'"
    ) == [(10_000,)]


async def test_a_retry_is_a_new_execution_of_an_ended_one(installation: Installation) -> None:
    installation.lead()
    await installation.define(
        "action", "a", max_concurrent=0, concurrency_key="/c", callback_url="http://x/y"
    )
    given = request(parameters={"c": "k", "n": [1, {"m": None}]}, metadata={"t": 1}, priority=2, timeout=7)
    await installation.submit(given, request(parameters={"c": "k"}))
    await installation.inbox.cancel([1], None, ANN)
    retried = await installation.inbox.retry([(1, "again"), (2, None), (77, None)], "00-ab", ANN)
    assert [(each.retry_of, each.status) for each in retried] == [
        (1, Status.CANCELLED),
        (2, Status.QUEUED),
        (77, None),
    ]
    assert retried[0].answer is not None
    assert (retried[0].answer["execution_id"], retried[0].answer["duplicate"]) == (3, False)
    assert retried[1].answer is None
    copied = "action_ref, key, priority, timeout_seconds, callback_url, metadata, parameters"
    rows = await installation.fetch(f"SELECT {copied} FROM ledger.execution WHERE id IN (1, 3) ORDER BY id")
    assert rows[0] == rows[1]
    assert await installation.fetch(
        "SELECT retry_of, idempotency_key, traceparent FROM ledger.execution WHERE id = 3"
    ) == [(1, "again", "00-ab")]
    (repeated,) = await installation.inbox.retry([(1, "again")], None, ANN)
    assert repeated.answer is not None
    assert (repeated.answer["execution_id"], repeated.answer["duplicate"]) == (3, True)
    assert (await installation.audit())[-1] == ("ann", "retried", "execution", "1")


async def test_two_patches_of_different_fields_both_take_effect(installation: Installation) -> None:
    installation.lead()
    await installation.define("action", "a", retry={"max_attempts": 3, "delay": "2s"}, timeout="5m")
    await asyncio.gather(
        installation.inbox.decide([patch("action", "a", max_concurrent=2, caller=Caller("bob"))]),
        installation.inbox.decide([patch("action", "a", paused=True)]),
        installation.inbox.decide([patch("action", "a", retry={"factor": 3})]),
    )
    body = await _of_action(installation)
    assert (body["max_concurrent"], body["paused"], body["timeout"]) == (2, True, 300.0)
    assert body["retry"] == {
        "max_attempts": 3,
        "delay": 2.0,
        "factor": 3.0,
        "max_delay": 300.0,
        "jitter": 0.1,
    }
    log = await installation.audit()
    assert ("bob", "limit_changed", "action", "a") in log
    assert ("ann", "paused", "action", "a") in log
    query = "SELECT before, after FROM ledger.audit_log WHERE verb = 'changed'"
    assert [tuple(row) for row in await installation.fetch(query)] == [
        ('{"retry.factor": 2}', '{"retry.factor": 3}')
    ]


async def test_a_change_that_changes_nothing_is_not_recorded(installation: Installation) -> None:
    installation.lead()
    await installation.define("action", "a", max_concurrent=2)
    answer = await installation.define("action", "a", max_concurrent=2)
    assert answer["is_changed"] is False
    assert await installation.audit() == [("ann", "created", "action", "a")]


async def test_a_patch_is_checked_as_a_whole(installation: Installation) -> None:
    installation.lead()
    await installation.define("action", "a")
    unknown, wrong, misspelt = await installation.inbox.decide(
        [
            patch("action", "b", paused=True),
            patch("action", "a", max_concurrent_total=5),
            patch("action", "a", pausd=True),
        ]
    )
    assert unknown["code"] == "not_found"
    assert wrong["code"] == "invalid_message"
    assert "an action without concurrency keys has one queue" in wrong["message"]
    assert misspelt["code"] == "unknown_field"
    assert await installation.audit() == [("ann", "created", "action", "a")]


async def test_a_change_is_made_only_in_the_state_that_was_read(installation: Installation) -> None:
    installation.lead()
    await installation.define("action", "a", max_concurrent=1)
    tag = definition_tag(await _of_action(installation))
    first, second = await installation.inbox.decide(
        [
            patch("action", "a", max_concurrent=2, if_match=tag),
            patch("action", "a", paused=True, if_match=tag),
        ]
    )
    assert first["is_changed"]
    assert second["code"] == "precondition_failed"
    assert "the action was changed since then, its ETag is" in second["message"]
    exists = put("action", "a")
    only_new = DefinitionCommand(
        kind="action", name="a", definition=exists.definition, if_none_match="*", changed_by=None
    )
    (third,) = await installation.inbox.decide([only_new])
    assert third["message"] == "header If-None-Match: the action exists; omit the header to replace it"


async def test_resources_are_checked_against_the_actions_that_use_them(installation: Installation) -> None:
    installation.lead()
    await installation.define("resource", "r", capacity=2, rank=1)
    await installation.define("resource", "s", capacity=2, rank=1)
    await installation.define("resource", "free")
    for uses, sentence in (
        (["none"], "action 'a': uses: there is no resource 'none'; create it"),
        ([{"resource": "r", "units": 3}], "3 units are more than the capacity 2 of 'r'"),
        (["r", "s"], "the resources 'r' and 's' have the same rank 1"),
    ):
        answer = await installation.define("action", "a", uses=uses)
        assert answer["code"] == "invalid_message"
        assert sentence in answer["message"]
    assert (await installation.define("action", "a", uses=["r", "free"]))["is_changed"]
    needed, gone = await installation.inbox.decide([delete("resource", "r"), delete("resource", "s")])
    assert (needed["code"], needed["used_by"]) == ("in_use", ["a"])
    assert gone == {"type": "deleted", "name": "s"}
    same = await installation.define("resource", "free", rank=1)
    assert same["code"] == "invalid_message"
    assert "resource 'free': rank: the action 'a' uses both" in same["message"]


async def test_a_key_has_a_limit_of_its_own(installation: Installation) -> None:
    leader = installation.lead()
    await installation.define("action", "a", max_concurrent=1, submitter_keys=True)
    await installation.define("action", "plain")
    settings = {"has_limit": True, "max_concurrent": 2, "weight": 1}
    stored, unknown, keyless = await installation.inbox.decide(
        [put_key("a", "k", settings), put_key("b", "k", settings), put_key("plain", "k", settings)]
    )
    assert stored["is_changed"]
    assert unknown["code"] == "not_found"
    assert keyless["message"].startswith("key: the action 'plain' has no concurrency keys")
    leader.broker.worker.hello(concurrency=9)
    await installation.submit(*[request(concurrency_key="k", parameters={"n": n}) for n in range(4)])
    await until(lambda: _is(len(leader.broker.worker.offered) == 2))
    await leader.kill()
    installation.leaders.remove(leader)
    installation.lead("b")
    deleted, again = await installation.inbox.decide([put_key("a", "k", None), put_key("a", "k", None)])
    assert deleted["is_changed"]
    assert again["message"].startswith("key: 'k' of 'a' has no settings of its own")
    query = "SELECT before, after FROM ledger.audit_log WHERE verb = 'changed' ORDER BY id"
    assert [tuple(row) for row in await installation.fetch(query)] == [
        ("{}", '{"keys.k": {"weight": 1, "max_concurrent": 2}}'),
        ('{"keys.k": {"weight": 1, "max_concurrent": 2}}', "{}"),
    ]


async def test_an_action_with_much_that_waits_is_deleted_over_several_turns(
    installation: Installation,
) -> None:
    leader = installation.lead().leader
    await installation.define("action", "a", max_concurrent=0)
    await installation.submit(*numbered(1200))
    assert leader.leadership is not None
    before = leader.leadership.number
    (deleted,) = await installation.inbox.decide([delete("action", "a", cancel_max=10_000)])
    assert (deleted["type"], deleted["cancelled"]) == ("deleted", 1200)
    assert leader.leadership.number >= before + 3
    (row,) = await installation.fetch(
        "SELECT count(*) AS ended, count(DISTINCT completed_at) AS turns FROM ledger.execution "
        "WHERE status = 'cancelled'"
    )
    assert (row["ended"], row["turns"] >= 3) == (1200, True)
    verbs = [verb for _, verb, _, _ in await installation.audit()]
    assert (verbs.count("cancelled"), verbs.count("deleted")) == (1200, 1)
    (answer,) = await installation.submit(request())
    assert answer["code"] == "unknown_action"


async def test_a_deletion_over_several_turns_goes_on_with_the_next_leader(installation: Installation) -> None:
    first = installation.lead()
    await installation.define("action", "a", max_concurrent=0)
    await installation.submit(*numbered(1200))
    deleting = asyncio.create_task(installation.inbox.decide([delete("action", "a", cancel_max=10_000)]))
    cancelled = "SELECT count(*) AS n FROM ledger.execution WHERE status = 'cancelled'"

    async def is_begun() -> bool:
        return bool((await installation.fetch(cancelled))[0]["n"])

    await until(is_begun)
    await first.kill()
    installation.lead("b")
    (answer,) = await deleting
    assert answer["type"] == "deleted"
    assert (await installation.fetch(cancelled))[0]["n"] == 1200


async def test_an_action_is_deleted_with_what_waits_if_asked(installation: Installation) -> None:
    installation.lead()
    await installation.define("action", "a", max_concurrent=0, submitter_keys=True)
    await installation.inbox.decide([put_key("a", "k", {"has_limit": False, "weight": 2})])
    await installation.submit(request(), request(run_at="2999-01-01T00:00:00Z"))
    (waits,) = await installation.inbox.decide([delete("action", "a")])
    assert (waits["code"], waits["waiting"], waits["running"]) == ("in_use", 2, 0)
    assert waits["message"].startswith("waiting: 2 executions of 'a' wait; send ?waiting=cancel")
    deleted, defined, submitted = await installation.inbox.decide(
        [delete("action", "a", cancel_max=10), put("action", "a", paused=True), request()]
    )
    assert (deleted["type"], deleted["cancelled"]) == ("deleted", 2)
    assert defined["is_changed"]
    assert submitted["execution_id"] == 3
    assert await installation.fetch("SELECT ref, id FROM ledger.action_id") == [("a", 1)]
    log = await installation.audit()
    assert [each[1:] for each in log[-4:]] == [
        ("deleted", "action", "a"),
        ("cancelled", "execution", "1"),
        ("cancelled", "execution", "2"),
        ("created", "action", "a"),
    ]
    assert not await installation.fetch("SELECT FROM ledger.definition WHERE kind = 'key'")


async def test_the_action_decides_key_priority_and_webhook_of_a_request(installation: Installation) -> None:
    installation.lead()
    fields = {"concurrency_key": "/c/0", "priority_min": 4, "callback_url": "http://x/done"}
    await installation.define("action", "a", max_concurrent=0, **fields)
    accepted, missing, urgent, other = await installation.submit(
        request(parameters={"c": [1.50, 2]}),
        request(parameters={"c": None}),
        request(parameters={"c": [1]}, priority=3),
        request(parameters={"c": [1]}, concurrency_key="2"),
    )
    rows = await installation.fetch("SELECT key, priority, callback_url FROM ledger.execution")
    assert [tuple(row) for row in rows] == [("1.5", 4, "http://x/done")]
    assert accepted["status"] == "queued"
    assert missing["message"] == "parameters: no value at concurrency key /c/0"
    assert urgent["message"].startswith("priority: 3 is below the priority_min of the action, 4; send 4 or")
    assert other["message"].startswith("concurrency_key: is not the value at /c/0 in the parameters")
    assert {each["code"] for each in (missing, urgent, other)} == {"invalid_parameters"}
    operator = request(parameters={"c": [1]}, priority=1, may_be_urgent=True)
    assert (await installation.submit(operator))[0]["status"] == "queued"


async def test_a_worker_is_drained_once(installation: Installation) -> None:
    leader = installation.lead()
    await installation.define("action", "a")
    leader.broker.worker.hello()
    await until(lambda: installation.fetch("SELECT FROM ledger.worker WHERE is_taking"))
    name = leader.broker.worker.sender.worker_id
    drain = [
        DefinitionCommand(
            kind="worker", name=each, definition={"is_draining": True}, changed_by=ANN._asdict()
        )
        for each in (name, name, "nobody")
    ]
    first, second, unknown = await installation.inbox.decide(drain)
    assert first["is_draining"]
    assert second["is_draining"]
    assert unknown["code"] == "not_found"
    assert await installation.fetch("SELECT is_draining FROM ledger.worker") == [(True,)]
    assert [each for each in await installation.audit() if each[1] == "drained"] == [
        ("ann", "drained", "worker", name)
    ]


async def test_a_worker_registers_what_is_missing_and_changes_nothing(installation: Installation) -> None:
    leader = installation.lead()
    await installation.define("action", "a", max_concurrent=1)
    definitions: list[dict[str, Any]] = [
        {"ref": "a", "max_concurrent": 9},
        {"ref": "b", "timeout": "5m", "max_concurrent": 3},
        {"ref": "wrong", "uses": ["none"]},
        {"ref": "schema", "parameters_schema": {"type": "object"}},
    ]
    leader.broker.worker.hello(*definitions)
    await until(lambda: installation.fetch("SELECT FROM ledger.worker WHERE is_taking"))
    assert (await _of_action(installation))["max_concurrent"] == 1
    assert (await _of_action(installation, "b"))["timeout"] == 300.0
    names = await installation.fetch("SELECT name FROM ledger.definition WHERE kind = 'action' ORDER BY name")
    assert names == [("a",), ("b",)]
    rows = await installation.fetch("SELECT actor, channel, verb FROM ledger.audit_log WHERE subject = 'b'")
    assert [tuple(row) for row in rows] == [("worker", "worker", "created")]


async def test_old_answers_are_deleted_in_bounded_steps(installation: Installation) -> None:
    await installation.fetch(
        "INSERT INTO ledger.answer SELECT gen_random_uuid(), now() - make_interval(secs => n), ''"
        " FROM generate_series(1, 6000) n"
    )
    await installation.fetch("INSERT INTO ledger.answer VALUES ($1, now() + interval '1 min', '')", uuid4())
    assert [await installation.inbox.prune() for _ in range(3)] == [5000, 1000, 0]
    assert await installation.fetch("SELECT count(*)::int FROM ledger.answer") == [(1,)]
