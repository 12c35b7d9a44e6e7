"""A queue is deleted beside others that have just found it: nothing is lost, overtaken or above the limit.

The deletion of one session is left open, or begins while another session holds what it needs next: so each
of the two comes first once.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from tests.integration.retention.pruning import HOUR, age, ended, left, pruner
from tests.integration.retention.test_idle_keys import (
    FLOWS,
    KEYED,
    WITH_TOTAL,
    ended_at_total,
    ended_with,
    keys,
)
from tests.support.history import faults_in
from tests.support.protocol import Protocol, accepted, blocked, connected, ids_in, request
from turnstile.common.domain.identifiers import ExecutionId

X: Final[dict[str, Any]] = {"parameters": {"key": "x"}}


@pytest.fixture
async def third(database_url: str, protocol: Protocol) -> AsyncIterator[Protocol]:
    async with connected(database_url) as session:
        yield session


async def totals(protocol: Protocol) -> tuple[int, int]:
    """What the action has counted, over its queues and those that were deleted."""
    row = await protocol.row(
        "SELECT sum(n.enqueued)::bigint, sum(n.completed)::bigint FROM ("
        " SELECT total_enqueued AS enqueued, total_completed AS completed FROM turnstile.current_queue"
        " UNION ALL SELECT executions, executions FROM deleted_queue_total) n"
    )
    return row[0], row[1]


async def test_an_admission_that_waits_for_the_deletion_gets_a_new_queue(
    protocol: Protocol, other: Protocol, database_url: str
) -> None:
    await protocol.put("a", **KEYED)
    await ended_with(protocol, "x")
    async with protocol.transaction():
        assert await protocol.delete_idle_queues() == 1
        waiting = await blocked(other, protocol, other.submit(**X, count=2))
    first, second = await waiting
    assert await protocol.statuses(first, second) == ["scheduled", "queued"]
    assert await protocol.waiting() == [second]
    assert await totals(protocol) == (3, 1)
    await protocol.run(first)
    assert (await protocol.settle((first, 1))).granted == [second]
    assert await faults_in(database_url) == []


async def test_an_admission_that_waits_for_a_deletion_that_fails_keeps_the_queue(
    protocol: Protocol, other: Protocol, database_url: str
) -> None:
    await protocol.put("a", **KEYED)
    await ended_with(protocol, "x")
    queue_id = (await protocol.queue("a", "x"))["id"]
    async with protocol.undone():
        assert await protocol.delete_idle_queues() == 1
        waiting = await blocked(other, protocol, other.submit(**X))
    (one,) = await waiting
    assert await protocol.held() == [one]
    assert (await protocol.queue("a", "x"))["id"] == queue_id
    assert await faults_in(database_url) == []


async def test_a_deletion_that_chose_a_queue_before_an_admission_to_it_leaves_it(
    protocol: Protocol, other: Protocol, database_url: str
) -> None:
    """The deletion has chosen the queue, and locks it after the admission has committed."""
    await protocol.put("a", **KEYED)
    await ended_with(protocol, "x", "idle")
    async with protocol.transaction():
        # In the way of what locks rows, not of what reads them.
        await protocol.connection.execute("LOCK TABLE action_queue IN EXCLUSIVE MODE")
        waiting = await blocked(other, protocol, other.delete_idle_queues())
        (one,) = await protocol.submit(**X)
    assert await waiting == 1
    assert await keys(protocol) == ["x"]
    assert await protocol.held() == [one]
    assert await totals(protocol) == (3, 2)
    await protocol.run(one)
    await protocol.settle((one, 1))
    assert await faults_in(database_url) == []


async def test_two_admissions_during_a_deletion_share_one_new_queue_and_one_order(
    protocol: Protocol, other: Protocol, third: Protocol, database_url: str
) -> None:
    await protocol.put("a", **KEYED)
    await ended_with(protocol, "x", "y")
    async with protocol.transaction():
        assert await protocol.delete_idle_queues() == 2
        waiting = [
            await blocked(other, protocol, other.submit(**X, count=3)),
            await blocked(third, protocol, third.submit(**X, count=3)),
        ]
    admitted = sorted(i for ids in await asyncio.gather(*waiting) for i in ids)
    assert await protocol.column("SELECT count(*) FROM action_queue") == [1]
    assert (await protocol.held(), await protocol.waiting()) == (admitted[:1], admitted[1:])
    for head, following in zip(admitted, [*admitted[1:], None], strict=True):
        await protocol.run(head)
        granted = (await protocol.settle((head, 1))).granted
        assert granted == ([] if following is None else [following])
    assert await faults_in(database_url) == []


async def test_batches_that_share_deleted_queues_do_not_deadlock(
    protocol: Protocol, other: Protocol, third: Protocol, database_url: str
) -> None:
    """Both wait for the same deletion, hold other queues they share, and create the same new ones."""
    await protocol.put("a", **{**KEYED, "max_concurrent": None})
    await ended_with(protocol, "b", "d")
    await protocol.submit(parameters={"key": "a"})
    await protocol.submit(parameters={"key": "c"})
    batch = [request("a", parameters={"key": key}) for key in "abcde"]
    async with protocol.transaction():
        assert await protocol.delete_idle_queues() == 2
        waiting = [
            await blocked(other, protocol, other.admit(*batch)),
            await blocked(third, protocol, third.admit(*reversed(batch))),
        ]
    for verdicts, grants in await asyncio.gather(*waiting):
        assert len({accepted(verdict).execution_id for verdict in verdicts}) == 5
        assert len(ids_in(grants)) == 5
    assert await keys(protocol) == ["a", "b", "c", "d", "e"]
    assert await totals(protocol) == (14, 2)
    assert await faults_in(database_url) == []


async def test_a_retry_that_waits_for_the_deletion_gets_a_new_queue(
    protocol: Protocol, other: Protocol, database_url: str
) -> None:
    await protocol.put("a", **KEYED)
    (one,) = await ended_with(protocol, "x")
    async with protocol.transaction():
        assert await protocol.delete_idle_queues() == 1
        waiting = await blocked(other, protocol, other.queue_manager.retry([(ExecutionId(one), None)]))
    (retried,), grants = await waiting
    assert retried.verdict is not None
    assert ids_in(grants) == [accepted(retried.verdict).execution_id]
    assert await faults_in(database_url) == []


async def test_a_limit_change_that_waits_for_the_deletion_binds_the_new_queue(
    protocol: Protocol, other: Protocol, third: Protocol
) -> None:
    await protocol.put("a", **KEYED)
    await ended_with(protocol, "x")
    async with protocol.transaction():
        assert await protocol.delete_idle_queues() == 1
        change = await blocked(other, protocol, other.put("a", **{**KEYED, "max_concurrent": 2}))
        waiting = await blocked(third, protocol, third.submit(**X, count=3))
    await change
    ids = await waiting
    assert (await protocol.held(), await protocol.waiting()) == (ids[:2], ids[2:])
    assert (await protocol.queue("a", "x"))["max_concurrent"] == 2


async def test_a_deletion_skips_locked_queues_without_waiting(protocol: Protocol, other: Protocol) -> None:
    await protocol.put("a", **KEYED)
    await ended_with(protocol, "x", "y")
    await protocol.connection.execute("SET lock_timeout = '2s'")
    async with other.transaction():
        await other.connection.execute(
            "SELECT FROM action_queue WHERE concurrency_key = 'x' FOR NO KEY UPDATE"
        )
        assert await protocol.delete_idle_queues() == 1
        assert await keys(protocol) == ["x"]
    async with other.transaction():
        await other.put("a", **{**KEYED, "max_concurrent": 2})
        assert await protocol.delete_idle_queues() == 0
    assert await protocol.delete_idle_queues() == 1


async def test_a_deletion_leaves_queues_with_flows_at_a_gate_that_another_session_holds(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put("a", **WITH_TOTAL)
    await protocol.put("b", **KEYED)
    await ended_at_total(protocol, "x")
    await ended_with(protocol, "y", ref="b")
    await protocol.connection.execute("SET lock_timeout = '2s'")
    async with other.transaction():
        await other.connection.execute("SELECT FROM gate WHERE kind = 'action' FOR NO KEY UPDATE")
        assert await protocol.delete_idle_queues() == 1
        assert await keys(protocol) == ["x"]
    assert await protocol.column(FLOWS) == ["x"]
    assert await protocol.delete_idle_queues() == 1
    assert await protocol.column(FLOWS) == []


@pytest.mark.parametrize("key", ["x", "another"])
async def test_an_arrival_at_the_total_that_waits_for_a_deletion_has_a_turn(
    protocol: Protocol, other: Protocol, database_url: str, key: str
) -> None:
    await protocol.put("a", **WITH_TOTAL)
    await ended_at_total(protocol, "x", "y")
    async with protocol.transaction():
        assert await protocol.delete_idle_queues() == 2
        waiting = await blocked(other, protocol, ended_at_total(other, key))
    await waiting
    assert await protocol.column(FLOWS) == [key]
    assert await faults_in(database_url) == []


async def test_two_deletions_at_once_share_the_queues_and_count_each_once(
    protocol: Protocol, other: Protocol, database_url: str
) -> None:
    await protocol.put("a", **KEYED)
    await ended_with(protocol, "u", "v", "x", "y")
    assert await protocol.delete_idle_queues(limit=1) == 1
    await other.connection.execute("SET lock_timeout = '2s'")
    async with protocol.transaction():
        assert await protocol.delete_idle_queues(limit=2) == 2
        # There are more, but the total of their action is locked.
        assert await other.delete_idle_queues() == 0
    assert await other.delete_idle_queues() == 1
    assert await totals(protocol) == (4, 4)
    assert await faults_in(database_url) == []


async def test_pruning_passes_over_a_queue_that_is_just_being_deleted(
    protocol: Protocol, other: Protocol, database_url: str
) -> None:
    await protocol.put("a", **KEYED)
    await protocol.put("plain")
    (kept,) = await ended_with(protocol, "x", hours_ago=5)
    await ended(protocol, 1, "plain", hours_ago=5)
    await other.connection.execute("SET lock_timeout = '2s'")
    async with protocol.transaction():
        assert await protocol.delete_idle_queues() == 1
        assert await pruner(other, retention_age=HOUR).prune_executions() == 1
        assert await left(other) == [kept]
    assert await pruner(other, retention_age=HOUR).prune_executions() == 1
    assert await left(other) == []
    assert await faults_in(database_url) == []


async def test_a_deletion_passes_over_a_queue_that_is_just_being_pruned(
    protocol: Protocol, other: Protocol, database_url: str
) -> None:
    await protocol.put("a", **KEYED)
    await age(protocol, await ended_with(protocol, "x"), 5)
    await ended_with(protocol, "y")
    async with protocol.transaction():
        await protocol.connection.execute("SELECT * FROM turnstile.prune(0, 0, 3600, NULL, 0, 100)")
        assert await other.delete_idle_queues() == 1
        assert await keys(other) == ["x"]
    assert await other.delete_idle_queues() == 1
    assert await faults_in(database_url) == []


async def test_an_action_deleted_beside_its_idle_keys_accepts_no_request(
    protocol: Protocol, other: Protocol, third: Protocol, database_url: str
) -> None:
    await protocol.put("a", **KEYED)
    await ended_with(protocol, "x")
    async with protocol.transaction():
        assert await protocol.delete_idle_queues() == 1
        gone = await blocked(
            other,
            protocol,
            other.executor.delete_action("a", cancel_max=0, reason="gone", changed_by=None),
        )
        waiting = await blocked(third, protocol, third.admit(request("a", **X)))
    deletion, (verdicts, _) = await gone, await waiting
    assert deletion is not None
    assert deletion.deleted
    assert [getattr(verdict, "code", None) for verdict in verdicts] == ["unknown_action"]
    assert await faults_in(database_url) == []
