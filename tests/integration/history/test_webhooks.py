"""Deliveries are claimed once, recorded under their claim, replayed, given up and deleted."""

from collections.abc import Sequence
from typing import Literal

import pytest

from tests.support.ledger import Led, admitted, ended, session_on
from turnstile.common.database import Database
from turnstile.executor.webhooks.deliveries import Claim, Deliveries, DeliveryResult
from turnstile.executor.webhooks.sender import State

URL = "https://example.org/hook"
ORIGIN = "https://example.org"


@pytest.fixture
async def hooks(database: Database, led: Led) -> Database:
    """A database with 40 executions that have ended."""
    ids = range(1, 41)
    await led.write(
        admitted=[admitted(each) for each in ids], ended=[ended(each) for each in ids], reserved_id=100
    )
    return database


@pytest.fixture
def deliveries(hooks: Database) -> Deliveries:
    return Deliveries(hooks)


async def add(hooks: Database, *ids: int, url: str = URL, ago: str = "0 s") -> None:
    """Insert deliveries as a turn does, of an execution that ended so long ago."""
    await hooks.fetch(
        "INSERT INTO ledger.webhook (execution_id, url, origin, due_at, created_at)"
        " SELECT i, $2, ledger.origin_of($2), now() - $3::text::interval, now() - $3::text::interval"
        " FROM unnest($1::bigint[]) i",
        list(ids),
        url,
        ago,
    )


async def states(hooks: Database) -> dict[int, str]:
    rows = await hooks.fetch("SELECT execution_id, state FROM ledger.webhook ORDER BY execution_id")
    return {row["execution_id"]: row["state"] for row in rows}


async def due(deliveries: Deliveries) -> dict[str, int]:
    found, _ = await deliveries.due(after_origin="")
    return {each.origin: each.count for each in found}


async def claim(deliveries: Deliveries, seconds: float = 60.0, **counts: int) -> Sequence[Claim]:
    """Claim what is due, at most so many of each receiver."""
    wanted = counts or await due(deliveries)
    return await deliveries.claim(wanted, lease_seconds=seconds)


def result(claim: Claim, state: State | Literal["released"], delay_seconds: float = 0.0) -> DeliveryResult:
    return DeliveryResult(claim=claim, state=state, status=503, error="down", delay_seconds=delay_seconds)


async def expire_leases(hooks: Database) -> None:
    await hooks.fetch("UPDATE ledger.webhook SET claimed_until = now() - interval '1 s'")


async def test_an_expired_lease_is_claimed_again(hooks: Database, deliveries: Deliveries) -> None:
    await add(hooks, 1)
    for attempt in range(1, 10):
        (claimed,) = await claim(deliveries)
        assert claimed.attempts == attempt
        assert await claim(deliveries) == []
        await expire_leases(hooks)


async def test_a_result_after_the_lease_and_the_next_claim_changes_nothing(
    hooks: Database, deliveries: Deliveries
) -> None:
    await add(hooks, 1)
    (late,) = await claim(deliveries)
    await expire_leases(hooks)
    (now,) = await claim(deliveries)
    assert await deliveries.record([result(late, "failed")]) == [False]
    assert await deliveries.record([result(now, "delivered")]) == [True]
    assert await deliveries.record([result(now, "failed")]) == [False]
    assert await states(hooks) == {1: "delivered"}


async def test_a_released_delivery_is_due_at_once_and_not_counted(
    hooks: Database, deliveries: Deliveries
) -> None:
    await add(hooks, 1)
    (released,) = await claim(deliveries)
    await deliveries.record([result(released, "released")])
    (again,) = await claim(deliveries)
    assert (again.event_id, again.attempts) == (released.event_id, 1)


async def test_a_receiver_has_a_bounded_number_of_claims_and_delays_no_other(
    hooks: Database, deliveries: Deliveries
) -> None:
    await add(hooks, *range(1, 31), url="https://slow.example/")
    await add(hooks, 31, 32)
    assert await due(deliveries) == {"https://slow.example": 8, ORIGIN: 2}
    assert len(await claim(deliveries)) == 10
    assert await claim(deliveries) == [], "running deliveries count"


async def test_receivers_beyond_one_call_are_reached(hooks: Database, deliveries: Deliveries) -> None:
    await hooks.fetch(
        "INSERT INTO ledger.webhook (execution_id, url, origin, due_at, created_at)"
        " SELECT n, 'u', 'https://' || lpad(n::text, 5, '0'), now(), now() FROM generate_series(101, 1600) n"
    )
    found, rest = await deliveries.due(after_origin="")
    assert (len(found), rest) == (1000, "https://01100")
    found, rest = await deliveries.due(after_origin=rest)
    assert (len(found), rest) == (500, "")


