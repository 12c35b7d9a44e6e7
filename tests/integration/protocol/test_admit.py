"""admit: requests become executions, in the order given, each one once (P2, P5)."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.integration.executor.reading import ids_in
from tests.support.protocol import Protocol, accepted, rejected, request
from turnstile.common.domain.errors import Code
from turnstile.common.domain.identifiers import ExecutionId


async def test_the_order_given_is_the_order_of_ids_over_all_lines(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=0)
    await protocol.put("b", max_concurrent=0)
    verdicts, grants = await protocol.admit(*(request("ab"[n % 2], metadata={"n": n}) for n in range(100)))
    ids = [accepted(v).execution_id for v in verdicts]
    assert ids == sorted(ids)
    assert len(set(ids)) == 100
    assert grants.granted == []
    stored = await protocol.column("SELECT (metadata->>'n')::int FROM execution ORDER BY id")
    assert stored == list(range(100))


async def test_a_later_batch_has_later_ids(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    first, second = await protocol.submit(count=5), await protocol.submit(count=5)
    assert max(first) < min(second)


async def test_an_empty_batch_is_nothing(protocol: Protocol) -> None:
    assert (await protocol.admit())[0] == []
    nothing = ", ".join(["'{}'"] * 12)
    row = await protocol.connection.fetchrow(f"SELECT * FROM turnstile.admit({nothing})")
    assert row is not None
    assert not any(row.values())


async def test_what_is_free_is_granted_at_once_and_the_rest_stands_in_line(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=2, pool="gpu")
    verdicts, grants = await protocol.admit(*(request() for _ in range(5)))
    assert [(a.status, a.position) for a in map(accepted, verdicts)] == [
        ("scheduled", None), ("scheduled", None), ("queued", 1), ("queued", 2), ("queued", 3),
    ]  # fmt: skip
    assert ids_in(grants) == [accepted(v).execution_id for v in verdicts[:2]]
    assert {(g.attempt, g.action_ref, g.pool) for g in grants.granted} == {(1, "a", "gpu")}


async def test_positions_are_exact_in_each_line_of_a_mixed_batch(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=0)
    await protocol.put("b", max_concurrent=1)
    await protocol.submit("a", 3)
    verdicts, _ = await protocol.admit(*(request(ref) for ref in "abbabab"))
    assert [accepted(v).position for v in verdicts] == [4, None, 1, 5, 2, 6, 3]
    queue = await protocol.queue("a")
    assert (queue["depth"], queue["total_enqueued"]) == (6, 6)


async def test_an_unknown_action_is_refused_and_harms_no_other(protocol: Protocol) -> None:
    await protocol.put()
    verdicts, _ = await protocol.admit(request(), request("no.such"), request())
    assert rejected(verdicts[1]).code is Code.UNKNOWN_ACTION
    assert "no.such" in rejected(verdicts[1]).message
    assert [accepted(verdicts[n]).status for n in (0, 2)] == ["scheduled"] * 2
    assert len(await protocol.column("SELECT id FROM execution")) == 2


# --- the same request twice ---------------------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "in two batches"])
async def test_the_same_key_and_request_is_the_same_execution(protocol: Protocol, together: bool) -> None:
    await protocol.put(max_concurrent=0)
    twice = [request(idempotency_key="k", parameters={"x": 1}) for _ in range(2)]
    if together:
        (first, second), _ = await protocol.admit(*twice)
    else:
        ((first,), _), ((second,), _) = await protocol.admit(twice[0]), await protocol.admit(twice[1])
    assert (accepted(first).duplicate, accepted(second).duplicate) == (False, True)
    assert accepted(first).execution_id == accepted(second).execution_id
    assert (accepted(first).position, accepted(second).position) == (1, 1)
    queue = await protocol.queue()
    assert (queue["depth"], queue["total_enqueued"]) == (1, 1)


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "in two batches"])
async def test_the_same_key_with_another_request_is_refused(protocol: Protocol, together: bool) -> None:
    await protocol.put(max_concurrent=0)
    one, other = (request(idempotency_key="k", parameters={"x": x}) for x in (1, 2))
    if together:
        (first, second), _ = await protocol.admit(one, other)
    else:
        ((first,), _), ((second,), _) = await protocol.admit(one), await protocol.admit(other)
    assert rejected(second).code is Code.IDEMPOTENCY_CONFLICT
    assert str(accepted(first).execution_id) in rejected(second).message
    assert await protocol.line() == [accepted(first).execution_id]


async def test_a_known_key_says_where_its_execution_stands_now(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    (first,) = await protocol.submit(idempotency_key="k")
    await protocol.run(first)
    (again,), _ = await protocol.admit(request(idempotency_key="k"))
    assert (accepted(again).execution_id, accepted(again).status) == (first, "completed")
    assert accepted(again).duplicate


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "in two batches"])
async def test_the_same_delivery_is_the_same_execution(protocol: Protocol, together: bool) -> None:
    await protocol.put(max_concurrent=0)
    twice = [request(delivery_key=key) for key in [uuid4()] * 2]
    if together:
        (first, second), _ = await protocol.admit(*twice)
    else:
        ((first,), _), ((second,), _) = await protocol.admit(twice[0]), await protocol.admit(twice[1])
    assert accepted(first).execution_id == accepted(second).execution_id
    assert accepted(second).duplicate
    assert len(await protocol.line()) == 1


@pytest.mark.parametrize(
    "known", [{"idempotency_key": "k"}, {"delivery_key": uuid4()}], ids=["key", "delivery"]
)
async def test_what_is_known_stays_so_when_its_action_is_deleted(
    protocol: Protocol, known: dict[str, Any]
) -> None:
    await protocol.put()
    ((first,), _) = await protocol.admit(request(**known))
    known_id = accepted(first).execution_id
    await protocol.run(known_id)
    await protocol.settle((known_id, 1))
    await protocol.queue_manager.delete_action("a", cancel_max=0, reason="", changed_by=None)
    (again, new, other), _ = await protocol.admit(
        request(**known), request(), request(**known, parameters={"x": 1})
    )
    assert (accepted(again).execution_id, accepted(again).status) == (known_id, "completed")
    assert accepted(again).duplicate
    assert [rejected(v).code for v in (new, other)] == [Code.UNKNOWN_ACTION] * 2


async def test_what_is_known_stays_so_when_its_line_could_not_be_named_any_more(protocol: Protocol) -> None:
    await protocol.put()
    (first,) = await protocol.submit(idempotency_key="k")
    await protocol.put(concurrency_key="/who")
    (again, new), _ = await protocol.admit(request(idempotency_key="k"), request())
    assert accepted(again).execution_id == first
    assert rejected(new).code is Code.INVALID_PARAMETERS


# --- which line ---------------------------------------------------------------------------------------


async def test_each_value_at_the_pointer_has_a_line_of_its_own(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1, concurrency_key="/customer/id")
    verdicts, grants = await protocol.admit(
        *(request(parameters={"customer": {"id": who}}) for who in ("x", "x", "y", 7, "7"))
    )
    assert [accepted(v).position for v in verdicts] == [None, 1, None, None, 1]
    assert len(grants.granted) == 3
    keys = await protocol.column("SELECT concurrency_key FROM execution ORDER BY id")
    assert keys == ["x", "x", "y", "7", "7"]


async def test_a_key_in_the_request_comes_before_the_pointer_where_submitters_may_name_keys(
    protocol: Protocol,
) -> None:
    await protocol.put(max_concurrent=1, concurrency_key="/who", submitter_keys=True)
    await protocol.submit(parameters={"who": "x"}, concurrency_key="mine")
    assert (await protocol.queue(key="mine"))["total_enqueued"] == 1


@pytest.mark.parametrize("pointer", [None, "/who"])
async def test_a_key_of_the_request_s_own_is_refused_and_what_is_known_stays_known(
    protocol: Protocol, pointer: str | None
) -> None:
    await protocol.put(concurrency_key=pointer, submitter_keys=True)
    mine = request(parameters={"who": "x"}, concurrency_key="mine", idempotency_key="k")
    ((before,), _) = await protocol.admit(mine)
    await protocol.put(concurrency_key=pointer)
    (again, new), _ = await protocol.admit(mine, request(parameters={"who": "x"}, concurrency_key="mine"))
    assert accepted(again).execution_id == accepted(before).execution_id
    assert rejected(new).code is Code.INVALID_PARAMETERS
    assert rejected(new).message.startswith("concurrency_key: ")


async def test_a_retry_keeps_its_key_though_no_new_request_may_name_one(protocol: Protocol) -> None:
    await protocol.put(submitter_keys=True)
    (first,) = await protocol.submit(concurrency_key="mine")
    await protocol.run(first)
    await protocol.settle((first, 1))
    await protocol.put()
    (retried,), _ = await protocol.queue_manager.retry([(ExecutionId(first), None)])
    assert retried.verdict is not None
    again = await protocol.execution(accepted(retried.verdict).execution_id)
    assert again["concurrency_key"] == "mine"


@pytest.mark.parametrize(
    "parameters", [{}, {"who": None}, {"who": {}}], ids=["absent", "null", "too shallow"]
)
async def test_no_value_at_the_pointer_is_refused(protocol: Protocol, parameters: dict[str, object]) -> None:
    await protocol.put(concurrency_key="/who/id" if "who" in parameters else "/who")
    (verdict,), _ = await protocol.admit(request(parameters=parameters))
    assert rejected(verdict).code is Code.INVALID_PARAMETERS
    assert "/who" in rejected(verdict).message


async def test_a_value_too_long_to_name_a_line_is_refused(protocol: Protocol) -> None:
    await protocol.put(concurrency_key="/who")
    verdicts, _ = await protocol.admit(*(request(parameters={"who": "x" * n}) for n in (513, 512)))
    assert rejected(verdicts[0]).code is Code.INVALID_PARAMETERS
    assert accepted(verdicts[1]).status == "scheduled"


# --- not yet, not for ever ----------------------------------------------------------------------------


async def test_what_is_not_due_is_delayed_without_a_place(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    run_at = datetime.now(UTC) + timedelta(hours=1)
    verdicts, grants = await protocol.admit(request(run_at=run_at), request(), request())
    assert [(a.status, a.position) for a in map(accepted, verdicts)] == [
        ("delayed", None), ("scheduled", None), ("queued", 1),
    ]  # fmt: skip
    assert len(grants.granted) == 1
    assert await protocol.column("SELECT due_at FROM delayed") == [run_at]
    queue = await protocol.queue()
    assert (queue["depth"], queue["total_enqueued"]) == (1, 3)


async def test_a_time_that_has_passed_is_now(protocol: Protocol) -> None:
    await protocol.put()
    (verdict,), _ = await protocol.admit(request(run_at=datetime(2020, 1, 1, tzinfo=UTC)))
    assert accepted(verdict).status == "scheduled"


async def test_the_time_to_live_of_the_request_comes_before_the_action_s(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0, ttl=60)
    await protocol.admit(request(), request(ttl=5))
    seconds = await protocol.column(
        "SELECT extract(epoch FROM x.expires_at - e.created_at)::float"
        " FROM expiring x JOIN execution e ON e.id = x.execution_id ORDER BY e.id"
    )
    assert seconds == [60.0, 5.0]


async def test_the_timeout_of_the_request_comes_before_the_action_s(protocol: Protocol) -> None:
    await protocol.put(timeout=60)
    await protocol.admit(request(), request(timeout=5))
    assert await protocol.column("SELECT timeout_seconds FROM execution ORDER BY id") == [60.0, 5.0]
