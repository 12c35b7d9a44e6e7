"""Old deliveries: replayed when asked, given up when pending for too long, cleaned up when settled."""

import pytest

from tests.integration.webhooks.deliveries import claim, ended, give_up, note, record, replay, settled, states
from tests.support.protocol import Protocol


@pytest.fixture(autouse=True)
async def action(protocol: Protocol) -> None:
    await protocol.put("a")


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
