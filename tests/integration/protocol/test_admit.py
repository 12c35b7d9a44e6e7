"""admit: requests become executions once, in order, within the bounds of their queues (P2, P5)."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.support.protocol import Protocol, accepted, rejected, request
from turnstile.common.domain.errors import Code
from turnstile.common.domain.identifiers import ExecutionId
from turnstile.executor.results import Accepted, Admission, Rejected, Verdict


async def admit_both(protocol: Protocol, *twice: Admission, together: bool) -> list[Verdict]:
    """Admit two requests in one batch, or in two."""
    batches = [twice] if together else [(admission,) for admission in twice]
    return [verdict for batch in batches for verdict in (await protocol.admit(*batch))[0]]


async def test_the_given_order_is_the_order_of_ids_over_all_queues(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=0)
    await protocol.put("b", max_concurrent=0)
    verdicts, grants = await protocol.admit(*(request("ab"[n % 2], metadata={"n": n}) for n in range(100)))
    ids = [accepted(v).execution_id for v in verdicts]
    assert ids == sorted(ids)
    assert len(set(ids)) == 100
    assert grants.granted == []
    stored = await protocol.column("SELECT (metadata->>'n')::int FROM execution ORDER BY id")
    assert stored == list(range(100))
    assert max(ids) < min(await protocol.submit(count=5))


async def test_positions_are_exact_in_each_queue_of_a_mixed_batch(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=0)
    await protocol.put("b", max_concurrent=1)
    await protocol.submit("a", 3)
    verdicts, _ = await protocol.admit(*(request(ref) for ref in "abbabab"))
    assert [accepted(v).position for v in verdicts] == [4, None, 1, 5, 2, 6, 3]
    queue = await protocol.queue("a")
    assert (queue["depth"], queue["total_enqueued"]) == (6, 6)


# --- duplicates


async def test_a_duplicate_grants_its_queue_beside_a_new_request(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=1)
    await protocol.put("b", max_concurrent=1)
    known = request("a", idempotency_key="k")
    verdicts, _ = await protocol.admit(known)
    handed_back = accepted(verdicts[0]).execution_id
    await protocol.claim(handed_back)
    await protocol.hand_back(handed_back)
    (_, new), grants = await protocol.admit(known, request("b"))
    assert [g.execution_id for g in grants.granted] == [handed_back, accepted(new).execution_id]


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "two batches"])
async def test_the_same_key_or_delivery_is_the_same_execution(protocol: Protocol, together: bool) -> None:
    await protocol.put("keyed", max_concurrent=0)
    await protocol.put("delivered", max_concurrent=0)
    known: dict[str, dict[str, Any]] = {
        "keyed": {"idempotency_key": "k"}, "delivered": {"delivery_key": uuid4()},
    }  # fmt: skip
    for ref, fields in known.items():
        twice = [request(ref, parameters={"x": 1}, **fields) for _ in range(2)]
        first, second = map(accepted, await admit_both(protocol, *twice, together=together))
        assert (first.duplicate, second.duplicate) == (False, True)
        assert first.execution_id == second.execution_id
        assert (first.position, second.position) == (1, 1)
        queue = await protocol.queue(ref)
        assert (queue["depth"], queue["total_enqueued"]) == (1, 1)


async def test_the_same_key_with_another_request_is_a_conflict(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0)
    for together in (True, False):
        requests = [request(idempotency_key=f"k {together}", parameters={"x": x}) for x in (1, 2)]
        first, second = await admit_both(protocol, *requests, together=together)
        assert rejected(second).code is Code.IDEMPOTENCY_CONFLICT
        assert str(accepted(first).execution_id) in rejected(second).message
        assert (await protocol.waiting())[-1] == accepted(first).execution_id
    assert len(await protocol.waiting()) == 2


async def test_a_duplicate_is_recognised_after_its_action_was_deleted(protocol: Protocol) -> None:
    keys: tuple[dict[str, Any], ...] = ({"idempotency_key": "k"}, {"delivery_key": uuid4()})
    for known in keys:
        await protocol.put()
        ((first,), _) = await protocol.admit(request(**known))
        known_id = accepted(first).execution_id
        await protocol.run(known_id)
        await protocol.settle((known_id, 1))
        await protocol.executor.delete_action("a", cancel_max=0, reason="", changed_by=None)
        (again, new, other), _ = await protocol.admit(
            request(**known), request(), request(**known, parameters={"x": 1})
        )
        assert (accepted(again).execution_id, accepted(again).status) == (known_id, "completed")
        assert accepted(again).duplicate
        assert [rejected(v).code for v in (new, other)] == [Code.UNKNOWN_ACTION] * 2


async def test_a_duplicate_is_recognised_where_a_new_request_would_have_no_queue(protocol: Protocol) -> None:
    await protocol.put()
    (first,) = await protocol.submit(idempotency_key="k")
    await protocol.put(concurrency_key="/who")
    (again, new), _ = await protocol.admit(request(idempotency_key="k"), request())
    assert accepted(again).execution_id == first
    assert rejected(new).code is Code.INVALID_PARAMETERS


# --- concurrency keys


async def test_each_value_at_the_pointer_has_its_own_queue(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1, concurrency_key="/customer/id")
    verdicts, grants = await protocol.admit(
        *(request(parameters={"customer": {"id": who}}) for who in ("x", "x", "y", 7, "7"))
    )
    assert [accepted(v).position for v in verdicts] == [None, 1, None, None, 1]
    assert len(grants.granted) == 3
    keys = await protocol.column("SELECT concurrency_key FROM execution ORDER BY id")
    assert keys == ["x", "x", "y", "7", "7"]


@pytest.mark.parametrize("pointer", [None, "/who"])
async def test_only_actions_with_submitter_keys_accept_a_key_in_the_request(
    protocol: Protocol, pointer: str | None
) -> None:
    await protocol.put(concurrency_key=pointer, submitter_keys=True)
    mine = request(parameters={"who": "x"}, concurrency_key="mine", idempotency_key="k")
    ((before,), _) = await protocol.admit(mine)
    assert (await protocol.queue(key="mine"))["total_enqueued"] == 1
    await protocol.put(concurrency_key=pointer)
    (again, new), _ = await protocol.admit(mine, request(parameters={"who": "x"}, concurrency_key="mine"))
    assert accepted(again).execution_id == accepted(before).execution_id
    assert rejected(new).code is Code.INVALID_PARAMETERS
    assert rejected(new).message.startswith("concurrency_key: ")


async def test_a_retry_keeps_its_key_where_new_requests_may_have_none(protocol: Protocol) -> None:
    await protocol.put(submitter_keys=True)
    (first,) = await protocol.submit(concurrency_key="mine")
    await protocol.run(first)
    await protocol.settle((first, 1))
    await protocol.put()
    (retried,), _ = await protocol.queue_manager.retry([(ExecutionId(first), None)])
    assert retried.verdict is not None
    again = await protocol.execution(accepted(retried.verdict).execution_id)
    assert again["concurrency_key"] == "mine"


async def test_a_request_without_a_usable_concurrency_key_is_rejected(protocol: Protocol) -> None:
    await protocol.put("flat", concurrency_key="/who")
    await protocol.put("deep", concurrency_key="/who/id")
    unusable: list[tuple[str, dict[str, Any]]] = [
        ("flat", {}), ("deep", {"who": None}), ("deep", {"who": {}}), ("flat", {"who": "x" * 513}),
    ]  # fmt: skip
    usable: dict[str, Any] = {"flat": {"who": "x" * 512}, "deep": {"who": {"id": 1}}}
    for ref, parameters in unusable:
        (refused, taken), _ = await protocol.admit(
            request(ref, parameters=parameters), request(ref, parameters=usable[ref])
        )
        assert rejected(refused).code is Code.INVALID_PARAMETERS
        assert "concurrency key" in rejected(refused).message
        assert accepted(taken).status == "scheduled"


# --- run_at, ttl, timeout


async def test_an_execution_with_a_later_start_is_delayed_and_has_no_position(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=1)
    run_at = datetime.now(UTC) + timedelta(hours=1)
    past = datetime(2020, 1, 1, tzinfo=UTC)
    verdicts, grants = await protocol.admit(request(run_at=run_at), request(run_at=past), request())
    positions = [(a.status, a.position) for a in map(accepted, verdicts)]
    assert positions == [("delayed", None), ("scheduled", None), ("queued", 1)]
    assert len(grants.granted) == 1
    assert await protocol.column("SELECT due_at FROM delayed") == [run_at]
    queue = await protocol.queue()
    assert (queue["depth"], queue["total_enqueued"]) == (1, 3)


async def test_ttl_and_timeout_of_the_request_override_those_of_the_action(protocol: Protocol) -> None:
    await protocol.put(max_concurrent=0, ttl=60, timeout=70)
    await protocol.admit(request(), request(ttl=5, timeout=6))
    seconds = await protocol.connection.fetch(
        "SELECT extract(epoch FROM x.expires_at - e.created_at)::float, e.timeout_seconds"
        " FROM expiring x JOIN execution e ON e.id = x.execution_id ORDER BY e.id"
    )
    assert [tuple(row) for row in seconds] == [(60.0, 70.0), (5.0, 6.0)]


# --- bounded queues


async def admitted(protocol: Protocol, ref: str, count: int) -> int:
    verdicts, _ = await protocol.admit(*(request(ref) for _ in range(count)))
    outcome = [isinstance(v, Accepted) for v in verdicts]
    assert outcome == sorted(outcome, reverse=True), "a later one was admitted after a rejected one"
    assert all(v.code is Code.QUEUE_FULL for v in verdicts if isinstance(v, Rejected))
    return sum(outcome)


BOUNDED: list[tuple[dict[str, Any], int]] = [
    ({"max_concurrent": 1, "max_queued": 3}, 4),
    ({"max_concurrent": 3, "max_queued": 0}, 3),
    ({"max_concurrent": 0, "max_queued": 2}, 2),
    ({"max_concurrent": 5, "max_queued": 5}, 10),
    ({"max_concurrent": 2, "when_full": "reject"}, 2),
    ({"max_concurrent": 5, "max_queued": 2, "paused": True}, 2),
    ({"when_full": "reject"}, 50),
    ({"max_queued": 1}, 50),
]


async def test_one_batch_fills_the_slots_and_the_queue_to_the_bound(protocol: Protocol) -> None:
    for number, (definition, capacity) in enumerate(BOUNDED):
        ref = f"a{number}"
        await protocol.put(ref, **definition)
        assert await admitted(protocol, ref, 50) == capacity, definition
        queue = await protocol.queue(ref)
        assert queue["held"] + queue["depth"] == capacity
        if capacity < 50:
            assert await admitted(protocol, ref, 3) == 0


async def test_the_rejection_names_the_numbers(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=3, max_queued=2)
    await protocol.put("b", max_queued=0, paused=True)
    for ref, numbers in (
        ("a", "2 waiting of at most 2, 3 running of at most 3"),
        ("b", "0 waiting of at most 0, 0 running without a limit"),
    ):
        await admitted(protocol, ref, 5)
        (verdict,), _ = await protocol.admit(request(ref))
        assert numbers in rejected(verdict).message


async def test_the_bound_counts_after_an_invalid_copy(protocol: Protocol) -> None:
    await protocol.put("keyed", max_concurrent=0, max_queued=0, concurrency_key="/who")
    verdicts, _ = await protocol.admit(
        request("keyed", idempotency_key="k"), request("keyed", idempotency_key="k", parameters={"who": "x"})
    )
    assert [rejected(v).code for v in verdicts] == [Code.INVALID_PARAMETERS, Code.QUEUE_FULL]


async def test_the_bound_holds_for_each_queue_alone(protocol: Protocol) -> None:
    await protocol.put("full", max_concurrent=0, max_queued=0)
    await protocol.put(max_concurrent=0, max_queued=1, concurrency_key="/who")
    verdicts, _ = await protocol.admit(
        request("full"), *(request(parameters={"who": who}) for who in "xyxy"), request("full")
    )
    assert [isinstance(v, Accepted) for v in verdicts] == [False, True, True, False, False, False]
