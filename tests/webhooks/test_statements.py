"""Deliveries in the database: born with the settle, one claim at a time, settled once, replayed, cleaned."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from executor.webhooks.judgement import State
from executor.webhooks.record import Claim, Note, WebhookRecord
from tests.integration.page_counts import cost_of
from tests.integration.protocol import Protocol, connected

URL = "https://example.org/hook"


def record(protocol: Protocol) -> WebhookRecord:
    return WebhookRecord(protocol.database)


async def states(protocol: Protocol) -> dict[int, str]:
    rows = await protocol.connection.fetch("SELECT execution_id, state FROM webhook_delivery ORDER BY 1")
    return {row["execution_id"]: row["state"] for row in rows}


async def ended(protocol: Protocol, count: int = 1, *, url: str | None = URL) -> list[int]:
    """Executions that have run and been settled."""
    ids = await protocol.submit(count=count, callback_url=url)
    await protocol.run(*ids)
    await protocol.settle(*((i, 1) for i in ids))
    return ids


async def claim(protocol: Protocol, limit: int = 100, *, lease_seconds: float = 60.0) -> list[Claim]:
    claims, _ = await record(protocol).claim(after_origin="", lease_seconds=lease_seconds, limit=limit)
    return claims


def note(claim: Claim, state: State, *, delay_seconds: float = 0.0) -> Note:
    return Note(claim=claim, state=state, status=503, error="down", delay_seconds=delay_seconds)


async def expire_lease(protocol: Protocol) -> None:
    await protocol.connection.execute(
        "UPDATE webhook_delivery SET claimed_until = now() - interval '1 s' WHERE state = 'pending'"
    )


@pytest.fixture(autouse=True)
async def action(protocol: Protocol) -> None:
    await protocol.put("a")


async def test_a_delivery_is_born_with_the_settle_once_and_only_for_those_who_asked(
    protocol: Protocol,
) -> None:
    asked, not_asked = await protocol.submit(callback_url=URL), await protocol.submit()
    await protocol.run(*asked, *not_asked)
    assert await states(protocol) == {}
    pairs = [(i, 1) for i in (*asked, *not_asked)]
    settled = await protocol.queue_manager.settle([(i, n) for i, n in pairs])  # type: ignore[misc]
    assert settled.callbacks == 1
    assert await states(protocol) == {asked[0]: "pending"}
    again = await protocol.queue_manager.settle([(i, n) for i, n in pairs])  # type: ignore[misc]
    assert again.callbacks == 0
    (row,) = await protocol.connection.fetch("SELECT * FROM webhook_delivery")
    assert (row["url"], row["origin"], row["attempts"]) == (URL, "https://example.org", 0)


async def test_the_action_names_a_url_for_whoever_names_none(protocol: Protocol) -> None:
    await protocol.put("a", callback_url="https://action.example/")
    (of_action,) = await ended(protocol, url=None)
    (own,) = await ended(protocol)
    rows = await protocol.connection.fetch("SELECT execution_id, origin FROM webhook_delivery ORDER BY 1")
    assert [tuple(row) for row in rows] == [
        (of_action, "https://action.example"),
        (own, "https://example.org"),
    ]


async def test_every_way_to_end_is_called_back_once(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=1)
    runs, in_line = await protocol.submit(count=2, callback_url=URL)
    (expires,) = await protocol.submit(callback_url=URL, ttl=0.001)
    later = datetime.now(UTC) + timedelta(days=1)
    (not_due,) = await protocol.submit(callback_url=URL, run_at=later)
    await protocol.cancel(in_line, not_due)
    await protocol.connection.execute("SELECT pg_sleep(0.01)")
    assert [move.execution_id for move in await protocol.expire_due()] == [expires]
    await protocol.run(runs)
    for _ in range(2):
        await protocol.settle((runs, 1), (in_line, 0), (expires, 0), (not_due, 0))
    assert await states(protocol) == dict.fromkeys((runs, in_line, expires, not_due), "pending")


async def test_an_attempt_that_is_tried_again_calls_nobody(protocol: Protocol) -> None:
    (one,) = await protocol.submit(callback_url=URL)
    await protocol.claim(one)
    await protocol.finish(one, retry_delay_seconds=3600.0)
    await protocol.settle((one, 1))
    assert await states(protocol) == {}
    await protocol.cancel(one)
    await protocol.settle((one, 1))
    assert await states(protocol) == {one: "pending"}


async def test_a_url_that_is_none_keeps_no_slot_from_being_freed(protocol: Protocol) -> None:
    (one,) = await protocol.submit(callback_url=URL)
    await protocol.connection.execute("UPDATE execution SET callback_url = 'nowhere'")
    await protocol.run(one)
    assert (await protocol.settle((one, 1))).count == 1
    assert await states(protocol) == {one: "pending"}


async def test_of_two_replicas_one_claims(protocol: Protocol, database_url: str) -> None:
    ids = await ended(protocol, 4)
    async with connected(database_url) as other, protocol.transaction():
        first = await claim(protocol, 2)
        # The other one neither waits for the first nor takes what is in its hands.
        second = await claim(other)
        assert sorted(c.execution_id for c in (*first, *second)) == ids
    assert await claim(protocol) == []


async def test_a_lease_that_is_over_is_claimed_again_also_on_the_last_attempt(protocol: Protocol) -> None:
    await ended(protocol)
    for attempt in range(1, 30):
        (claimed,) = await claim(protocol)
        assert claimed.attempts == attempt
        assert await claim(protocol) == []
        await expire_lease(protocol)


async def test_a_note_after_the_lease_and_the_next_claim_changes_nothing(protocol: Protocol) -> None:
    (one,) = await ended(protocol)
    (late,) = await claim(protocol)
    await expire_lease(protocol)
    (now,) = await claim(protocol)
    assert await record(protocol).note([note(late, "failed")]) == [False]
    assert await record(protocol).note([note(now, "delivered")]) == [True]
    assert await record(protocol).note([note(now, "failed")]) == [False]
    assert await states(protocol) == {one: "delivered"}


async def test_a_postponed_one_is_due_when_its_wait_is_over(protocol: Protocol) -> None:
    await ended(protocol)
    (claimed,) = await claim(protocol)
    await record(protocol).note([note(claimed, "pending", delay_seconds=3600.0)])
    assert await claim(protocol) == []
    await protocol.connection.execute("UPDATE webhook_delivery SET due_at = now()")
    (again,) = await claim(protocol)
    assert (again.event_id, again.attempts) == (claimed.event_id, 2)


async def test_a_receiver_gets_so_many_at_once_and_holds_up_no_other(protocol: Protocol) -> None:
    slow = await ended(protocol, 50, url="https://slow.example/")
    other = await ended(protocol, 2)
    first = {c.execution_id for c in await claim(protocol, 3)}
    assert other[0] in first, "the first of each receiver go before the second ones of any"
    rest = {c.execution_id for c in await claim(protocol)}
    assert other[1] in first | rest
    assert len((first | rest) & set(slow)) == 8
    assert await claim(protocol) == [], "those under way count"


async def test_more_receivers_than_one_look_takes_are_gone_through(protocol: Protocol) -> None:
    await protocol.connection.execute(
        "INSERT INTO webhook_delivery (execution_id, url, origin, due_at, created_at)"
        " SELECT n, 'u', 'https://' || lpad(n::text, 5, '0'), now(), now() FROM generate_series(1, 1500) n"
    )
    claims, rest = await record(protocol).claim(after_origin="", lease_seconds=60, limit=2000)
    assert (len(claims), rest) == (1000, "https://01000")
    claims, rest = await record(protocol).claim(after_origin=rest, lease_seconds=60, limit=2000)
    assert (len(claims), rest) == (500, "")


async def replay(protocol: Protocol, *ids: int) -> tuple[list[int], list[int], int]:
    replayed = await record(protocol).replay(ids or None, limit=2)
    return replayed.done, replayed.pending, replayed.left


async def settled(protocol: Protocol, state: State, count: int = 1) -> list[int]:
    ids = await ended(protocol, count)
    await record(protocol).note([note(c, state) for c in await claim(protocol)])
    return ids


async def test_failed_ones_are_replayed_with_the_same_event_and_all_attempts(protocol: Protocol) -> None:
    failed = await settled(protocol, "failed", 3)
    before = await protocol.column("SELECT event_id FROM webhook_delivery ORDER BY execution_id")
    assert await replay(protocol) == (failed[:2], [], 1)
    assert await replay(protocol) == (failed[2:], [], 0)
    claims = await claim(protocol)
    assert [c.event_id for c in claims] == before
    assert {c.attempts for c in claims} == {1}


async def test_by_id_delivered_ones_are_replayed_too_and_pending_ones_are_not(protocol: Protocol) -> None:
    (delivered,) = await settled(protocol, "delivered")
    (pending,) = await ended(protocol)
    assert await replay(protocol) == ([], [], 0)
    assert await replay(protocol, delivered, pending, 999) == ([delivered], [pending], 0)


async def test_old_settled_ones_are_cleaned_up_and_pending_ones_are_not(protocol: Protocol) -> None:
    await settled(protocol, "delivered")
    (young,) = await settled(protocol, "failed")
    (pending,) = await ended(protocol)
    await protocol.connection.execute(
        "UPDATE webhook_delivery SET created_at = '2020-01-01Z', due_at = '2020-01-01Z';"
        "UPDATE webhook_delivery SET settled_at = '2020-01-01Z' WHERE state = 'delivered'"
    )
    assert await protocol.connection.fetchval("SELECT turnstile.clean_webhooks(3600, 10)") == 1
    assert await states(protocol) == {young: "failed", pending: "pending"}


async def give_up(protocol: Protocol, *, limit: int = 100, after_id: int = 0) -> tuple[int, int]:
    row = await protocol.connection.fetchrow(
        "SELECT * FROM turnstile.give_up_webhooks($1, 3600, $2)", after_id, limit
    )
    assert row is not None
    return row["given_up"], row["next_id"]


async def age(protocol: Protocol, *ids: int, column: str = "created_at, due_at") -> None:
    earlier = ", ".join(f"{name} = {name} - interval '2 h'" for name in column.split(", "))
    await protocol.connection.execute(
        f"UPDATE webhook_delivery SET {earlier} WHERE execution_id = ANY ($1)", list(ids)
    )


async def test_what_is_pending_for_too_long_has_failed_and_says_so(protocol: Protocol) -> None:
    tried, untried, young, waits, under_way = ids = await ended(protocol, 5)
    claims = {c.execution_id: c for c in await claim(protocol)}
    await record(protocol).note([note(claims[tried], "pending"), note(claims[waits], "pending")])
    await protocol.connection.execute(
        "UPDATE webhook_delivery SET attempts = 0, claimed_until = NULL WHERE execution_id = ANY ($1)",
        [untried, young],
    )
    await age(protocol, tried, untried, under_way)
    # Who was asked to wait is tried once more first.
    await age(protocol, waits, column="created_at")
    assert await give_up(protocol) == (2, 0)
    assert await states(protocol) == dict(zip(ids, ["failed", "failed", *["pending"] * 3], strict=True))
    rows = await protocol.connection.fetch(
        "SELECT last_error, last_status, settled_at > created_at AS settled FROM webhook_delivery"
        " WHERE state = 'failed' ORDER BY execution_id"
    )
    assert [tuple(row) for row in rows] == [
        ("given up after 3600 s (TURNSTILE_WEBHOOK_AGE_MAX); the last try: down", 503, True),
        ("given up after 3600 s (TURNSTILE_WEBHOOK_AGE_MAX); it was never tried", None, True),
    ]
    assert await record(protocol).note([note(claims[under_way], "delivered")]) == [True]


async def test_the_age_of_a_replayed_one_counts_from_its_replay(protocol: Protocol) -> None:
    (one,) = await ended(protocol)
    await age(protocol, one)
    assert await give_up(protocol) == (1, 0)
    assert await replay(protocol, one) == ([one], [], 0)
    await age(protocol, one, column="due_at")
    assert await give_up(protocol) == (0, 0)
    await age(protocol, one, column="created_at")
    assert await give_up(protocol) == (1, 0)


async def test_old_ones_are_given_up_a_bounded_number_at_a_time(protocol: Protocol) -> None:
    ids = await ended(protocol, 5)
    await age(protocol, *ids[1:])
    assert await give_up(protocol, limit=2) == (1, ids[1])
    assert await give_up(protocol, limit=2, after_id=ids[1]) == (2, ids[3])
    assert await give_up(protocol, limit=2, after_id=ids[3]) == (1, 0)


async def test_beside_many_deliveries_each_statement_costs_what_it_moves(protocol: Protocol) -> None:
    """Planned while the tables are empty, said beside 20,000 that are not due and as many settled ones."""
    for _ in range(6):
        await claim(protocol)
        await give_up(protocol)
        await protocol.connection.fetchval("SELECT turnstile.clean_webhooks(3600, 10)")
    await protocol.connection.execute(
        "INSERT INTO webhook_delivery (execution_id, url, origin, due_at, created_at, state, settled_at)"
        " SELECT n, 'u', 'https://' || n % 10, now() + interval '1 h', now(),"
        " CASE WHEN n % 2 = 0 THEN 'pending' ELSE 'delivered' END, CASE WHEN n % 2 = 1 THEN now() END"
        " FROM generate_series(1000, 41000) n; ANALYZE webhook_delivery"
    )
    (one,) = await ended(protocol)

    async def see(statement: Any, rows: int) -> None:
        cost = await cost_of(protocol, statement)
        assert cost.pages < 60 + 40 * rows, cost
        assert "webhook_delivery" not in cost.full_scans, cost

    async with protocol.transaction():
        await see(claim(protocol), 1)
        await see(protocol.connection.fetchval("SELECT turnstile.clean_webhooks(3600, 10)"), 1)
        await see(give_up(protocol), 100)
        await see(replay(protocol, one), 1)
        await see(record(protocol).page(["failed"], before_id=2**62, limit=10), 1)
