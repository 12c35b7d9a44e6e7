"""A snapshot that stays open elsewhere makes no statement dearer, however much has run since (P15)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import median

import pytest

from tests.integration.executor.page_counts import cost_of
from tests.support.protocol import Protocol

_TURNS, _SAMPLE = 400, 20
_MOVE = "SELECT turnstile.move_slot_window(0)"
_MOVE_NOW = "SELECT turnstile.move_slot_window(0, 0)"
"""Without waiting for the transactions of other tests on this server."""


@pytest.fixture
async def old_snapshot(other: Protocol) -> AsyncIterator[None]:
    """A reader that began before everything, as a backup does."""
    transaction = other.connection.transaction(isolation="repeatable_read", readonly=True)
    await transaction.start()
    await other.column("SELECT count(*) FROM action")
    yield
    await transaction.rollback()


async def _turn(protocol: Protocol) -> dict[str, int]:
    """Submit, claim, finish and settle one execution; return the pages that each statement read."""
    pages: dict[str, int] = {}

    async def measured(name: str, call: Callable[[], Awaitable[object]]) -> None:
        async with protocol.transaction():
            pages[name] = (await cost_of(protocol, call())).pages

    await measured("admit", protocol.submit)
    (running,) = await protocol.column("SELECT execution_id FROM turnstile.live_slot")
    await measured("claim", lambda: protocol.claim(running))
    await measured("finish", lambda: protocol.finish(running))
    await measured("settle", lambda: protocol.settle((running, 1)))
    return pages


async def _sweeps(protocol: Protocol) -> dict[str, int]:
    pages = {}
    for sweep in (
        protocol.due_completions, protocol.due_pools, protocol.reclaim, protocol.stop_overdue,
        protocol.grantable_queues, protocol.drifted_queues,
    ):  # fmt: skip
        async with protocol.transaction():
            pages[sweep.__name__] = (await cost_of(protocol, sweep())).pages
    return pages


async def test_the_cost_of_every_statement_stays_flat(protocol: Protocol, old_snapshot: None) -> None:
    await protocol.put(max_concurrent=1)
    await protocol.submit(count=5)
    first = [await _turn(protocol) for _ in range(_SAMPLE)]
    await protocol.column(_MOVE_NOW)
    sweeps = await _sweeps(protocol)
    for _ in range(_TURNS):
        await _turn(protocol)
    last = [await _turn(protocol) for _ in range(_SAMPLE)]
    for _ in range(2):
        await protocol.column(_MOVE_NOW)
    # Each index may have grown by one level.
    for name in first[0]:
        before, after = (median(turn[name] for turn in turns) for turns in (first, last))
        assert after <= before * 1.2 + 10, (name, before, after)
    for name, pages in (await _sweeps(protocol)).items():
        assert pages <= sweeps[name] * 1.2 + 10, (name, pages, sweeps)


async def test_the_window_moves_past_deleted_slots_and_keeps_the_live_ones(protocol: Protocol) -> None:
    ids = await protocol.start(3)
    await protocol.finish(ids[0])
    await protocol.settle((ids[0], 1))
    before = await protocol.column("SELECT ticket FROM slot")
    # The first call notes which tickets were drawn, the second one moves beyond them.
    assert await protocol.column(_MOVE_NOW) == [0]
    assert await protocol.column(_MOVE_NOW) == [2]
    assert min(await protocol.column("SELECT ticket FROM slot")) > max(before)
    assert await protocol.column("SELECT first_ticket FROM slot_window") == [max(before) + 1]
    assert sorted(await protocol.column("SELECT execution_id FROM turnstile.live_slot")) == ids[1:]
    await protocol.lose_lease()
    assert sorted((await protocol.reclaim()).returned) == ids[1:]


async def test_the_window_waits_for_a_grant_that_has_not_committed(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put()
    async with other.transaction():
        (slow,) = await other.submit()
        for _ in range(3):
            await protocol.column(_MOVE)
    assert await protocol.column("SELECT execution_id FROM turnstile.live_slot") == [slow]
    for _ in range(3):
        await protocol.column(_MOVE)
    assert await protocol.column("SELECT execution_id FROM turnstile.live_slot") == [slow]


async def test_a_foreign_writer_that_stays_open_delays_the_window_only_for_a_while(
    protocol: Protocol, other: Protocol
) -> None:
    ids = await protocol.start(1)
    await protocol.column(_MOVE)
    async with other.transaction():
        await other.connection.execute("CREATE TABLE written_elsewhere (n integer)")
        ids += await protocol.submit()
        await protocol.column(_MOVE)
        (first,) = await protocol.column("SELECT first_ticket FROM slot_window")
        await protocol.column(_MOVE)
        assert await protocol.column("SELECT first_ticket FROM slot_window") == [first]
        await protocol.column(_MOVE_NOW)
        assert await protocol.column("SELECT first_ticket > $1 FROM slot_window", first) == [True]
    assert sorted(await protocol.column("SELECT execution_id FROM turnstile.live_slot")) == ids


async def test_a_slot_that_another_session_holds_keeps_the_window_back(
    protocol: Protocol, other: Protocol
) -> None:
    ids = await protocol.start(2)
    await protocol.column(_MOVE_NOW)
    async with other.transaction():
        await other.column("SELECT 1 FROM slot WHERE execution_id = $1 FOR UPDATE", ids[0])
        assert await protocol.column(_MOVE_NOW) == [1]
    assert sorted(await protocol.column("SELECT execution_id FROM turnstile.live_slot")) == ids


async def test_calls_within_the_interval_do_nothing(protocol: Protocol) -> None:
    await protocol.start(1)
    await protocol.column(_MOVE_NOW)
    version = await protocol.column("SELECT version FROM slot_window")
    await protocol.column("SELECT turnstile.move_slot_window(60)")
    assert await protocol.column("SELECT version FROM slot_window") == version
