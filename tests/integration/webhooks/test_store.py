"""Deliveries are created with the settle, claimed once, recorded, replayed, given up and deleted."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.executor.page_counts import cost_of
from tests.integration.webhooks.deliveries import (
    URL,
    claim,
    claim_after,
    completed,
    give_up,
    in_state,
    replay,
    result,
    states,
    store,
)
from tests.support.protocol import Protocol
from turnstile.common.domain.identifiers import Attempt, ExecutionId
from turnstile.common.domain.states import Status


@pytest.fixture(autouse=True)
async def action(protocol: Protocol) -> None:
    await protocol.put("a")


async def test_the_settle_creates_one_delivery_for_an_execution_with_a_callback_url(
    protocol: Protocol,
) -> None:
    with_url, without = await protocol.submit(callback_url=URL), await protocol.submit()
    await protocol.run(*with_url, *without)
    assert await states(protocol) == {}
    messages = [(ExecutionId(i), Attempt(1), Status.COMPLETED) for i in (*with_url, *without)]
    settled = await protocol.queue_manager.settle(messages)
    assert settled.callbacks == 1
    assert await states(protocol) == {with_url[0]: "pending"}
    again = await protocol.queue_manager.settle(messages)
    assert again.callbacks == 0
    (row,) = await protocol.connection.fetch("SELECT * FROM webhook_delivery")
    assert (row["url"], row["origin"], row["attempts"]) == (URL, "https://example.org", 0)


async def test_the_url_of_the_action_is_the_default(protocol: Protocol) -> None:
    await protocol.put("a", callback_url="https://action.example/")
    (of_action,) = await completed(protocol, url=None)
    (own,) = await completed(protocol)
    rows = await protocol.connection.fetch("SELECT execution_id, origin FROM webhook_delivery ORDER BY 1")
    assert [tuple(row) for row in rows] == [
        (of_action, "https://action.example"),
        (own, "https://example.org"),
    ]


async def test_every_way_to_end_is_called_back_once(protocol: Protocol) -> None:
    await protocol.put("a", max_concurrent=1)
    runs, queued = await protocol.submit(count=2, callback_url=URL)
    (expires,) = await protocol.submit(callback_url=URL, ttl=0.001)
    later = datetime.now(UTC) + timedelta(days=1)
    (not_due,) = await protocol.submit(callback_url=URL, run_at=later)
    await protocol.cancel(queued, not_due)
    await protocol.connection.execute("SELECT pg_sleep(0.01)")
    assert [move.execution_id for move in await protocol.expire_due()] == [expires]
    await protocol.run(runs)
    for _ in range(2):
        await protocol.settle((runs, 1), (queued, 0), (expires, 0), (not_due, 0))
    assert await states(protocol) == dict.fromkeys((runs, queued, expires, not_due), "pending")


async def test_an_attempt_that_is_retried_creates_no_delivery(protocol: Protocol) -> None:
    (one,) = await protocol.submit(callback_url=URL)
    await protocol.claim(one)
    await protocol.finish(one, retry_delay_seconds=3600.0)
    await protocol.settle((one, 1))
    assert await states(protocol) == {}
    await protocol.cancel(one)
    await protocol.settle((one, 1))
    assert await states(protocol) == {one: "pending"}


async def test_an_invalid_url_does_not_keep_its_slot(protocol: Protocol) -> None:
    (one,) = await protocol.submit(callback_url=URL)
    await protocol.connection.execute("UPDATE execution SET callback_url = 'nowhere'")
    await protocol.run(one)
    assert (await protocol.settle((one, 1))).count == 1
    assert await states(protocol) == {one: "pending"}


async def expire_lease(protocol: Protocol) -> None:
    await protocol.connection.execute(
        "UPDATE webhook_delivery SET claimed_until = now() - interval '1 s' WHERE state = 'pending'"
    )


async def test_an_expired_lease_is_claimed_again_also_on_the_last_attempt(protocol: Protocol) -> None:
    await completed(protocol)
    for attempt in range(1, 30):
        (claimed,) = await claim(protocol)
        assert claimed.attempts == attempt
        assert await claim(protocol) == []
        await expire_lease(protocol)


async def test_a_result_after_the_lease_and_the_next_claim_changes_nothing(protocol: Protocol) -> None:
    (one,) = await completed(protocol)
    (late,) = await claim(protocol)
    await expire_lease(protocol)
    (now,) = await claim(protocol)
    assert await store(protocol).record([result(late, "failed")]) == [False]
    assert await store(protocol).record([result(now, "delivered")]) == [True]
    assert await store(protocol).record([result(now, "failed")]) == [False]
    assert await states(protocol) == {one: "delivered"}


async def test_a_released_delivery_is_due_at_once_uncounted_and_a_pending_one_after_its_wait(
    protocol: Protocol,
) -> None:
    await completed(protocol)
    (released,) = await claim(protocol)
    assert await store(protocol).record([result(released, "released")]) == [True]
    (claimed,) = await claim(protocol)
    assert (claimed.event_id, claimed.attempts) == (released.event_id, 1)
    await store(protocol).record([result(claimed, "pending", delay_seconds=3600.0)])
    assert await claim(protocol) == []
    await protocol.connection.execute("UPDATE webhook_delivery SET due_at = now()")
    (again,) = await claim(protocol)
    assert (again.event_id, again.attempts) == (claimed.event_id, 2)


async def test_a_receiver_has_a_bounded_number_of_claims_and_delays_no_other(protocol: Protocol) -> None:
    slow = await completed(protocol, "https://slow.example/", 50)
    other = await completed(protocol, count=2)
    first = {c.execution_id for c in await claim(protocol, 3)}
    assert other[0] in first, "the first of each receiver go before the second ones of any"
    rest = {c.execution_id for c in await claim(protocol)}
    assert other[1] in first | rest
    assert len((first | rest) & set(slow)) == 8
    assert await claim(protocol) == [], "running deliveries count"


async def test_receivers_beyond_one_batch_are_reached(protocol: Protocol) -> None:
    await protocol.connection.execute(
        "INSERT INTO webhook_delivery (execution_id, url, origin, due_at, created_at)"
        " SELECT n, 'u', 'https://' || lpad(n::text, 5, '0'), now(), now() FROM generate_series(1, 1500) n;"
        "SELECT turnstile.keep_receivers(ARRAY(SELECT origin FROM webhook_delivery))"
    )
    due, rest = await store(protocol).due(after_origin="")
    assert (len(due), rest) == (1000, "https://01000")
    due, rest = await store(protocol).due(after_origin=rest)
    assert (len(due), rest) == (500, "")
    claims, rest = await claim_after(protocol, "", 2000)
    assert (len(claims), rest) == (1000, "https://01000")
    claims, rest = await claim_after(protocol, rest, 2000)
    assert (len(claims), rest) == (500, "")


async def test_due_receivers_come_with_how_much_may_be_claimed(protocol: Protocol) -> None:
    await completed(protocol, "https://a.example/x", 12)
    await completed(protocol, "https://b.example/y", 2)
    await completed(protocol, "https://later.example/z", 1)
    await protocol.connection.execute(
        "UPDATE webhook_delivery SET due_at = now() + interval '1 h' WHERE url LIKE '%later%'"
    )
    due, rest = await store(protocol).due(after_origin="")
    assert ([(d.origin, d.count) for d in due], rest) == (
        [("https://a.example", 8), ("https://b.example", 2)],
        "",
    )
    claims = await store(protocol).claim({"https://a.example": 3, "https://b.example": 1}, lease_seconds=60)
    assert sorted(c.origin for c in claims) == ["https://a.example"] * 3 + ["https://b.example"]
    due, _ = await store(protocol).due(after_origin="")
    assert [(d.origin, d.count) for d in due] == [("https://a.example", 5), ("https://b.example", 1)]
    # The first eight of each receiver count, running ones among them.
    assert len(await store(protocol).claim({"https://a.example": 8}, lease_seconds=60)) == 5
    due, _ = await store(protocol).due(after_origin="https://a.example")
    assert [d.origin for d in due] == ["https://b.example"]


async def test_failed_deliveries_are_replayed_with_the_same_event_id_and_all_attempts(
    protocol: Protocol,
) -> None:
    failed = await in_state(protocol, "failed", 3)
    before = await protocol.column("SELECT event_id FROM webhook_delivery ORDER BY execution_id")
    assert await replay(protocol) == (failed[:2], [], 1)
    assert await replay(protocol) == (failed[2:], [], 0)
    claims = await claim(protocol)
    assert [c.event_id for c in claims] == before
    assert {c.attempts for c in claims} == {1}
    # By id also those that were delivered, and none that is pending.
    (delivered,) = await in_state(protocol, "delivered")
    (pending,) = await completed(protocol)
    assert await replay(protocol) == ([], [], 0)
    assert await replay(protocol, delivered, pending, 999) == ([delivered], [pending], 0)


async def test_old_ended_deliveries_are_deleted_and_pending_ones_are_not(protocol: Protocol) -> None:
    await in_state(protocol, "delivered")
    (young,) = await in_state(protocol, "failed")
    (pending,) = await completed(protocol)
    await protocol.connection.execute(
        "UPDATE webhook_delivery SET created_at = '2020-01-01Z', due_at = '2020-01-01Z';"
        "UPDATE webhook_delivery SET settled_at = '2020-01-01Z' WHERE state = 'delivered'"
    )
    assert await protocol.connection.fetchval("SELECT turnstile.clean_webhooks(3600, 10)") == 1
    assert await states(protocol) == {young: "failed", pending: "pending"}


async def age(protocol: Protocol, *ids: int, column: str = "created_at, due_at") -> None:
    earlier = ", ".join(f"{name} = {name} - interval '2 h'" for name in column.split(", "))
    await protocol.connection.execute(
        f"UPDATE webhook_delivery SET {earlier} WHERE execution_id = ANY ($1)", list(ids)
    )


async def test_a_delivery_pending_for_too_long_fails_with_the_reason(protocol: Protocol) -> None:
    tried, untried, young, waits, running = ids = await completed(protocol, count=5)
    claims = {c.execution_id: c for c in await claim(protocol)}
    await store(protocol).record([result(claims[tried], "pending"), result(claims[waits], "pending")])
    await protocol.connection.execute(
        "UPDATE webhook_delivery SET attempts = 0, claimed_until = NULL WHERE execution_id = ANY ($1)",
        [untried, young],
    )
    await age(protocol, tried, untried, running)
    # A receiver that requested a delay is tried once more first.
    await age(protocol, waits, column="created_at")
    assert await give_up(protocol) == (2, 0)
    assert await states(protocol) == dict(zip(ids, ["failed", "failed", *["pending"] * 3], strict=True))
    rows = await protocol.connection.fetch(
        "SELECT last_error, last_status, settled_at > created_at AS settled FROM webhook_delivery"
        " WHERE state = 'failed' ORDER BY execution_id"
    )
    assert [tuple(row) for row in rows] == [
        ("given up after 3600 s (TURNSTILE_WEBHOOK_AGE_MAX); last attempt: down", 503, True),
        ("given up after 3600 s (TURNSTILE_WEBHOOK_AGE_MAX); never attempted", None, True),
    ]
    assert await store(protocol).record([result(claims[running], "delivered")]) == [True]


async def test_old_deliveries_fail_a_bounded_number_at_a_time_and_their_age_counts_from_a_replay(
    protocol: Protocol,
) -> None:
    ids = await completed(protocol, count=5)
    await age(protocol, *ids[1:])
    assert await give_up(protocol, limit=2) == (1, ids[1])
    assert await give_up(protocol, limit=2, after_id=ids[1]) == (2, ids[3])
    assert await give_up(protocol, limit=2, after_id=ids[3]) == (1, 0)
    one = ids[4]
    assert await replay(protocol, one) == ([one], [], 3)
    await age(protocol, one, column="due_at")
    assert await give_up(protocol) == (0, 0)
    await age(protocol, one, column="created_at")
    assert await give_up(protocol) == (1, 0)


async def test_beside_many_deliveries_each_statement_costs_what_it_moves(protocol: Protocol) -> None:
    """Planned on empty tables, executed beside 20,000 deliveries that are not due and 20,000 that ended."""
    for _ in range(6):
        await claim(protocol)
        await store(protocol).due(after_origin="")
        await store(protocol).claim({"https://example.org": 1}, lease_seconds=60)
        await give_up(protocol)
        await protocol.connection.fetchval("SELECT turnstile.clean_webhooks(3600, 10)")
    await protocol.connection.execute(
        "INSERT INTO webhook_delivery (execution_id, url, origin, due_at, created_at, state, settled_at)"
        " SELECT n, 'u', 'https://' || n % 10, now() + interval '1 h', now(),"
        " CASE WHEN n % 2 = 0 THEN 'pending' ELSE 'delivered' END, CASE WHEN n % 2 = 1 THEN now() END"
        " FROM generate_series(1000, 41000) n; ANALYZE webhook_delivery;"
        "SELECT turnstile.keep_receivers(ARRAY(SELECT origin FROM webhook_delivery))"
    )
    (one,) = await completed(protocol)

    async def see(statement: Any, rows: int) -> None:
        cost = await cost_of(protocol, statement)
        assert cost.pages < 60 + 40 * rows, cost
        assert "webhook_delivery" not in cost.full_scans, cost

    async with protocol.transaction():
        await see(store(protocol).due(after_origin=""), 11)
        await see(claim(protocol), 1)
        await see(protocol.connection.fetchval("SELECT turnstile.clean_webhooks(3600, 10)"), 1)
        await see(give_up(protocol), 100)
        await see(replay(protocol, one), 1)
        await protocol.connection.execute("UPDATE webhook_delivery SET claimed_until = NULL")
        await see(store(protocol).claim({"https://example.org": 1}, lease_seconds=60), 1)
        await see(store(protocol).page(["failed"], before_id=2**62, limit=10), 1)
