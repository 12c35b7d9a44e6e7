"""Runs Alembic over asyncpg, under an advisory lock, and installs the protocol."""

from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from common.database_hosts import DatabaseHosts
from common.statements import SCHEMA, installation_text, protocol_hash

_LOCK_KEY: Final = 0x7475726E  # "turn": one lock for all who migrate this database
_CONNECT_SECONDS: Final = 10.0


def alembic_config(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration; the folder of revisions travels in the package."""
    config = Config()
    config.set_main_option("script_location", "migrations:")
    config.attributes["connection"] = connection
    return config


def engine_of(database_url: str) -> AsyncEngine:
    """Return SQLAlchemy's view of a database, of which the URL may name several hosts."""
    hosts = DatabaseHosts(database_url, connect_seconds=_CONNECT_SECONDS)
    return create_async_engine("postgresql+asyncpg://", async_creator=hosts.connect)


async def migrate(database_url: str) -> None:
    """Bring the database to the newest schema and protocol. Safe to run from many processes at once."""
    engine = engine_of(database_url)
    try:
        async with engine.begin() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
            await connection.run_sync(lambda c: command.upgrade(alembic_config(c), "head"))
            if await _installed_hash(connection) != protocol_hash():
                await _run_script(connection, installation_text())
    finally:
        await engine.dispose()


async def is_current(database_url: str) -> bool:
    """Tell whether the database has the newest revision and exactly this version's protocol."""
    engine = engine_of(database_url)
    try:
        async with engine.connect() as connection:
            revision = await connection.run_sync(_current_revision)
            return revision == _newest_revision() and await _installed_hash(connection) == protocol_hash()
    finally:
        await engine.dispose()


def _current_revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _newest_revision() -> str | None:
    return ScriptDirectory.from_config(alembic_config()).get_current_head()


async def _installed_hash(connection: AsyncConnection) -> str | None:
    query = text("SELECT obj_description(to_regnamespace(:schema)::oid, 'pg_namespace')")
    found: str | None = (await connection.execute(query, {"schema": SCHEMA})).scalar_one_or_none()
    return found


async def _run_script(connection: AsyncConnection, script: str) -> None:
    # Many statements in one text: only the driver's simple protocol takes that.
    raw = await connection.get_raw_connection()
    driver = raw.driver_connection
    assert driver is not None
    await driver.execute(script)
