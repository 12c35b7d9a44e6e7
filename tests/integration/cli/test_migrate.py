"""`executor migrate`: many at once, behind other sessions, and failures in one sentence with the remedy."""

import asyncio
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from alembic.config import Config
from sqlalchemy import Connection

from tests.integration.cli.conftest import CommandLines, Ended
from tests.support.ledger import session_on
from tests.support.service_template import fork_service
from tests.support.traffic import until
from turnstile import migrations
from turnstile.common.database import Database
from turnstile.common.exit_codes import ExitCode
from turnstile.localservers import DatabaseServer, PostgresServer
from turnstile.migrations import run
from turnstile.migrations.schema_check import schema_state

_REVISION = """
from alembic import op

revision, down_revision = "0002", "0001"


def upgrade() -> None:
    op.execute("ALTER TABLE ledger.execution ADD COLUMN note text")
"""
_IS_MIGRATED = (
    "SELECT EXISTS (SELECT FROM pg_attribute"
    " WHERE attrelid = 'ledger.execution'::regclass AND attname = 'note')"
)
_WAITS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.fixture
def next_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this version have one more revision, which changes a table that all services use."""
    folder = tmp_path / "migrations"
    shutil.copytree(Path(migrations.__file__).parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "0002_next.py").write_text(_REVISION)
    original = run.alembic_config

    def config(connection: Connection | None = None) -> Config:
        found = original(connection)
        found.set_main_option("script_location", str(folder))
        return found

    monkeypatch.setattr(run, "alembic_config", config)


def test_six_processes_migrate_an_empty_database_at_once(postgresql: DatabaseServer, tmp_path: Path) -> None:
    name = f"turnstile_test_{secrets.token_hex(4)}"
    url = postgresql.create_database(name)
    log = tmp_path / "log"

    async def migrate(output: int) -> int:
        process = await fork_service(
            ["turnstile.executor.cli", "migrate"],
            environment={**os.environ, "TURNSTILE_DATABASE_URL": url}, folder=tmp_path, log=output,
        )  # fmt: skip
        return await process.wait()

    async def migrate_all() -> None:
        with log.open("ab") as output:
            codes = await asyncio.gather(*(migrate(output.fileno()) for _ in range(6)))
        assert codes == [0] * 6, log.read_text()
        async with session_on(url) as session:
            assert await session.fetchval("SELECT count(*) FROM alembic_version") == 1
            assert await session.fetchval("SELECT count(*) FROM ledger.leadership") == 1

    try:
        asyncio.run(migrate_all())
    finally:
        postgresql.drop_database(name)


@pytest.mark.usefixtures("next_revision")
def test_behind_a_backup_it_gives_way_to_the_services_until_the_backup_ends(
    alone: CommandLines, database_url: str
) -> None:
    async def migrated() -> Ended:
        async with session_on(database_url) as backup, session_on(database_url) as service:
            await backup.execute("BEGIN; LOCK TABLE ledger.execution IN ACCESS SHARE MODE")
            migration = asyncio.create_task(
                asyncio.to_thread(alone.executor, "migrate", TURNSTILE_DATABASE_URL=database_url)
            )
            await until(_is_true(service, _WAITS))
            # This waits for the migration, which waits for the backup.
            await asyncio.wait_for(service.fetchval("SELECT count(*) FROM ledger.execution"), 30.0)
            assert not migration.done()
            assert not await service.fetchval(_IS_MIGRATED)
            await backup.execute("COMMIT")
            ended = await migration
            assert await service.fetchval(_IS_MIGRATED)
            return ended

    ended = asyncio.run(migrated())
    assert ended.exit_code == 0, ended.err


def _is_true(session: "asyncpg.Connection[asyncpg.Record]", query: str) -> Callable[[], Awaitable[object]]:
    return lambda: session.fetchval(query)


def test_the_schema_of_a_newer_version_is_not_changed(
    alone: CommandLines, postgresql: DatabaseServer, database_url: str
) -> None:
    name = urlsplit(database_url).path[1:]
    postgresql.execute("UPDATE alembic_version SET version_num = '9999'", name)
    ended = alone.executor("migrate", TURNSTILE_DATABASE_URL=database_url)
    assert ended.exit_code == ExitCode.FAILED
    assert "the database is newer than this version" in ended.err
    assert "'9999'" in ended.err


@pytest.mark.parametrize(
    ("options", "change", "named"),
    [
        ("TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'", None, "has the encoding LATIN1"),
        ("TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'", None, "has the encoding SQL_ASCII"),
        ("", "ALTER DATABASE {} SET session_replication_role = replica", "RESET session_replication_role"),
        ("", "ALTER SCHEMA public RENAME TO elsewhere", "RENAME TO public"),
    ],
)
async def test_a_database_that_cannot_be_used_is_refused_with_the_remedy_and_reported(
    alone: CommandLines, postgresql: DatabaseServer, options: str, change: str | None, named: str
) -> None:
    name = f"turnstile_test_{secrets.token_hex(4)}"
    await asyncio.to_thread(postgresql.execute, f"CREATE DATABASE {name} {options}")
    try:
        if change is not None:
            await asyncio.to_thread(postgresql.execute, change.format(name), name)
        url = postgresql.url(name)
        ended = await asyncio.to_thread(alone.executor, "migrate", TURNSTILE_DATABASE_URL=url)
        assert ended.exit_code == ExitCode.FAILED
        assert len(ended.err.splitlines()) == 1
        assert name in ended.err
        assert named in ended.err
        async with session_on(url) as session:
            assert await session.fetchval("SELECT to_regnamespace('ledger')") is None
        database = Database(url, application_name="test", schema_check=schema_state)
        opening = asyncio.create_task(database.open())

        async def is_reported() -> bool:
            return named in (database.last_error or "")

        await until(is_reported)
        opening.cancel()
        await asyncio.wait({opening})
    finally:
        await asyncio.to_thread(postgresql.drop_database, name)


def test_a_standby_is_an_error_at_once(alone: CommandLines, own_postgresql: PostgresServer) -> None:
    url = own_postgresql.create_database("standby")
    own_postgresql.stop()
    signal = own_postgresql.folder / "data" / "standby.signal"
    signal.touch()
    own_postgresql.restart()
    ended = alone.executor("migrate", TURNSTILE_DATABASE_URL=url)
    assert ended.exit_code == ExitCode.FAILED
    assert "in a read-only transaction" in ended.err


@pytest.mark.usefixtures("next_revision")
def test_a_session_that_holds_a_lock_is_named_with_a_remedy(alone: CommandLines, database_url: str) -> None:
    async def held() -> tuple[int, Ended]:
        holder = await asyncpg.connect(database_url, server_settings={"application_name": "a tool"})
        try:
            async with holder.transaction():
                await holder.execute("LOCK TABLE ledger.execution IN ACCESS SHARE MODE")
                arguments = ["migrate", "--wait", "1s"]
                ended = await asyncio.to_thread(
                    alone.executor, *arguments, TURNSTILE_DATABASE_URL=database_url
                )
                assert not await holder.fetchval(_IS_MIGRATED)
                return holder.get_server_pid(), ended
        finally:
            await holder.close()

    pid, ended = asyncio.run(held())
    assert ended.exit_code == ExitCode.FAILED
    assert f"pid {pid} (a tool, user " in ended.err
    assert f"SELECT pg_terminate_backend({pid})" in ended.err
    assert "nothing was changed" in ended.err
