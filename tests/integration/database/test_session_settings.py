"""Every session sets what our promises depend on, whatever the role, the database or the server sets."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.support.inbox import Installation, request
from tests.support.ledger import session_on
from tests.support.pooler import pgbouncer
from tests.support.served import serve
from tests.support.traffic import until
from turnstile.common.database import Database, DatabaseHosts
from turnstile.common.database_session import SETTINGS, PoolerInBetween
from turnstile.executor.inbox import NotDecidedYet
from turnstile.localservers import DatabaseServer, PostgresServer
from turnstile.localservers.ports import LOOPBACK
from turnstile.migrations.run import is_current, migrate

if TYPE_CHECKING:
    from turnstile.common.database_session import Connection

_OBJECTS_OF_AN_APPLICATION: Final = """
CREATE SCHEMA app;
CREATE TABLE app.alembic_version (version_num text);
INSERT INTO app.alembic_version VALUES ('of the application');
CREATE TABLE app.action (id text);
CREATE TABLE app.execution (id text);
CREATE FUNCTION app.clock_timestamp() RETURNS timestamptz LANGUAGE sql RETURN '-infinity'::timestamptz;
CREATE FUNCTION app.set_config(text, text, boolean) RETURNS text LANGUAGE sql RETURN 'of the application'
"""
_ACTION: Final = """
INSERT INTO ledger.definition (kind, name, body, created_at, updated_at)
VALUES ('action', 'a', '{}', now(), now())
"""
_PROCESS: Final = re.compile(rb"K\x00\x00\x00\x0c.{4}", re.DOTALL)
_OTHER: Final = b"K\x00\x00\x00\x0c\x7f\x00\x00\x00"
_HOSTILE: Final = {
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "synchronous_commit": "off",
    "search_path": "app, pg_catalog",
    "statement_timeout": "100ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "20ms",
    "idle_session_timeout": "50ms",
    "TimeZone": "Pacific/Auckland",
    "DateStyle": "German, DMY",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "standard_conforming_strings": "off",
    "transform_null_equals": "on",
    "array_nulls": "off",
    "row_security": "off",
    "jit": "on",
    "jit_above_cost": "0",
    "plpgsql.variable_conflict": "use_column",
    "plpgsql.extra_errors": "all",
}


async def _set(url: str, of: str, settings: dict[str, str]) -> None:
    async with session_on(url) as session:
        for name, value in settings.items():
            # A list of names; the others are single values.
            given = value if name == "search_path" else f"'{value}'"
            await session.execute(f"ALTER {of} SET {name} = {given}")


@pytest.mark.parametrize("of", ["DATABASE", "ROLE"])
async def test_defaults_of_the_database_or_the_role_change_nothing(
    postgresql: DatabaseServer, empty_database_url: str, of: str
) -> None:
    parts = urlsplit(empty_database_url)
    name = parts.path[1:]
    async with session_on(empty_database_url) as session:
        await session.execute(_OBJECTS_OF_AN_APPLICATION)
    postgresql.execute(f"CREATE ROLE {name} LOGIN SUPERUSER")
    url = parts._replace(netloc=f"{name}@{parts.netloc.rpartition('@')[2]}").geturl()
    try:
        await _set(empty_database_url, f"{of} {name}", _HOSTILE)
        await _works(url)
    finally:
        postgresql.drop_database(name)
        postgresql.execute(f"DROP ROLE {name}")


async def _works(url: str) -> None:
    await migrate(url)
    assert await is_current(url)
    async with serve(url) as api:
        api.join()
        await api.define("a", max_concurrent=1)
        ids = await api.submit_many("a", 3, parameters={"n": 1.1, "text": "it's \\ é"})
        for each in ids:
            await api.run(each)
        shown = await api.get(f"/executions/{ids[0]}")
        listed = await api.get("/executions")
        stats = await api.get("/actions/a/queue-stats")
        actions = await api.get("/actions")
    assert shown["parameters"] == {"n": 1.1, "text": "it's \\ é"}
    assert shown["created_at"].endswith("Z")
    assert [each["id"] for each in listed["items"]] == sorted(ids, reverse=True)
    assert (stats["total_completed"], stats["queue_length"]) == (3, 0)
    assert [each["ref"] for each in actions["items"]] == ["a"]


async def test_every_session_has_the_settings_of_all_sessions_and_those_of_its_user(
    database_url: str,
) -> None:
    database = urlsplit(database_url).path[1:]
    async with session_on(database_url) as session:
        await session.execute(_OBJECTS_OF_AN_APPLICATION)
    await _set(database_url, f"DATABASE {database}", _HOSTILE)
    own = {"lock_timeout": "1s", "work_mem": "64MB"}
    connection = await DatabaseHosts(database_url, connect_seconds=5.0).connect(settings=own)
    try:
        wanted = {**SETTINGS, "statement_timeout": "0", "jit": "off", "synchronous_commit": "on", **own}
        assert {name: await connection.fetchval(f"SHOW {name}") for name in wanted} == wanted
    finally:
        await connection.close()


@asynccontextmanager
async def _pooler(url: str) -> AsyncIterator[str]:
    """What a pooler in session mode shows: the key of its own, and one other process that answers."""
    server = urlsplit(url)

    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                target.write(_PROCESS.sub(_OTHER, data))
                await target.drain()
        target.close()

    async def connected(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(server.hostname, server.port)
        await asyncio.gather(carry(client, to_server), carry(from_server, to_client))

    async with await asyncio.start_server(connected, LOOPBACK, 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        account = server.netloc.rpartition("@")[0]
        yield server._replace(netloc=f"{account}@{LOOPBACK}:{port}").geturl()


async def test_sessions_of_a_pooler_in_session_mode_have_all_settings(database_url: str) -> None:
    async with _pooler(database_url) as url:
        connection = await DatabaseHosts(url, connect_seconds=5.0).connect(settings={"work_mem": "64MB"})
        try:
            assert connection.get_server_pid() != await connection.fetchval("SELECT pg_backend_pid()")
            wanted = {**SETTINGS, "work_mem": "64MB"}
            assert {name: await connection.fetchval(f"SHOW {name}") for name in wanted} == wanted
        finally:
            await connection.close()


async def test_a_pooler_in_transaction_mode_is_named_and_its_sessions_keep_their_settings(
    database_url: str,
) -> None:
    with pgbouncer(database_url, "transaction") as url:
        database = Database(url, application_name="test")
        opening = asyncio.create_task(database.open())

        async def is_named() -> bool:
            return "a connection pooler in transaction or statement mode" in (database.last_error or "")

        await until(is_named)
        assert "TURNSTILE_DATABASE_URL" in (database.last_error or "")
        opening.cancel()
        await asyncio.wait({opening})
        session = await asyncpg.connect(url, statement_cache_size=0)
        try:
            assert await session.fetchval("SHOW search_path") == '"$user", public'
        finally:
            await session.close()


async def test_a_pooler_in_statement_mode_or_without_room_is_named_with_its_setting(
    database_url: str,
) -> None:
    for mode, settings, named in (
        ("statement", "", "set pool_mode = session"),
        ("session", "default_pool_size = 1", "for pgbouncer default_pool_size"),
    ):
        with pgbouncer(database_url, mode, settings) as url, pytest.raises(PoolerInBetween, match=named):
            await DatabaseHosts(url, connect_seconds=0.5).connect()


@pytest.mark.parametrize("settings", ["", "server_round_robin = 1"], ids=["last first", "in turn"])
async def test_a_pooler_in_transaction_mode_is_found_however_many_processes_are_free(
    database_url: str, settings: str
) -> None:
    with pgbouncer(database_url, "transaction", settings) as url:
        hosts = DatabaseHosts(url, connect_seconds=5.0)
        async with AsyncExitStack() as stack:
            others: list[Connection] = []
            for _ in range(4):
                others.append(await asyncpg.connect(url, statement_cache_size=0))
                stack.push_async_callback(others[-1].close)
                async with AsyncExitStack() as busy:
                    for each in others:
                        await busy.enter_async_context(each.transaction())
                        await each.execute("SELECT 1")
                for _ in range(4):
                    with pytest.raises(PoolerInBetween):
                        await hosts.connect()


async def _where_only_a_commit_that_waits_writes(server: PostgresServer, name: str) -> str:
    """Create our tables in a database; from the next start of the server on, nothing else writes for 10 s."""
    await asyncio.to_thread(server.execute, "ALTER SYSTEM SET wal_writer_delay = '10s'")
    url = await asyncio.to_thread(server.create_database, name)
    await migrate(url)
    return url


async def test_what_is_stored_survives_a_crash_where_the_default_is_not_to_wait_for_the_disk(
    own_postgresql: PostgresServer,
) -> None:
    url = await _where_only_a_commit_that_waits_writes(own_postgresql, "stored")
    await _set(url, "DATABASE stored", {"synchronous_commit": "off"})
    await asyncio.to_thread(own_postgresql.restart)
    async with Installation(url) as installation:
        # Without a leader, which would make it durable with its own commit.
        with suppress(NotDecidedYet):
            await installation.submit(request("a"), seconds=0.5)
        await asyncio.to_thread(own_postgresql.kill)
    await asyncio.to_thread(own_postgresql.restart)
    async with session_on(url) as session:
        assert await session.fetchval("SELECT count(*) FROM ledger.inbox") == 1


async def test_a_submission_of_a_session_makes_its_commit_wait_for_the_disk(
    own_postgresql: PostgresServer,
) -> None:
    url = await _where_only_a_commit_that_waits_writes(own_postgresql, "submitted")
    async with session_on(url) as session:
        await session.execute(_ACTION)
        await session.execute("CREATE TABLE mine (n integer)")
    await asyncio.to_thread(own_postgresql.restart)
    async with session_on(url) as session:
        await session.execute("SET synchronous_commit = off")
        async with session.transaction():
            await session.execute("INSERT INTO mine VALUES (1)")
            await session.fetchval("SELECT turnstile.submit('a')")
        assert await session.fetchval("SHOW synchronous_commit") == "off"
        await asyncio.to_thread(own_postgresql.kill)
    await asyncio.to_thread(own_postgresql.restart)
    async with session_on(url) as session:
        assert await session.fetchval("SELECT count(*) FROM mine, ledger.inbox") == 1
