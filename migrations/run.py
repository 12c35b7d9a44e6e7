"""Runs Alembic over asyncpg, under an advisory lock.

A change of a table waits for the sessions that read it, and all later statements wait for the change. So the
migration waits a moment, releases its locks and tries again: beside a backup the services have short pauses,
and the migration takes longer.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Final, NamedTuple

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from turnstile.common.database import CONNECTION_ERRORS, DatabaseHosts
from turnstile.common.domain.errors import TurnstileError
from turnstile.common.version import installed_version
from turnstile.migrations.origin import record_origin, recorded_origin
from turnstile.migrations.schema_check import database_trouble

logger = logging.getLogger(__name__)

LOCK_WAIT_SECONDS: Final = 60.0
_LOCK_TIMEOUT: Final = "2s"
"""Longer than `deadlock_timeout`: after that time PostgreSQL ends an autovacuum that is in the way."""
_PAUSE_FIRST_SECONDS: Final = 1.0
_PAUSE_MAX_SECONDS: Final = 5.0
_WATCH_SECONDS: Final = 0.2
_YIELDS_ON: Final = frozenset({"55P03", "40P01"})
"""A lock that was not available in time, or a deadlock: nothing was changed, and it tries again."""
_LOCK_KEY: Final = 0x7475726E  # "turn": one lock for all who migrate this database
_CONNECT_SECONDS: Final = 10.0


class Blocker(NamedTuple):
    """A session that held what the migration needed: a row of `_BLOCKING`."""

    pid: int
    user: str | None
    application: str | None
    state: str | None
    since: datetime | None
    """When its transaction began; None where this role may not see it."""
    query: str | None

    def __str__(self) -> str:
        """Return it in one line, as a reader of `pg_stat_activity` would name it."""
        named = f"pid {self.pid} ({self.application or 'no application name'}, user {self.user}"
        since = "" if self.since is None else f", since {self.since:%Y-%m-%d %H:%M:%S %Z}"
        query = " ".join((self.query or "").split())[:80]
        return f"{named}, {self.state or 'state unknown'}{since}: {query})"


class MigrationBlocked(TurnstileError):
    """Other sessions held the tables that the migration changes for longer than it waits."""

    def __init__(self, blockers: Sequence[Blocker]) -> None:
        super().__init__("; ".join(str(blocker) for blocker in blockers) or "they are gone by now")
        self.blockers = blockers


class DatabaseUnsuited(TurnstileError):
    """The database cannot be used, whatever its schema; the message has the remedy."""


_LOG: Final = """
INSERT INTO ledger.audit_log (actor, channel, verb, subject_kind, subject, before, after)
VALUES ('database', 'database', 'migrated', 'database', current_database()::text, $1, $2)
"""
_BLOCKING: Final = """
SELECT pid, usename, application_name, state, xact_start, query
FROM pg_stat_activity WHERE pid = ANY (pg_blocking_pids(:pid)) ORDER BY xact_start, pid LIMIT 5
"""


def alembic_config(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration; the folder of revisions travels in the package."""
    config = Config()
    config.set_main_option("script_location", "turnstile.migrations:")
    config.attributes["connection"] = connection
    return config


def engine_of(database_url: str) -> AsyncEngine:
    """Return SQLAlchemy's view of a database, of which the URL may name several hosts."""
    hosts = DatabaseHosts(database_url, connect_seconds=_CONNECT_SECONDS)
    return create_async_engine("postgresql+asyncpg://", async_creator=hosts.connect)


async def migrate(database_url: str, *, lock_wait_seconds: float = LOCK_WAIT_SECONDS) -> None:
    """Bring the database to the newest schema. Safe to run from many processes at once.

    Raises MigrationBlocked where other sessions hold what it needs for longer than `lock_wait_seconds`: then
    nothing was changed. Raises DatabaseUnsuited.
    """
    loop = asyncio.get_running_loop()
    deadline, pause_seconds = loop.time() + lock_wait_seconds, _PAUSE_FIRST_SECONDS
    engine = engine_of(database_url)
    blockers: list[Blocker] = []
    try:
        while not await _migrate_once(engine, blockers):
            if loop.time() >= deadline:
                raise MigrationBlocked(blockers)
            logger.warning("migration_blocked", extra={"by": [str(blocker) for blocker in blockers]})
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, _PAUSE_MAX_SECONDS)
    finally:
        await engine.dispose()


async def _migrate_once(engine: AsyncEngine, blockers: list[Blocker]) -> bool:
    """Return whether it is done; if not, nothing was changed, and `blockers` were in the way."""
    try:
        async with engine.begin() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
            await connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
            if (trouble := await database_trouble(await _driver(connection))) is not None:
                raise DatabaseUnsuited(trouble)
            async with _watched(engine, connection, blockers):
                before = await connection.run_sync(_current_revision)
                await connection.run_sync(lambda c: command.upgrade(alembic_config(c), "head"))
                await _record_origin(connection)
                if before is not None and before != _newest_revision():
                    await _log_migration(connection, before)
    except (DBAPIError, asyncpg.PostgresError) as error:
        if getattr(getattr(error, "orig", error), "sqlstate", None) not in _YIELDS_ON:
            raise
        return False
    return True


@asynccontextmanager
async def _watched(
    engine: AsyncEngine, connection: AsyncConnection, blockers: list[Blocker]
) -> AsyncIterator[None]:
    """Keep in `blockers` the sessions that this one waits for, or waited for last."""
    pid = (await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one()
    watching = asyncio.create_task(_watch(engine, pid, blockers), name="migration-blockers")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def _watch(engine: AsyncEngine, pid: int, blockers: list[Blocker]) -> None:
    # The list is for messages only: the migration goes on without it.
    with suppress(DBAPIError, *CONNECTION_ERRORS, asyncpg.PostgresError):
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            while True:
                await asyncio.sleep(_WATCH_SECONDS)
                rows = (await connection.execute(text(_BLOCKING), {"pid": pid})).all()
                if rows:
                    blockers[:] = [Blocker._make(row) for row in rows]


async def is_current(database_url: str) -> bool:
    """Return whether the database has the newest revision."""
    engine = engine_of(database_url)
    try:
        async with engine.connect() as connection:
            revision = await connection.run_sync(_current_revision)
            return revision == _newest_revision()
    finally:
        await engine.dispose()


def _current_revision(connection: Connection) -> str | None:
    options = {"version_table_schema": "public"}
    return MigrationContext.configure(connection, opts=options).get_current_revision()


def _newest_revision() -> str | None:
    return ScriptDirectory.from_config(alembic_config()).get_current_head()


async def _record_origin(connection: AsyncConnection) -> None:
    """Record it once: a restored copy keeps the record of its original, by which it is recognised."""
    driver = await _driver(connection)
    if await recorded_origin(driver) is None:
        await record_origin(driver)


async def _log_migration(connection: AsyncConnection, before: str) -> None:
    """Record in the audit log that an installation was migrated. The first migration creates the log."""
    after = {"revision": _newest_revision(), "version": installed_version()}
    revisions = json.dumps({"revision": before}), json.dumps(after)
    driver = await _driver(connection)
    await driver.execute(_LOG, *revisions)


async def _driver(connection: AsyncConnection) -> "asyncpg.Connection[asyncpg.Record]":
    raw = await connection.get_raw_connection()
    driver: asyncpg.Connection[asyncpg.Record] | None = raw.driver_connection
    assert driver is not None
    return driver
