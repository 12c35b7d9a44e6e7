"""The worker's database role may say its own statements, and see or do nothing else."""

import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from tests.support.protocol import Protocol, connected
from turnstile.common.action_definition import ActionDefinition
from turnstile.common.statements import WORKER_FUNCTIONS, WORKER_ROLE
from turnstile.common.tables import metadata
from turnstile.localservers import DatabaseServer
from turnstile.migrations import migrate

_PASSWORD = secrets.token_hex(8)


@pytest.fixture
async def as_worker(
    postgresql: DatabaseServer, protocol: Protocol, database_url: str
) -> AsyncIterator[Protocol]:
    """A session of a login role that is in the workers' group, and in nothing else."""
    login = f"turnstile_test_{secrets.token_hex(4)}"
    # Roles belong to the server, which may be somebody's: what was there before is there afterwards.
    made = not await protocol.column("SELECT 1 FROM pg_roles WHERE rolname = $1", WORKER_ROLE)
    if made:
        postgresql.execute(f"CREATE ROLE {WORKER_ROLE}")
    postgresql.execute(f"CREATE ROLE {login} LOGIN PASSWORD '{_PASSWORD}' IN ROLE {WORKER_ROLE}")
    try:
        # The template was made before there was such a role: its grants are part of the installation.
        await protocol.connection.execute("COMMENT ON SCHEMA turnstile IS 'before the role'")
        await migrate(database_url)
        parts = urlsplit(database_url)
        host = parts.netloc.rpartition("@")[2]
        url = urlunsplit(parts._replace(netloc=f"{login}:{_PASSWORD}@{host}"))
        async with connected(url) as session:
            yield session
    finally:
        postgresql.execute(f"DROP ROLE {login}")
        if made:
            await protocol.connection.execute(f"DROP OWNED BY {WORKER_ROLE}")
            # Another session of tests may have begun to use it meanwhile.
            with suppress(asyncpg.DependentObjectsStillExistError):
                postgresql.execute(f"DROP ROLE {WORKER_ROLE}")


async def test_it_may_say_all_that_a_worker_says(protocol: Protocol, as_worker: Protocol) -> None:
    assert await as_worker.register_actions(ActionDefinition(ref="a", max_concurrent=3)) == []
    await as_worker.register("restricted")
    one, two = await protocol.submit(count=2)
    assert await as_worker.claim_verdicts(one, two, worker="restricted") == ["claimed"] * 2
    assert await as_worker.finish_verdict(one, worker="restricted") == "applied"
    assert await as_worker.hand_back(two, worker="restricted") == {two}
    assert await as_worker.renew("restricted") == (True, False)
    await as_worker.connection.execute("SELECT turnstile.sign_off('restricted')")
    assert await as_worker.renew("restricted") == (False, False)


async def test_it_sees_no_table(as_worker: Protocol) -> None:
    for table in metadata.tables:
        for statement in (f"SELECT * FROM {table}", f"DELETE FROM {table}"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await as_worker.connection.execute(statement)


async def test_it_may_call_nothing_else(protocol: Protocol, as_worker: Protocol) -> None:
    allowed = await as_worker.column(
        "SELECT proname::text FROM pg_proc WHERE pronamespace = 'turnstile'::regnamespace"
        " AND has_function_privilege(oid, 'EXECUTE') ORDER BY 1"
    )
    assert allowed == sorted(WORKER_FUNCTIONS)
    await protocol.put()
    (one,) = await protocol.submit()
    for attempt in (
        as_worker.submit(), as_worker.settle((one, 1)), as_worker.grant(1), as_worker.cancel(one),
        as_worker.put(max_concurrent=9), as_worker.expire_due(), as_worker.wake_due(),
    ):  # fmt: skip
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await attempt


async def test_what_runs_with_the_owner_s_rights_fixes_where_it_looks_for_names(protocol: Protocol) -> None:
    paths = await protocol.connection.fetch(
        "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'turnstile'::regnamespace AND prosecdef"
    )
    assert {row["proname"] for row in paths} == set(WORKER_FUNCTIONS)
    assert all("search_path=public, pg_temp" in row["proconfig"] for row in paths)
