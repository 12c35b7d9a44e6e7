"""A row that another session has locked delays only its own end (P9)."""

import asyncio
import time

import asyncpg
import pytest

from tests.support.ledger import Led, ended, ledger_on, session_on
from tests.support.traffic import until
from turnstile.common.domain.states import Status
from turnstile.executor.leader.ledger import Ledger
from turnstile.executor.leader.ports import TurnRefused

_LOCK = "BEGIN; SELECT FROM ledger.execution WHERE id = 1 FOR UPDATE"


async def _status(session: "asyncpg.Connection[asyncpg.Record]") -> str:
    return str(await session.fetchval("SELECT status FROM ledger.execution WHERE id = 1"))


async def test_a_locked_row_delays_only_its_own_end(led: Led, database_url: str) -> None:
    await led.admit(1, 2, 3)
    async with session_on(database_url) as holder, session_on(database_url) as reader:
        await holder.execute(_LOCK)
        began = time.monotonic()
        await led.write(ended=[ended(1, result=b'{"kept": 1}'), ended(2)])
        assert time.monotonic() - began < 1.0
        # Its slot is free: it is not among what lives.
        assert await led.waiting_ids() == [3]
        assert (await led.ledger.look_up([], [], [1]))[1].status is Status.COMPLETED
        assert (await led.ledger.outcomes([1]))[1].result == b'{"kept": 1}'
        assert await _status(reader) == "queued"
        await led.write(ended=[ended(3)])
        await holder.execute("ROLLBACK")

        async def is_written() -> bool:
            return await _status(reader) == "completed"

        await until(is_written)
        assert not await reader.fetchval("SELECT count(*) FROM ledger.pending_end")


async def test_a_pending_end_is_written_by_the_next_leader(
    led: Led, other: Ledger, database_url: str
) -> None:
    await led.admit(1)
    async with session_on(database_url) as holder, session_on(database_url) as reader:
        await holder.execute(_LOCK)
        await led.write(ended=[ended(1)])
        await led.ledger.close()
        epoch = await other.take_over("b")
        assert not (await other.load(epoch)).waiting
        await holder.execute("ROLLBACK")

        async def is_written() -> bool:
            return await _status(reader) == "completed"

        await until(is_written)


async def test_a_second_end_is_refused_while_the_first_one_is_pending(led: Led, database_url: str) -> None:
    await led.admit(1)
    async with session_on(database_url) as holder:
        await holder.execute(_LOCK)
        await led.write(ended=[ended(1)])
        with pytest.raises(TurnRefused, match="turn_ends_what_lives"):
            await led.write(ended=[ended(1, status=Status.FAILED, result=None)])
        await holder.execute("ROLLBACK")
        with pytest.raises(TurnRefused, match="turn_ends_what_lives"):
            await led.write(ended=[ended(1, status=Status.FAILED, result=None)])


async def test_an_end_that_the_row_would_refuse_cannot_become_pending(led: Led, database_url: str) -> None:
    await led.admit(1)
    async with session_on(database_url) as holder:
        await holder.execute(_LOCK)
        with pytest.raises(TurnRefused, match="completed_by_a_worker"):
            await led.write(ended=[ended(1, worker_id=None)])


async def test_a_turn_is_written_when_a_lock_of_the_whole_table_is_gone(led: Led, database_url: str) -> None:
    await led.admit(1)
    async with session_on(database_url) as holder:
        await holder.execute("BEGIN; LOCK TABLE ledger.execution IN EXCLUSIVE MODE")
        writing = asyncio.create_task(led.write(ended=[ended(1)]))
        await asyncio.wait({writing}, timeout=0.35)
        assert not writing.done()
        await holder.execute("ROLLBACK")
        await writing
        assert await _status(holder) == "completed"


async def test_a_shared_lock_of_a_row_delays_nothing_that_does_not_write_it(
    led: Led, database_url: str
) -> None:
    await led.admit(1, 2)
    async with session_on(database_url) as holder:
        await holder.execute("BEGIN; SELECT FROM ledger.execution WHERE id = 1 FOR KEY SHARE")
        await led.write(ended=[ended(1)])
        assert await _status(holder) == "completed"


async def test_the_task_of_pending_ends_ends_with_the_ledger(database_url: str) -> None:
    async with session_on(database_url) as holder:
        async with ledger_on(database_url) as ledger:
            led = await Led.by(ledger)
            await led.admit(1)
            await holder.execute(_LOCK)
            await led.write(ended=[ended(1)])
        assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"pending ends"})
