"""The fence: nothing of an old leader is committed after a takeover, and nothing is lost before it (P6)."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from tests.support.ledger import Led, admitted, in_flight, ledger_on, session_on
from tests.support.pooler import pgbouncer
from tests.support.traffic import until
from turnstile.executor.leader.ledger import Ledger
from turnstile.executor.leader.ports import Deposed, NewestTurn, OutcomeUnknown
from turnstile.executor.leader.records import Turn

_WAITS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)

T = TypeVar("T")


async def known(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call until its outcome is known: a takeover ends the session of the old leader."""
    while True:
        try:
            return await call()
        except OutcomeUnknown:
            continue


async def test_a_deposed_leader_writes_nothing(led: Led, other: Ledger) -> None:
    await led.admit(1)
    epoch = await other.take_over("b")
    with pytest.raises(Deposed):
        await known(lambda: led.admit(2))
    assert [row.id for row in (await other.load(epoch)).waiting] == [1]
    assert await other.newest_turn() == NewestTurn(epoch=led.epoch, number=1)


async def test_a_deposed_leader_loads_nothing(led: Led, other: Ledger) -> None:
    await other.take_over("b")
    with pytest.raises(Deposed):
        await led.load()


async def test_a_takeover_waits_for_the_turn_in_flight_and_its_load_has_it(
    led: Led, other: Ledger, database_url: str
) -> None:
    turn = Turn(epoch=led.epoch, number=1, at=1.0, admitted=[admitted(1)], reserved_id=10)
    async with session_on(database_url) as watcher, in_flight(led.ledger, turn) as commit:
        taking = asyncio.create_task(other.take_over("b"))
        await until(lambda: watcher.fetchval(_WAITS))
        assert not taking.done()
        await commit()
        epoch = await taking
    assert await other.newest_turn() == NewestTurn(epoch=led.epoch, number=1)
    assert [row.id for row in (await other.load(epoch)).waiting] == [1]
    # The new leader's first turn follows the one for which it waited.
    await other.write(Turn(epoch=epoch, number=1, at=2.0))


async def test_a_turn_waits_for_the_takeover_in_flight_and_writes_nothing(
    led: Led, database_url: str
) -> None:
    async with session_on(database_url) as taker:
        await taker.execute("BEGIN; UPDATE ledger.leadership SET epoch = epoch + 1, executor = 'b'")
        writing = asyncio.create_task(led.admit(1))
        # Longer than the time-out of one lock: the same statement is sent again.
        done, _ = await asyncio.wait({writing}, timeout=0.3)
        assert not done
        await taker.execute("COMMIT")
        with pytest.raises(Deposed):
            await writing
        assert not await taker.fetchval("SELECT count(*) FROM ledger.execution")


async def test_a_takeover_ends_the_session_of_a_turn_that_does_not_end(led: Led, other: Ledger) -> None:
    turn = Turn(epoch=led.epoch, number=1, at=1.0, admitted=[admitted(1)], reserved_id=10)
    epoch = 0

    async def hang() -> None:
        nonlocal epoch
        async with in_flight(led.ledger, turn) as commit:
            began = time.monotonic()
            epoch = await other.take_over("b")
            assert 0.9 < time.monotonic() - began < 3.0
            await commit()

    with pytest.raises(OutcomeUnknown):
        await hang()
    assert await other.newest_turn() is None
    assert not (await other.load(epoch)).waiting


async def test_of_two_that_take_over_at_once_the_higher_epoch_leads(ledger: Ledger, other: Ledger) -> None:
    for _ in range(5):
        first, second = await asyncio.gather(ledger.take_over("a"), other.take_over("b"))
        assert first != second
        winner, loser = (ledger, other) if first > second else (other, ledger)
        # The earlier one ends no session of the later one.
        await winner.write(Turn(epoch=max(first, second), number=1, at=1.0))
        late = Turn(epoch=min(first, second), number=1, at=1.0)
        with pytest.raises(Deposed):
            await known(lambda loser=loser, late=late: loser.write(late))  # type: ignore[misc]


