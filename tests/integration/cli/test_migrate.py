"""`executor migrate` that fails: one sentence with reason and remedy, and exit code 1."""

import asyncio
import secrets
from urllib.parse import urlsplit

import asyncpg

from tests.integration.cli.conftest import CommandLines, Ended
from turnstile.common.cli import EXIT_FAILED
from turnstile.localservers import DatabaseServer

_RIGHTS = "GRANT ALL ON ALL TABLES IN SCHEMA public TO {0}"


def test_the_schema_of_a_newer_version_is_not_changed(
    alone: CommandLines, postgresql: DatabaseServer, database_url: str
) -> None:
    name = urlsplit(database_url).path[1:]
    postgresql.execute("UPDATE alembic_version SET version_num = '9999'", name)
    ended = alone.executor("migrate", TURNSTILE_DATABASE_URL=database_url)
    assert ended.exit_code == EXIT_FAILED
    assert "the database is newer than this version" in ended.err
    assert "'9999'" in ended.err


def test_a_role_that_is_not_the_owner_is_rejected_with_a_remedy(
    alone: CommandLines, postgresql: DatabaseServer, database_url: str
) -> None:
    name, role = urlsplit(database_url).path[1:], f"stranger_{secrets.token_hex(4)}"
    password = secrets.token_hex(8)
    postgresql.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
    try:
        postgresql.execute(_RIGHTS.format(role), name)
        postgresql.execute("COMMENT ON SCHEMA turnstile IS 'an older hash'", name)
        host = urlsplit(database_url).netloc.rpartition("@")[2]
        url = urlsplit(database_url)._replace(netloc=f"{role}:{password}@{host}").geturl()
        ended = alone.executor("migrate", TURNSTILE_DATABASE_URL=url)
    finally:
        postgresql.execute(f"DROP OWNED BY {role}", name)
        postgresql.execute(f"DROP ROLE {role}")
    assert ended.exit_code == EXIT_FAILED
    assert "the migration failed: must be owner of schema turnstile" in ended.err
    assert "run it as the role that owns" in ended.err


def test_a_read_only_database_is_an_error_at_once(
    alone: CommandLines, postgresql: DatabaseServer, database_url: str
) -> None:
    name = urlsplit(database_url).path[1:]
    postgresql.execute("COMMENT ON SCHEMA turnstile IS 'an older hash'", name)
    postgresql.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    ended = alone.executor("migrate", TURNSTILE_DATABASE_URL=database_url)
    assert ended.exit_code == EXIT_FAILED
    assert "in a read-only transaction" in ended.err


def test_a_session_that_holds_a_lock_is_named_with_a_remedy(
    alone: CommandLines, postgresql: DatabaseServer, database_url: str
) -> None:
    name = urlsplit(database_url).path[1:]
    postgresql.execute("COMMENT ON SCHEMA turnstile IS 'an older hash'", name)

    async def held() -> tuple[int, Ended]:
        holder = await asyncpg.connect(database_url, server_settings={"application_name": "a tool"})
        try:
            async with holder.transaction():
                await holder.execute("COMMENT ON SCHEMA turnstile IS 'a note'")
                arguments = ["migrate", "--wait", "1s"]
                ended = await asyncio.to_thread(
                    alone.executor, *arguments, TURNSTILE_DATABASE_URL=database_url
                )
                return holder.get_server_pid(), ended
        finally:
            await holder.close()

    pid, ended = asyncio.run(held())
    assert ended.exit_code == EXIT_FAILED
    assert f"pid {pid} (a tool, user " in ended.err
    assert f"SELECT pg_terminate_backend({pid})" in ended.err
    assert "nothing was changed" in ended.err
