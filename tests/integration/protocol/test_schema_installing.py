"""`migrate`: from many processes at once, as often as one likes, and only what differs is installed."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from alembic import command

from tests.support.protocol import Protocol, connected
from turnstile.common.statements import installation_text, protocol_hash
from turnstile.migrations import MigrationBlocked, is_current, migrate
from turnstile.migrations.run import alembic_config, engine_of

_INSTALLED = "SELECT xmin::text || ctid::text FROM pg_namespace WHERE nspname = 'turnstile'"


async def test_six_processes_at_once_migrate_one_database(empty_database_url: str) -> None:
    program = f"import asyncio, migrations; asyncio.run(migrations.migrate({empty_database_url!r}))"
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-c", program, stderr=subprocess.PIPE
        )
        for _ in range(6)
    ]
    async with asyncio.timeout(60):
        errors = [(await process.communicate())[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, errors
    assert await is_current(empty_database_url)
    async with connected(empty_database_url) as protocol:
        assert await protocol.column("SELECT count(*) FROM alembic_version") == [1]


async def test_a_database_is_current_once_it_is_migrated(empty_database_url: str) -> None:
    assert not await is_current(empty_database_url)
    await migrate(empty_database_url)
    assert await is_current(empty_database_url)


async def test_a_protocol_that_is_up_to_date_is_left_alone(protocol: Protocol, database_url: str) -> None:
    before = await protocol.column(_INSTALLED)
    await migrate(database_url)
    assert await protocol.column(_INSTALLED) == before


async def test_another_version_s_protocol_is_replaced_whole(protocol: Protocol, database_url: str) -> None:
    await protocol.connection.execute(
        "CREATE FUNCTION turnstile.of_an_older_version() RETURNS int LANGUAGE sql AS 'SELECT 1';"
        "COMMENT ON SCHEMA turnstile IS 'an older hash'"
    )
    assert not await is_current(database_url)
    await migrate(database_url)
    assert await is_current(database_url)
    names = "SELECT proname FROM pg_proc WHERE pronamespace = 'turnstile'::regnamespace"
    assert "of_an_older_version" not in await protocol.column(names)


async def test_rows_outlive_a_new_protocol(protocol: Protocol, database_url: str) -> None:
    await protocol.put(max_concurrent=1)
    ids = await protocol.submit(count=2)
    await protocol.connection.execute("COMMENT ON SCHEMA turnstile IS 'an older hash'")
    await migrate(database_url)
    async with connected(database_url) as fresh:
        await fresh.run(ids[0])
        assert (await fresh.settle((ids[0], 1))).granted == [ids[1]]


def test_every_source_state_is_filled_in_from_the_table_of_transitions() -> None:
    text = installation_text()
    assert ":sources_of_" not in text
    assert "ARRAY['delayed', 'queued', 'scheduled']::execution_status[]" in text
    assert protocol_hash() in text


async def _older(url: str) -> None:
    """Bring a database to the first revision, as an early version left it."""
    engine = engine_of(url)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(lambda c: command.upgrade(alembic_config(c), "0001"))
    finally:
        await engine.dispose()


@asynccontextmanager
async def _backup(url: str) -> AsyncIterator[int]:
    """Hold every table as `pg_dump` does; lends its process id."""
    dump = await asyncpg.connect(url, server_settings={"application_name": "pg_dump"})
    try:
        async with dump.transaction():
            tables = await dump.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            for table in tables:
                await dump.execute(f"LOCK TABLE {table[0]} IN ACCESS SHARE MODE")
            yield dump.get_server_pid()
    finally:
        await dump.close()


async def test_a_migration_behind_a_backup_gives_way_to_others_and_names_what_is_in_its_way(
    empty_database_url: str,
) -> None:
    await _older(empty_database_url)
    other = await asyncpg.connect(empty_database_url)
    try:
        async with _backup(empty_database_url) as pid:
            migrating = asyncio.create_task(migrate(empty_database_url, lock_wait_seconds=0))
            waits = "SELECT relation::regclass::text FROM pg_locks WHERE NOT granted AND relation IS NOT NULL"
            async with asyncio.timeout(20):
                while not (table := await other.fetchval(waits)):
                    await asyncio.sleep(0.02)
            # Nobody reads the table while the migration waits for it, and everybody once it has given way.
            await asyncio.wait_for(other.fetchval(f"SELECT count(*) FROM {table}"), 20)
            with pytest.raises(MigrationBlocked, match=f"pid {pid} .pg_dump, user ") as blocked:
                await migrating
        assert [blocker.pid for blocker in blocked.value.blockers] == [pid]
        assert not await is_current(empty_database_url)
    finally:
        await other.close()


async def test_a_migration_goes_on_when_the_backup_has_ended(empty_database_url: str) -> None:
    await _older(empty_database_url)
    async with _backup(empty_database_url):
        migrating = asyncio.create_task(migrate(empty_database_url))
        await asyncio.sleep(0)
        async with connected(empty_database_url) as watcher, asyncio.timeout(20):
            while not await watcher.column("SELECT 1 FROM pg_locks WHERE NOT granted"):
                assert not migrating.done()
                await asyncio.sleep(0.02)
    await migrating
    assert await is_current(empty_database_url)