async def test_what_was_replayed_elsewhere_is_found(hooks: Database, deliveries: Deliveries) -> None:
    await add(hooks, 1, ago="2 h")
    (claimed,) = await claim(deliveries)
    await deliveries.record([result(claimed, "failed")])
    # So long ago that this executor has forgotten the receiver.
    deliveries._bounds.clear()
    assert await due(deliveries) == {}
    replayed = await Deliveries(hooks).replay(None, limit=10)
    assert (replayed.done, replayed.pending, replayed.left) == ([1], [], 0)
    assert await due(deliveries) == {ORIGIN: 1}


async def test_a_delivery_that_commits_late_is_found(
    hooks: Database, deliveries: Deliveries, database_url: str
) -> None:
    async with session_on(database_url) as session:
        transaction = session.transaction()
        await transaction.start()
        await session.execute(
            "INSERT INTO ledger.webhook (execution_id, url, origin, due_at, created_at)"
            " VALUES (1, $1, ledger.origin_of($1), now(), now())",
            URL,
        )
        await add(hooks, 2)
        for each in await claim(deliveries):
            await deliveries.record([result(each, "delivered")])
        assert await due(deliveries) == {}
        await transaction.commit()
    assert await due(deliveries) == {ORIGIN: 1}


async def test_failed_deliveries_are_replayed_with_the_same_event_id(
    hooks: Database, deliveries: Deliveries
) -> None:
    await add(hooks, 1, 2, 3, 4)
    claims = await claim(deliveries)
    await deliveries.record([result(each, "failed") for each in claims[:3]])
    await deliveries.record([result(claims[3], "delivered")])
    planned = await deliveries.planned(None)
    assert planned.left == 3
    first = await deliveries.replay(None, limit=2)
    assert (first.done, first.left) == ([1, 2], 1)
    named = await deliveries.replay([2, 3, 4, 99], limit=10)
    assert (named.done, named.pending, named.left) == ([3, 4], [2], 0)
    again = await claim(deliveries)
    assert [each.event_id for each in again] == [each.event_id for each in claims]
    assert {each.attempts for each in again} == {1}


async def test_a_delivery_whose_execution_was_pruned_is_not_replayed(
    hooks: Database, deliveries: Deliveries
) -> None:
    await add(hooks, 1, 99)
    await deliveries.record([result(each, "failed") for each in await claim(deliveries)])
    replayed = await deliveries.replay([1, 99], limit=10)
    assert replayed.done == [1]
    assert await states(hooks) == {1: "pending", 99: "failed"}


async def test_a_delivery_pending_for_too_long_fails_with_the_reason(
    hooks: Database, deliveries: Deliveries
) -> None:
    await add(hooks, 1, 2, ago="2 h")
    await add(hooks, 3)
    (one, _, _) = await claim(deliveries, seconds=0.0)
    await deliveries.record([result(one, "pending")])
    await hooks.fetch(
        "UPDATE ledger.webhook SET due_at = created_at, attempts = 1 - (execution_id - 1) % 2,"
        " claimed_until = NULL"
    )
    assert await deliveries.give_up(0, 3600.0, 10) == (2, 0)
    rows = await hooks.fetch(
        "SELECT last_error FROM ledger.webhook WHERE state = 'failed' ORDER BY execution_id"
    )
    assert [row["last_error"] for row in rows] == [
        "given up after 3600 s (TURNSTILE_WEBHOOK_AGE_MAX); last attempt: down",
        "given up after 3600 s (TURNSTILE_WEBHOOK_AGE_MAX); never attempted",
    ]
    assert (await states(hooks))[3] == "pending"


async def test_what_has_ended_costs_nothing_while_an_old_snapshot_keeps_it(
    hooks: Database, deliveries: Deliveries, database_url: str
) -> None:
    """Below its bound nothing is read, however many dead entries the index has."""
    async with session_on(database_url) as reader:
        await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM ledger.webhook")
        await hooks.fetch(
            "INSERT INTO ledger.webhook (execution_id, url, origin, due_at, created_at)"
            " SELECT n, $1, ledger.origin_of($1), now() - interval '1 h', now() - interval '1 h'"
            " FROM generate_series(101, 5100) n",
            URL,
        )
        await due(deliveries)
        await hooks.fetch(
            "UPDATE ledger.webhook SET state = 'delivered', ended_at = now() WHERE execution_id > 110"
        )
        await hooks.fetch(
            "UPDATE ledger.webhook SET due_at = now() - interval '10 min' WHERE state = 'pending'"
        )
        await due(deliveries)
        bound = deliveries._bounds[ORIGIN]
        plan = await hooks.fetch(
            "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) SELECT d.due_at FROM ledger.webhook d"
            " WHERE d.state = 'pending' AND d.origin = $1 AND d.due_at >= $2 ORDER BY d.due_at LIMIT 8",
            ORIGIN,
            bound,
        )
    text = "\n".join(row[0] for row in plan)
    blocks = int(text.split("shared hit=")[1].split()[0].rstrip(","))
    assert "webhook_due" in text
    assert blocks < 30, text
