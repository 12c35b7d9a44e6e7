"""A silent database: every call ends in time, the next connection is new, and other hosts are tried."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from tests.support.ledger import session_on
from tests.support.proxy import Proxy, proxy_to
from turnstile.common.database import Database, DatabaseTimeouts
from turnstile.common.domain.errors import StatementTimeout, Unavailable
from turnstile.localservers.ports import free_port

_IMPATIENT = DatabaseTimeouts(
    connect_seconds=0.3, acquire_seconds=0.4, command_seconds=0.3, give_up_seconds=0.2, close_seconds=0.3
)
_BOUND_SECONDS = 4.0
"""Far above what the timeouts add up to, far below the 30 s and more without them."""


@asynccontextmanager
async def _behind_a_proxy(database_url: str) -> AsyncIterator[tuple[Database, Proxy]]:
    async with proxy_to(database_url) as proxy:
        database = Database(proxy.url, application_name="test", connections_max=1, timeouts=_IMPATIENT)
        await database.open()
        try:
            yield database, proxy
        finally:
            await database.close()


async def test_a_statement_that_a_silent_server_does_not_answer_ends_in_time(database_url: str) -> None:
    async with _behind_a_proxy(database_url) as (database, proxy):
        before = await database.fetchval("SELECT pg_backend_pid()")
        proxy.freeze()
        started = time.monotonic()
        for _ in range(2):
            with pytest.raises(Unavailable) as raised:
                await database.fetchval("SELECT 1")
            assert not isinstance(raised.value, StatementTimeout), "it is not the statement's fault"
        assert time.monotonic() - started < _BOUND_SECONDS
        proxy.thaw()
        assert await database.fetchval("SELECT pg_backend_pid()") != before


async def test_a_transaction_without_an_answer_ends_in_time(database_url: str) -> None:
    async with _behind_a_proxy(database_url) as (database, proxy):

        async def transaction() -> None:
            async with database.transaction() as connection:
                await connection.execute("SELECT 1")
                proxy.freeze()

        started = time.monotonic()
        with pytest.raises(Unavailable):
            await transaction()
        assert time.monotonic() - started < _BOUND_SECONDS
        proxy.thaw()
        assert await database.fetchval("SELECT 1") == 1


async def test_a_cancelled_call_ends_although_the_server_is_silent(database_url: str) -> None:
    async with _behind_a_proxy(database_url) as (database, proxy):
        proxy.freeze()
        call = asyncio.create_task(database.fetchval("SELECT 1"))
        await asyncio.wait({call}, timeout=0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(call, _BOUND_SECONDS)


async def test_a_pool_closes_in_time_although_the_server_is_silent(database_url: str) -> None:
    async with _behind_a_proxy(database_url) as (database, proxy):
        proxy.freeze()
        await asyncio.wait_for(database.close(), _BOUND_SECONDS)


async def test_a_slow_statement_is_cancelled_and_its_connection_kept(database_url: str) -> None:
    async with _behind_a_proxy(database_url) as (database, _):
        before = await database.fetchval("SELECT pg_backend_pid()")
        with pytest.raises(StatementTimeout, match="not finished within"):
            await database.fetchval("SELECT pg_sleep(60)")
        assert await database.fetchval("SELECT pg_backend_pid()") == before


async def test_callers_share_one_connection_and_none_starves(database_url: str) -> None:
    async with _behind_a_proxy(database_url) as (database, _):
        kept = await database.fetchval("SELECT pg_backend_pid()")

        async def calls() -> set[int]:
            return {await database.fetchval("SELECT pg_backend_pid()") for _ in range(20)}

        assert await asyncio.gather(*(calls() for _ in range(5))) == [{kept}] * 5


async def test_a_connection_that_the_server_closed_between_two_calls_is_replaced(database_url: str) -> None:
    async with _behind_a_proxy(database_url) as (database, _), session_on(database_url) as session:
        before = await database.fetchval("SELECT pg_backend_pid()")
        await session.execute("SELECT pg_terminate_backend($1, 5000)", before)
        # The end of the connection arrives through the proxy.
        await asyncio.sleep(0.3)
        assert await database.fetchval("SELECT pg_backend_pid()") != before


_TIMEOUTS = DatabaseTimeouts(connect_seconds=1.0, acquire_seconds=1.5, close_seconds=0.5)


def _with_hosts(url: str, *hosts: str) -> str:
    parts = urlsplit(url)
    account, at, last = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{account}{at}{','.join([*hosts, last])}").geturl()


async def test_a_silent_host_and_a_closed_one_are_skipped(database_url: str) -> None:
    async with proxy_to(database_url) as silent:
        silent.freeze()
        hosts = [urlsplit(silent.url).netloc.rpartition("@")[2], f"127.0.0.1:{free_port()}"]
        url = _with_hosts(database_url, *hosts)
        database = Database(url, application_name="test", connections_max=2, timeouts=_TIMEOUTS)
        await database.open()
        try:
            began = time.monotonic()
            async with database.transaction(), database.transaction():
                pass
            assert time.monotonic() - began < _TIMEOUTS.connect_seconds
        finally:
            await database.close()


async def test_while_it_closes_no_connection_serves_two_calls(database_url: str) -> None:
    async def transactions(database: Database) -> None:
        while True:
            async with database.transaction() as connection:
                await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

    for _ in range(5):
        database = Database(database_url, application_name="test", connections_max=4)
        await database.open()
        callers = [asyncio.create_task(transactions(database)) for _ in range(6)]
        await asyncio.sleep(0.05)
        await database.close()
        refused = await asyncio.wait_for(asyncio.gather(*callers, return_exceptions=True), _BOUND_SECONDS)
        assert {type(each) for each in refused} == {Unavailable}, refused
        assert {str(each) for each in refused} == {"database: the connections are closed"}
