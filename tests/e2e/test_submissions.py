"""Submissions in a session's own transaction: committed = executed once, rolled back = never (P2, P5)."""

import asyncio
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from tests.support.environment import Environment, StartEnvironment
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


async def outcome_of(session: "Connection", request_id: UUID) -> dict[str, Any]:
    """Wait until a request is decided; return its outcome."""

    async def decided() -> bool:
        row = await session.fetchrow(_OUTCOME, request_id)
        return row is None or row["status"] != "pending"

    await until(decided, f"the decision about {request_id}")
    row = await session.fetchrow(_OUTCOME, request_id)
    return {} if row is None else dict(row)


async def letter_with(env: Environment, code: str) -> dict[str, Any]:
    """Wait for the only dead letter with a code: it is stored after the outcome."""
    found: list[dict[str, Any]] = []

    async def is_stored() -> bool:
        found[:] = (await env.http.get("/dead-letters", params={"code": code})).json()["items"]
        return bool(found)

    await until(is_stored, f"a dead letter with {code}")
    (letter,) = found
    return letter


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


async def test_every_option_reaches_the_execution(env: Environment, session: "Connection") -> None:
    key = str(uuid4())
    options = {
        "parameters": '{"number": 5}',
        "idempotency_key": key,
        "priority": 2,
        "run_at": datetime(2020, 1, 1, tzinfo=UTC),
        "timeout": timedelta(minutes=3),
        "ttl": timedelta(hours=1),
        "metadata": '{"order": "A-17"}',
        "traceparent": f"00-{uuid4().hex}-00f067aa0ba902b7-01",
    }
    first = await submit(session, "noop", **options)
    execution_id = await execution_of(session, first)
    assert await env.ended(execution_id) == ["completed"]
    shown = await env.get(execution_id)
    assert (shown["result"], shown["priority"], shown["metadata"]) == (5, 2, {"order": "A-17"})
    assert (shown["idempotency_key"], shown["run_at"]) == (key, "2020-01-01T00:00:00Z")
    row = (await env.history.rows("SELECT * FROM ledger.execution WHERE id = $1", execution_id))[0]
    assert (row["timeout_seconds"], row["traceparent"]) == (180, options["traceparent"])
    assert row["expires_at"] - row["created_at"] == timedelta(hours=1)
    # The same request again: no second execution, and its own id finds the first.
    again = await submit(session, "noop", **options)
    assert await execution_of(session, again) == execution_id
    other = await submit(session, "noop", idempotency_key=key)
    assert (await outcome_of(session, other))["code"] == "idempotency_conflict"


async def test_what_cannot_be_admitted_has_a_reason_and_becomes_a_dead_letter(
    env: Environment, session: "Connection"
) -> None:
    request_id = await submit(session, "noop", callback_url="https://user:secret@shop.example/")
    outcome = await outcome_of(session, request_id)
    assert (outcome["status"], outcome["code"], outcome["execution_id"]) == (
        "rejected",
        "invalid_message",
        None,
    )
    assert outcome["message"].startswith("callback_url: ")
    letter = await letter_with(env, "invalid_message")
    assert (letter["message_id"], letter["app_id"]) == (str(request_id), "database")
    answer = await env.http.post(
        "/dead-letters/replay",
        json={"ids": [letter["id"]], "body": '{"action_ref": "noop", "parameters": {"number": 8}}'},
    )
    assert answer.status_code == 200, answer.text
    results = "SELECT completed_at IS NOT NULL FROM ledger.execution WHERE parameters = '{\"number\": 8}'"
    await env.history.until(results)


async def test_parameters_that_do_not_fit_the_schema_are_rejected_after_the_commit(
    env: Environment, session: "Connection"
) -> None:
    request_id = await submit(session, "noop", parameters='{"number": "many"}')
    outcome = await outcome_of(session, request_id)
    assert (outcome["status"], outcome["code"]) == ("rejected", "invalid_parameters")
    assert outcome["message"].startswith("parameters.number: ")
    letter = await letter_with(env, "invalid_parameters")
    assert (letter["message_id"], letter["error"]) == (str(request_id), outcome["message"])
    answer = (await env.http.get(f"/submissions/{request_id}")).json()
    assert answer == {"request_id": str(request_id), **outcome}


async def test_sessions_at_once_lose_nothing_and_each_keeps_its_order(
    env: Environment, session: "Connection"
) -> None:
    async def application(number: int) -> list[UUID]:
        async with session_of(env.system.database_url) as own:
            request_ids = []
            for size in (1, 7, 30):
                async with own.transaction():
                    request_ids += [await submit(own, "noop") for _ in range(size)]
            return request_ids

    by_session = await asyncio.gather(*(application(number) for number in range(6)))
    for request_ids in by_session:
        executions = [await execution_of(session, request_id) for request_id in request_ids]
        assert executions == sorted(set(executions))
        await env.ended(*executions)
    await env.history.until("SELECT count(*) = 0 FROM ledger.inbox")


async def test_another_executor_takes_what_a_frozen_leader_leaves(start_env: StartEnvironment) -> None:
    async with start_env() as env, session_of(env.system.database_url) as session:
        await env.ended(await execution_of(session, await submit(session, "noop")))
        await env.system.start_executor()
        env.executor.signal(signal.SIGSTOP)
        try:
            request_ids = [await submit(session, "noop") for _ in range(5)]
            executions = [await execution_of(session, request_id) for request_id in request_ids]
            assert executions == sorted(set(executions))
        finally:
            env.executor.signal(signal.SIGCONT)
        await env.ended(*executions)
