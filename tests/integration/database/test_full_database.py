"""A server without a free connection: calls share the connections that their pool has."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from turnstile.common.database import Database, DatabaseTimeouts
from turnstile.common.domain.errors import Unavailable

_CALLS = 20
_BOUND_SECONDS = 4.0


@dataclass(slots=True, kw_only=True)
class _Account:
    """A role with a limit on its connections, which is refused like a role on a full server."""

    url: str
    administrator: "asyncpg.Connection[asyncpg.Record]"
    name: str = field(default_factory=lambda: f"limited_{uuid4().hex}")

    async def limit(self, connections: int) -> None:
        await self.administrator.execute(f"ALTER ROLE {self.name} CONNECTION LIMIT {connections}")

    def database(self, *, acquire_seconds: float = 5.0) -> Database:
        parts = urlsplit(self.url)
        url = parts._replace(netloc=f"{self.name}@{parts.netloc.rpartition('@')[2]}").geturl()
        timeouts = DatabaseTimeouts(acquire_seconds=acquire_seconds)
        return Database(url, application_name="test", connections_max=4, timeouts=timeouts)


@pytest_asyncio.fixture
async def account(database_url: str) -> AsyncIterator[_Account]:
    administrator = await asyncpg.connect(database_url)
    try:
        account = _Account(url=database_url, administrator=administrator)
        await administrator.execute(f"CREATE ROLE {account.name} LOGIN CONNECTION LIMIT 1")
        try:
            yield account
        finally:
            await administrator.execute(f"DROP ROLE {account.name}")
    finally:
        await administrator.close()


async def test_calls_share_the_connections_of_the_pool_while_the_server_is_full(account: _Account) -> None:
    database = account.database()
    await database.open()
    try:
        pids = await asyncio.gather(
            *(database.fetchval("SELECT pg_backend_pid() FROM pg_sleep(0.01)") for _ in range(_CALLS))
        )
        assert len(set(pids)) == 1
        assert database.last_error is None
    finally:
        await database.close()


async def test_a_call_gives_up_when_no_connection_of_the_pool_becomes_free(account: _Account) -> None:
    database = account.database(acquire_seconds=0.3)
    await database.open()
    try:
        async with database.transaction():
            began = time.monotonic()
            with pytest.raises(Unavailable):
                await database.fetchval("SELECT 1")
            assert time.monotonic() - began < _BOUND_SECONDS
        assert await database.fetchval("SELECT 1") == 1
    finally:
        await database.close()


async def test_a_call_inside_a_transaction_does_not_wait_for_its_own_connection(account: _Account) -> None:
    database = account.database()
    await database.open()
    try:
        began = time.monotonic()
        async with database.transaction():
            with pytest.raises(Unavailable):
                await database.fetchval("SELECT 1")
        assert await database.fetchval("SELECT 1") == 1
        assert time.monotonic() - began < 1.0
    finally:
        await database.close()


async def test_another_connection_is_opened_as_soon_as_the_server_offers_one(account: _Account) -> None:
    database = account.database()
    await database.open()
    try:
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(database.transaction())
            second = asyncio.create_task(database.fetchval("SELECT pg_backend_pid()"))
            await asyncio.wait({second}, timeout=0.1)
            assert not second.done()
            await account.limit(2)
            pid = await asyncio.wait_for(second, _BOUND_SECONDS)
            assert pid != await first.fetchval("SELECT pg_backend_pid()")
    finally:
        await database.close()


async def test_without_any_connection_a_call_fails_at_once_and_says_why(account: _Account) -> None:
    database = account.database()
    await database.open()
    try:
        pid = await database.fetchval("SELECT pg_backend_pid()")
        await account.limit(0)
        await account.administrator.execute("SELECT pg_terminate_backend($1, 5000)", pid)
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(Unavailable):
                await database.fetchval("SELECT 1")
            assert time.monotonic() - began < 1.0
        assert "too many connections" in (database.last_error or "")
        await account.limit(1)
        assert await database.fetchval("SELECT 1") == 1
    finally:
        await database.close()
