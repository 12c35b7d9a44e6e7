"""Sweeps read the deliveries of a receiver from a bound on: none is lost, nothing settled is read (P15)."""

from datetime import timedelta

import pytest

from tests.integration.executor.page_counts import cost_of
from tests.integration.webhooks.deliveries import (
    URL,
    claim,
    claim_after,
    completed,
    give_up,
    replay,
    result,
    store,
)
from tests.support.protocol import Protocol
from turnstile.executor.webhooks.concurrency import PER_ORIGIN_MAX

_ORIGIN = "https://example.org"
_RELEASE = "UPDATE webhook_delivery SET claimed_until = NULL WHERE claimed_until IS NOT NULL"
_BATCHES, _BATCH = 6, 400


@pytest.fixture(autouse=True)
async def action(protocol: Protocol) -> None:
    await protocol.put("a")


async def _raise(protocol: Protocol, *, is_waiting: bool = False) -> None:
    """Move the window of what is due as far as it goes, and then the bounds of the receivers."""
    seconds_max = 600 if is_waiting else 0
    for _ in range(5):
        await protocol.column("SELECT turnstile.move_due_window(0, $1)", seconds_max)
    await protocol.column("SELECT turnstile.raise_receivers(ARRAY[$1], 0)", _ORIGIN)


async def _bound(protocol: Protocol) -> timedelta:
    """Return how far the bound is behind the first pending delivery."""
    (found,) = await protocol.column(
        "SELECT CASE WHEN isfinite(w.first_at) THEN d.due_at - w.first_at ELSE interval '1 h' END"
        " FROM webhook_receiver w, webhook_delivery d"
        " WHERE d.state = 'pending' ORDER BY d.due_at LIMIT 1"
    )
    assert isinstance(found, timedelta)
    return found


async def test_what_was_settled_is_not_read_under_an_old_snapshot(
    protocol: Protocol, old_snapshot: None
) -> None:
    async def pages() -> dict[str, int]:
        found = {}
        for name, statement in (
            ("due", lambda: store(protocol).due(after_origin="")),
            ("claim", lambda: store(protocol).claim({_ORIGIN: PER_ORIGIN_MAX}, lease_seconds=60)),
            ("claim all", lambda: claim(protocol)),
        ):
            async with protocol.transaction():
                found[name] = (await cost_of(protocol, statement())).pages
                await protocol.connection.execute(_RELEASE)
        (one,) = await claim(protocol)
        async with protocol.transaction():
            done = [result(one, "released")]
            found["record"] = (await cost_of(protocol, store(protocol).record(done))).pages
        return found

    await completed(protocol)
    for _ in range(3):
        await pages()
    first = await pages()
    for _ in range(_BATCHES):
        await completed(protocol, count=_BATCH)
        claims, _ = await claim_after(protocol, "", 1000, each_max=1000)
        results = [result(c, "failed" if number % 2 else "delivered") for number, c in enumerate(claims)]
        assert all(await store(protocol).record(results))
    await completed(protocol)
    unbounded = await pages()
    for _ in range(3):
        await _raise(protocol)
    last = await pages()
    print(f"{first} pages, {unbounded} before the bound moved, {last} after")
    for name in first:
        assert last[name] <= first[name] * 1.2 + 10, (name, first, unbounded, last)


async def test_stepping_over_receivers_reads_the_newest_row_of_each(
    protocol: Protocol, old_snapshot: None
) -> None:
    await completed(protocol)

    async def pages() -> int:
        async with protocol.transaction():
            return (await cost_of(protocol, store(protocol).due(after_origin=""))).by_relation.get(
                "webhook_receiver", 0
            )

    first = await pages()
    for _ in range(300):
        await protocol.connection.execute("UPDATE webhook_receiver SET first_at = '-infinity'")
        await _raise(protocol)
    assert await protocol.column("SELECT count(*) FROM webhook_receiver") == [1]
    assert await pages() <= first + 4


async def test_a_result_raises_the_bound_at_most_every_five_seconds(protocol: Protocol) -> None:
    await completed(protocol, count=3)
    for _ in range(5):
        await protocol.column("SELECT turnstile.move_due_window(0, 0)")
    one, two, three = await claim(protocol)
    await store(protocol).record([result(one, "delivered")])
    assert await protocol.column("SELECT version FROM webhook_receiver") == [-1]
    await protocol.connection.execute("UPDATE webhook_receiver SET moved_at = now() - interval '5 s'")
    await store(protocol).record([result(two, "delivered")])
    assert await protocol.column("SELECT version FROM webhook_receiver") == [-2]
    assert await _bound(protocol) >= timedelta(0)
    await store(protocol).record([result(three, "pending")])
    assert await protocol.column("SELECT version FROM webhook_receiver") == [-2]


