"""Claims of deliveries: one at a time, so many for a receiver, settled once."""

import pytest

from tests.integration.webhooks.deliveries import claim, claim_behind, ended, note, record, states
from tests.support.protocol import Protocol, connected


async def expire_lease(protocol: Protocol) -> None:
    await protocol.connection.execute(
        "UPDATE webhook_delivery SET claimed_until = now() - interval '1 s' WHERE state = 'pending'"
    )


@pytest.fixture(autouse=True)
async def action(protocol: Protocol) -> None:
    await protocol.put("a")


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
    claims, rest = await claim_behind(protocol, "", 2000)
    assert (len(claims), rest) == (1000, "https://01000")
    claims, rest = await claim_behind(protocol, rest, 2000)
    assert (len(claims), rest) == (500, "")


async def test_who_has_something_due_is_said_with_how_much_may_be_claimed(protocol: Protocol) -> None:
    await ended(protocol, 12, url="https://a.example/x")
    await ended(protocol, 2, url="https://b.example/y")
    await ended(protocol, 1, url="https://later.example/z")
    await protocol.connection.execute(
        "UPDATE webhook_delivery SET due_at = now() + interval '1 h' WHERE url LIKE '%later%'"
    )
    due, rest = await record(protocol).due(after_origin="")
    assert ([(d.origin, d.count) for d in due], rest) == (
        [("https://a.example", 8), ("https://b.example", 2)],
        "",
    )
    claims = await record(protocol).claim({"https://a.example": 3, "https://b.example": 1}, lease_seconds=60)
    assert sorted(c.origin for c in claims) == ["https://a.example"] * 3 + ["https://b.example"]
    due, _ = await record(protocol).due(after_origin="")
    assert [(d.origin, d.count) for d in due] == [("https://a.example", 5), ("https://b.example", 1)]
    # Of each line the first eight count, those under way among them.
    assert len(await record(protocol).claim({"https://a.example": 8}, lease_seconds=60)) == 5
    due, _ = await record(protocol).due(after_origin="https://a.example")
    assert [d.origin for d in due] == ["https://b.example"]


async def test_of_two_replicas_that_choose_the_same_receiver_each_gets_others(
    protocol: Protocol, database_url: str
) -> None:
    ids = await ended(protocol, 4)
    async with connected(database_url) as other, protocol.transaction():
        first = await record(protocol).claim({"https://example.org": 4}, lease_seconds=60)
        assert await record(other).claim({"https://example.org": 4}, lease_seconds=60) == []
    assert [c.execution_id for c in first] == ids


async def test_a_released_one_is_due_at_once_and_its_attempt_does_not_count(protocol: Protocol) -> None:
    await ended(protocol)
    (claimed,) = await claim(protocol)
    assert await record(protocol).note([note(claimed, "released")]) == [True]
    (again,) = await claim(protocol)
    assert (again.event_id, again.attempts) == (claimed.event_id, 1)


async def test_more_receivers_with_something_due_than_one_look_takes_are_gone_through(
    protocol: Protocol,
) -> None:
    await protocol.connection.execute(
        "INSERT INTO webhook_delivery (execution_id, url, origin, due_at, created_at)"
        " SELECT n, 'u', 'https://' || lpad(n::text, 5, '0'), now(), now() FROM generate_series(1, 1500) n"
    )
    due, rest = await record(protocol).due(after_origin="")
    assert (len(due), rest) == (1000, "https://01000")
    due, rest = await record(protocol).due(after_origin=rest)
    assert (len(due), rest) == (500, "")