async def test_an_epoch_is_above_all_before_it_and_the_clock(ledger: Ledger, database_url: str) -> None:
    async with session_on(database_url) as session:
        clock = await session.fetchval("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        first = await ledger.take_over("a")
        assert first > clock
        # A worker has seen one that a failover has lost.
        second = await ledger.take_over("a", above=first + 10**9)
        assert second > first + 10**9
        assert await ledger.take_over("a") > second


async def test_an_epoch_that_a_failover_lost_is_not_issued_again_by_a_clock_that_is_behind(
    ledger: Ledger, other: Ledger, database_url: str
) -> None:
    async with session_on(database_url) as session:
        await ledger.take_over("a")
        # The clock was a day ahead, and is behind all epochs since.
        await session.execute("UPDATE ledger.leadership SET epoch = epoch + 86400000000")
        standby = await session.fetchval("SELECT epoch FROM ledger.leadership")
        lost = await ledger.take_over("a")
        await session.execute("UPDATE ledger.leadership SET epoch = $1", standby)
        assert await other.take_over("b") != lost


async def test_a_leader_that_asks_for_its_own_epoch_does_not_take_it_from_another(
    led: Led, other: Ledger
) -> None:
    assert await led.ledger.take_over("a", only_if_leading=True) > led.epoch
    epoch = await other.take_over("b")
    with pytest.raises(Deposed):
        await led.ledger.take_over("a", only_if_leading=True)
    await other.write(Turn(epoch=epoch, number=1, at=1.0))


async def test_a_turn_is_written_while_a_load_lasts(led: Led, database_url: str) -> None:
    await led.admit(1)
    async with session_on(database_url) as session, session_on(database_url) as watcher:
        await session.execute("BEGIN; LOCK TABLE ledger.worker IN ACCESS EXCLUSIVE MODE")
        loading = asyncio.create_task(led.load())
        await until(lambda: watcher.fetchval(_WAITS))
        await led.write()
        await session.execute("COMMIT")
        assert [row.id for row in (await loading).waiting] == [1]


async def test_candidates_see_a_leader_until_its_session_is_gone(
    led: Led, other: Ledger, database_url: str
) -> None:
    await led.write()
    newest = NewestTurn(epoch=led.epoch, number=1)
    assert await other.leader_seen() == (newest, False)
    async with session_on(database_url) as session:
        await session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'turnstile leader'"
        )

    async def is_gone() -> bool:
        return (await other.leader_seen()) == (newest, True)

    await until(is_gone)


async def test_a_new_leader_ends_the_session_of_a_leader_that_hangs(led: Led, other: Ledger) -> None:
    await other.take_over("b")
    third = Ledger(other._writer._hosts._urls[0])
    try:
        assert not (await third.leader_seen())[1]
        await other.resign()

        async def is_gone() -> bool:
            return (await third.leader_seen())[1]

        await until(is_gone)
    finally:
        await third.close()


async def test_behind_a_pooler_in_session_mode_a_takeover_ends_the_same_sessions(database_url: str) -> None:
    with pgbouncer(database_url, "session") as url:
        async with ledger_on(url) as first, ledger_on(url) as other:
            led = await Led.by(first)
            await test_a_takeover_ends_the_session_of_a_turn_that_does_not_end(led, other)
            led = await Led.by(first)
            await test_a_new_leader_ends_the_session_of_a_leader_that_hangs(led, other)
            await test_an_executor_is_told_that_another_one_has_the_broker(first, other)


async def test_an_executor_is_told_that_another_one_has_the_broker(ledger: Ledger, other: Ledger) -> None:
    assert not await ledger.announce("a", has_broker=False)
    assert not await other.announce("b", has_broker=True)
    assert await ledger.announce("a", has_broker=False)
    assert not await other.announce("b", has_broker=False)
    assert not await ledger.announce("a", has_broker=True)


async def test_a_takeover_leaves_sessions_alone_that_store_commands(
    led: Led, other: Ledger, database_url: str
) -> None:
    async with session_on(database_url) as submitting, session_on(database_url) as storing:
        await submitting.execute(
            "INSERT INTO ledger.definition (kind, name, body, created_at, updated_at)"
            " VALUES ('action', 'a', '{\"ref\": \"a\"}', now(), now());"
            # Its number is drawn while it commits; from then on it holds the locks of a writer.
            "BEGIN; SELECT turnstile.submit('a', '{}'); SET CONSTRAINTS ALL IMMEDIATE"
        )
        await storing.execute(
            "BEGIN; INSERT INTO ledger.inbox (command_id, kind, size_bytes, body)"
            " VALUES (gen_random_uuid(), 'cancel', 0, '{}')"
        )
        shared = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4 AND database ="
        database = "(SELECT oid FROM pg_database WHERE datname = current_database())"
        assert await storing.fetchval(f"{shared} {database}") == 2
        await other.take_over("b")
        for session in (submitting, storing):
            await session.execute("COMMIT")
        assert await storing.fetchval("SELECT count(*) FROM ledger.inbox") == 2