async def test_the_first_pending_delivery_keeps_the_bound(protocol: Protocol) -> None:
    held, *_ = ids = await completed(protocol, count=3)
    claims = {c.execution_id: c for c in await claim(protocol)}
    await store(protocol).record([result(claims[i], "delivered") for i in ids[1:]])
    await _raise(protocol)
    assert await _bound(protocol) == timedelta(0)
    await protocol.connection.execute(_RELEASE)
    assert [c.execution_id for c in await claim(protocol)] == [held]


async def test_a_retry_a_release_and_a_replay_are_above_the_bound(protocol: Protocol) -> None:
    retried, released, replayed = await completed(protocol, count=3)
    claims = {c.execution_id: c for c in await claim(protocol)}
    await store(protocol).record([result(claims[replayed], "delivered")])
    await _raise(protocol)
    await store(protocol).record([result(claims[retried], "pending"), result(claims[released], "released")])
    await _raise(protocol)
    await replay(protocol, replayed)
    assert await _bound(protocol) >= timedelta(0)
    assert {c.execution_id for c in await claim(protocol)} == {retried, released, replayed}


async def test_a_settle_that_commits_late_is_above_the_bound(protocol: Protocol, other: Protocol) -> None:
    await completed(protocol)
    async with other.transaction():
        (late,) = await completed(other)
        for delivery in await claim(protocol):
            await store(protocol).record([result(delivery, "delivered")])
        for _ in range(3):
            await _raise(protocol, is_waiting=True)
    assert await _bound(protocol) >= timedelta(0)
    assert [c.execution_id for c in await claim(protocol)] == [late]


async def test_after_the_clock_was_set_back_deliveries_are_due_at_once_and_retries_later(
    protocol: Protocol,
) -> None:
    await _raise(protocol)
    await protocol.connection.execute(
        "UPDATE due_window SET first_at = first_at + interval '1 h',"
        " closing_at = closing_at + interval '1 h', next_at = next_at + interval '1 h',"
        " moved_at = moved_at + interval '1 h'"
    )
    (one,) = await completed(protocol)
    await _raise(protocol)
    assert await _bound(protocol) >= timedelta(0)
    (claimed,) = await claim(protocol)
    assert claimed.execution_id == one
    await store(protocol).record([result(claimed, "pending", delay_seconds=60)])
    assert await claim(protocol) == []
    assert await _bound(protocol) >= timedelta(0)


async def test_an_idle_receiver_is_deleted_and_comes_back(protocol: Protocol) -> None:
    await completed(protocol)
    (claimed,) = await claim(protocol)
    assert await protocol.column("SELECT turnstile.delete_idle_receivers(0)") == [0]
    await store(protocol).record([result(claimed, "delivered")])
    assert await protocol.column("SELECT turnstile.delete_idle_receivers(600)") == [0]
    assert await protocol.column("SELECT turnstile.delete_idle_receivers(0)") == [1]
    assert await protocol.column("SELECT origin FROM webhook_receiver") == []
    await replay(protocol, claimed.execution_id)
    assert len(await claim(protocol)) == 1


async def test_a_receiver_stays_while_a_delivery_to_it_is_not_committed(
    protocol: Protocol, other: Protocol
) -> None:
    await completed(protocol)
    (claimed,) = await claim(protocol)
    await store(protocol).record([result(claimed, "delivered")])
    async with other.transaction():
        (late,) = await completed(other)
        assert await protocol.column("SELECT turnstile.delete_idle_receivers(0)") == [0]
    assert await protocol.column("SELECT turnstile.delete_idle_receivers(0)") == [0]
    assert [c.execution_id for c in await claim(protocol)] == [late]


async def test_two_settles_add_one_receiver(protocol: Protocol, other: Protocol) -> None:
    await completed(protocol, URL, 2)
    assert await protocol.column("SELECT count(*) FROM webhook_receiver") == [1]
    async with other.transaction():
        await other.column("SELECT 1 FROM webhook_receiver FOR UPDATE")
        await _raise(protocol)
    assert await protocol.column("SELECT version FROM webhook_receiver") == [-1]
    await _raise(protocol)
    assert await protocol.column("SELECT version FROM webhook_receiver") == [-2]


async def test_a_delivery_without_receiver_is_found(protocol: Protocol) -> None:
    (one,) = await completed(protocol)
    await protocol.connection.execute("DELETE FROM webhook_receiver")
    assert await claim(protocol) == []
    assert await give_up(protocol) == (0, 0)
    assert [c.execution_id for c in await claim(protocol)] == [one]
