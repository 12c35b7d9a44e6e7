"""A database that falls silent: every call ends in time, and the next connection is a new one."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.cable import Cable, cable_to
from turnstile.common.database import Database, DatabaseTimeouts
from turnstile.common.domain.errors import StatementTimeout, Unavailable

_IMPATIENT = DatabaseTimeouts(
    connect_seconds=0.3, acquire_seconds=0.4, command_seconds=0.3, give_up_seconds=0.2, close_seconds=0.3
)
_BOUND_SECONDS = 4.0
"""Far above what the timeouts add up to, far below the 30 s and more without them."""


@asynccontextmanager
async def _behind_a_cable(database_url: str) -> AsyncIterator[tuple[Database, Cable]]:
    async with cable_to(database_url) as cable:
        database = Database(cable.url, application_name="test", connections_max=1, timeouts=_IMPATIENT)
        await database.open()
        try:
            yield database, cable
        finally:
            await database.close()


async def test_a_statement_that_a_silent_server_does_not_answer_ends_in_time(database_url: str) -> None:
    async with _behind_a_cable(database_url) as (database, cable):
        before = await database.fetchval("SELECT pg_backend_pid()")
        cable.freeze()
        started = time.monotonic()
        for _ in range(2):
            with pytest.raises(Unavailable) as raised:
                await database.fetchval("SELECT 1")
            assert not isinstance(raised.value, StatementTimeout), "it is not the statement's fault"
        assert time.monotonic() - started < _BOUND_SECONDS
        cable.thaw()
        assert await database.fetchval("SELECT pg_backend_pid()") != before


async def test_a_transaction_in_which_the_server_falls_silent_ends_in_time(database_url: str) -> None:
    async with _behind_a_cable(database_url) as (database, cable):

        async def transaction() -> None:
            async with database.transaction() as connection:
                await connection.execute("SELECT 1")
                cable.freeze()

        started = time.monotonic()
        with pytest.raises(Unavailable):
            await transaction()
        assert time.monotonic() - started < _BOUND_SECONDS
        cable.thaw()
        assert await database.fetchval("SELECT 1") == 1


async def test_a_cancelled_call_stays_cancelled_though_the_server_is_silent(database_url: str) -> None:
    async with _behind_a_cable(database_url) as (database, cable):
        cable.freeze()
        call = asyncio.create_task(database.fetchval("SELECT 1"))
        await asyncio.wait({call}, timeout=0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(call, _BOUND_SECONDS)


async def test_a_pool_closes_in_time_though_the_server_is_silent(database_url: str) -> None:
    async with _behind_a_cable(database_url) as (database, cable):
        cable.freeze()
        await asyncio.wait_for(database.close(), _BOUND_SECONDS)


async def test_a_statement_that_takes_too_long_is_given_up_and_its_connection_kept(database_url: str) -> None:
    async with _behind_a_cable(database_url) as (database, _):
        before = await database.fetchval("SELECT pg_backend_pid()")
        with pytest.raises(StatementTimeout, match="not finished within"):
            await database.fetchval("SELECT pg_sleep(60)")
        assert await database.fetchval("SELECT pg_backend_pid()") == before
