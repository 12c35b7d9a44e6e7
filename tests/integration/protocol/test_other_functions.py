"""Functions of another version beside the same tables are reported, and trouble once they lack something."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

import asyncpg
import pytest

from tests.support.traffic import until
from turnstile.common import database as database_module
from turnstile.common.database import Database
from turnstile.common.domain.errors import Unavailable
from turnstile.migrations import schema_check
from turnstile.migrations.run import migrate
from turnstile.worker import protocol as worker_protocol

if TYPE_CHECKING:
    from turnstile.common.database import SchemaCheck

OTHERS = "COMMENT ON SCHEMA turnstile IS 'another'"
LACKING = "DROP FUNCTION turnstile.sign_off(text)"
CALL = "SELECT turnstile.sign_off('nobody')"


@pytest.fixture(params=[schema_check.schema_state, worker_protocol.schema_state], ids=["executor", "worker"])
async def database(
    request: pytest.FixtureRequest, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Database]:
    """What a service connects with; it is not open yet."""
    monkeypatch.setattr(database_module, "_SCHEMA_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(database_module, "_SCHEMA_WATCH_SECONDS", 0.02)
    check: SchemaCheck = request.param
    database = Database(database_url, application_name="test", schema_check=check)
    yield database
    await database.close()


@pytest.fixture
async def operator(database_url: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    """A connection that changes the database."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


async def test_they_are_used_and_reported_once_until_a_migration(
    database: Database,
    operator: "asyncpg.Connection[asyncpg.Record]",
    database_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await operator.execute(OTHERS)
    await database.open()
    assert "the functions of another version" in (database.schema_notice or "")
    await database.fetch(CALL)
    watching = asyncio.create_task(database.watch_schema())
    await asyncio.sleep(0.2)
    assert [record.getMessage() for record in caplog.records] == ["schema_differs"]
    assert database.last_error is None
    await migrate(database_url)
    await until(lambda: database.schema_notice is None, "the end of the notice")
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching


async def test_they_are_trouble_once_they_lack_what_is_called_until_a_migration(
    database: Database,
    operator: "asyncpg.Connection[asyncpg.Record]",
    database_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await operator.execute(f"{OTHERS}; {LACKING}")
    await database.open()
    assert await database.fetchval("SELECT 1") == 1
    for statement in (CALL, "SELECT 1", CALL):
        with pytest.raises(Unavailable, match="which lack what this version needs: run 'executor migrate'"):
            await database.fetch(statement)
    assert "executor migrate" in (database.last_error or "")
    assert [record.getMessage() for record in caplog.records].count("schema_unsuited") == 1
    await migrate(database_url)
    await database.fetch(CALL)
    assert (database.last_error, database.schema_notice) == (None, None)


async def test_another_migration_ends_the_trouble_until_its_functions_lack_something_too(
    database: Database, operator: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await operator.execute(f"{OTHERS}; {LACKING}")
    await database.open()
    with pytest.raises(Unavailable, match="executor migrate"):
        await database.fetch(CALL)
    await operator.execute("COMMENT ON SCHEMA turnstile IS 'a third'")
    assert await database.fetchval("SELECT 1") == 1
    with pytest.raises(Unavailable, match="executor migrate"):
        await database.fetch(CALL)


async def test_a_call_that_began_before_they_were_installed_blames_nothing(
    database: Database, operator: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await database.open()

    async def call_late() -> None:
        async with database.transaction() as connection:
            await operator.execute(f"{OTHERS}; {LACKING}")
            await connection.fetch(CALL)

    with pytest.raises(asyncpg.UndefinedFunctionError):
        await call_late()
    assert await database.fetchval("SELECT 1") == 1
    assert database.schema_notice is not None
    with pytest.raises(Unavailable, match="executor migrate"):
        await database.fetch(CALL)


async def test_a_newer_schema_that_lacks_something_asks_for_a_newer_service(
    database: Database, operator: "asyncpg.Connection[asyncpg.Record]", caplog: pytest.LogCaptureFixture
) -> None:
    await operator.execute(f"{OTHERS}; {LACKING}; UPDATE alembic_version SET version_num = '9999_later'")
    await database.open()
    assert [record.getMessage() for record in caplog.records] == ["schema_newer"]
    with pytest.raises(Unavailable, match=r"newer \(9999_later\).*: upgrade this service"):
        await database.fetch(CALL)


async def test_a_mistake_in_a_statement_is_no_trouble_of_the_schema(
    database: Database, operator: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await database.open()
    with pytest.raises(asyncpg.UndefinedFunctionError):
        await database.fetch("SELECT turnstile.no_such_function()")
    assert await database.fetchval("SELECT 1") == 1


async def test_an_older_schema_that_is_restored_under_an_idle_service_is_noticed(
    database: Database, operator: "asyncpg.Connection[asyncpg.Record]", database_url: str
) -> None:
    await database.open()
    watching = asyncio.create_task(database.watch_schema())
    await operator.execute(f"{OTHERS}; UPDATE alembic_version SET version_num = '0001'")
    await until(
        lambda: "is older (0001) than this version needs" in (database.last_error or ""), "the trouble"
    )
    with pytest.raises(Unavailable, match="executor migrate"):
        await database.fetch("SELECT 1")
    newest = schema_check._revisions()[0]
    await operator.execute(f"UPDATE alembic_version SET version_num = '{newest}'")
    await until(lambda: database.last_error is None, "its end")
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
