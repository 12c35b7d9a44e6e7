"""A turn whose outcome is unknown: the newest turn row settles it, and the same turn can be sent again."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.support.ledger import Led, admitted, ended, ledger_on, session_on
from tests.support.proxy import CLEAR, Flow, LinkState, Proxy, proxy_to
from turnstile.executor.leader.ledger import Ledger
from turnstile.executor.leader.ports import NewestTurn, OutcomeUnknown
from turnstile.executor.leader.records import Journal, Turn


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    async with proxy_to(database_url) as proxy:
        yield proxy


@pytest.fixture
async def led(proxy: Proxy) -> AsyncIterator[Led]:
    async with ledger_on(proxy.url) as ledger:
        led = await Led.by(ledger)
        await led.admit(1, 4, journal=Journal(totals={"a": (2, 0)}))
        # Prepares the statement that is going to be lost.
        await led.write(admitted=[admitted(2)], ended=[ended(4)], journal=Journal(totals={"a": (1, 1)}))
        yield led


async def _lost(led: Led, proxy: Proxy, state: LinkState) -> Turn:
    """Write a turn while the link loses bytes; return it."""
    turn = Turn(
        epoch=led.epoch,
        number=led.number + 1,
        at=5.0,
        admitted=[admitted(3)],
        ended=[ended(1)],
        journal=Journal(totals={"a": (0, 2)}),
    )
    proxy.state = state
    writing = asyncio.create_task(led.ledger.write(turn))
    await asyncio.wait({writing}, timeout=0.5)
    proxy.cut()
    with pytest.raises(OutcomeUnknown):
        await writing
    proxy.state = CLEAR
    return turn


async def test_a_turn_whose_answer_was_lost_is_found_committed(led: Led, proxy: Proxy) -> None:
    turn = await _lost(led, proxy, LinkState(down=Flow.HOLD))
    epoch = await led.ledger.take_over("a", only_if_leading=True)
    assert await led.ledger.newest_turn() == NewestTurn(epoch=turn.epoch, number=turn.number)
    loaded = await led.ledger.load(epoch)
    assert [row.id for row in loaded.waiting] == [2, 3]
    assert [journal.totals["a"] for journal in loaded.journals] == [(2, 0), (1, 1), (0, 2)]


async def test_a_turn_that_never_arrived_is_found_missing_and_sent_again(led: Led, proxy: Proxy) -> None:
    turn = await _lost(led, proxy, LinkState(up=Flow.HOLD))
    epoch = await led.ledger.take_over("a", only_if_leading=True)
    assert await led.ledger.newest_turn() == NewestTurn(epoch=turn.epoch, number=turn.number - 1)
    await led.ledger.write(replace(turn, epoch=epoch, number=1))
    loaded = await led.ledger.load(epoch)
    assert [row.id for row in loaded.waiting] == [2, 3]
    assert [journal.totals["a"] for journal in loaded.journals] == [(2, 0), (1, 1), (0, 2)]


async def test_a_silent_server_ends_a_call_in_time(proxy: Proxy, led: Led) -> None:
    proxy.freeze()
    began = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        await led.ledger.newest_turn()
    assert time.monotonic() - began < 8.0
    proxy.thaw()
    assert await led.ledger.newest_turn() == NewestTurn(epoch=led.epoch, number=2)


async def test_a_terminated_session_leaves_the_outcome_unknown(led: Led, database_url: str) -> None:
    async with session_on(database_url) as session:
        await session.execute("BEGIN; LOCK TABLE ledger.granted")
        writing = asyncio.create_task(led.write(grants_over=[(1, 1)]))
        await asyncio.wait({writing}, timeout=0.05)
        await session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'turnstile leader'"
        )
        with pytest.raises(OutcomeUnknown):
            await writing


async def test_a_cancelled_call_leaves_no_statement_behind_for_the_next_one(
    led: Led, database_url: str
) -> None:
    async with session_on(database_url) as session:
        await session.execute("BEGIN; LOCK TABLE ledger.worker")
        loading = asyncio.create_task(led.load())
        await asyncio.wait({loading}, timeout=0.2)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        assert await led.ledger.newest_turn() == NewestTurn(epoch=led.epoch, number=2)


async def test_an_unreachable_server_leaves_the_outcome_unknown() -> None:
    ledger = Ledger("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(OutcomeUnknown):
        await ledger.take_over("a")
    with pytest.raises(OutcomeUnknown):
        await ledger.leader_seen()
