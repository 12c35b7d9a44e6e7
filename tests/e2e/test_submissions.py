"""Submissions in a session's own transaction: committed = executed once, rolled back = never (P2, P5)."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from tests.support.environment import Environment
from tests.support.history import session_of
from tests.support.traffic import until

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

pytestmark = pytest.mark.asyncio(loop_scope="module")
_OUTCOME = "SELECT * FROM turnstile.submission($1)"


@pytest_asyncio.fixture(loop_scope="module")
async def session(env: Environment) -> AsyncIterator["Connection"]:
    """A session of an application on the same database."""
    async with session_of(env.system.database_url) as connection:
        yield connection


async def submit(session: "Connection", ref: str, **options: Any) -> UUID:
    named = "".join(f", {name} => ${index}" for index, name in enumerate(options, 2))
    return UUID(str(await session.fetchval(f"SELECT turnstile.submit($1{named})", ref, *options.values())))


async def execution_of(session: "Connection", request_id: UUID) -> int:
    """Wait until a request is admitted; return its execution."""
    found: list[int] = []

    async def admitted() -> bool:
        row = await session.fetchrow(_OUTCOME, request_id)
        assert row is not None
        assert row["status"] != "rejected", row
        found[:] = [row["execution_id"]] if row["status"] == "admitted" else []
        return bool(found)

    await until(admitted, f"the admission of {request_id}")
    return found[0]


async def test_what_is_committed_runs_once_and_what_is_rolled_back_never(
    env: Environment, session: "Connection"
) -> None:
    transaction = session.transaction()
    await transaction.start()
    abandoned = await submit(session, "noop", parameters='{"number": 1}')
    await transaction.rollback()
    async with session.transaction():
        kept = await submit(session, "noop", parameters='{"number": 2}')
        savepoint = session.transaction()
        await savepoint.start()
        undone = await submit(session, "noop", parameters='{"number": 3}')
        await savepoint.rollback()
        inside = await session.fetchval("SELECT status FROM turnstile.submission($1)", kept)
    execution_id = await execution_of(session, kept)
    assert inside == "pending"
    assert await env.ended(execution_id) == ["completed"]
    assert (await env.get(execution_id))["result"] == 2
    for request_id in (abandoned, undone):
        assert await session.fetchrow(_OUTCOME, request_id) is None
    shown = (await env.http.get(f"/submissions/{kept}")).json()
    admitted = {"status": "admitted", "execution_id": execution_id, "code": None, "message": None}
    assert shown == {"request_id": str(kept), **admitted}
    assert (await env.http.get(f"/submissions/{uuid4()}")).json()["code"] == "not_found"
    rows = await env.history.rows("SELECT delivery_key FROM ledger.execution WHERE delivery_key IS NOT NULL")
    assert [row["delivery_key"] for row in rows].count(kept) == 1
    assert {abandoned, undone}.isdisjoint(row["delivery_key"] for row in rows)
