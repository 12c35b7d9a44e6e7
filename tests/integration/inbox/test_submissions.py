"""`turnstile.submit` on the inbox: exactly once if committed, in order of commits, waiting for no other."""

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.support.inbox import Installation, request
from tests.support.ledger import session_on
from tests.support.traffic import until

_OTHER_NAMES = """
CREATE SCHEMA app;
CREATE FUNCTION app.format(text, VARIADIC "any") RETURNS text LANGUAGE internal AS 'text_format';
CREATE FUNCTION app.gen_random_uuid() RETURNS uuid LANGUAGE sql
RETURN '00000000-0000-0000-0000-000000000000'::uuid;
CREATE FUNCTION app.nextval(regclass) RETURNS bigint LANGUAGE sql RETURN 1
"""


async def _submit(session: Any, ref: str = "a", parameters: str = "{}", **options: Any) -> UUID:
    named = "".join(f", {name} => ${number}" for number, name in enumerate(options, 3))
    found = await session.fetchval(
        f"SELECT turnstile.submit($1, $2{named})", ref, parameters, *options.values()
    )
    return UUID(bytes=found.bytes)


async def _became(installation: Installation, request_id: UUID) -> tuple[Any, ...] | None:
    rows = await installation.fetch("SELECT * FROM turnstile.submission($1)", request_id)
    return tuple(rows[0]) if rows else None


async def _decided(installation: Installation, request_id: UUID) -> tuple[Any, ...]:
    found: tuple[Any, ...] | None = None

    async def is_decided() -> bool:
        nonlocal found
        found = await _became(installation, request_id)
        return found is not None and found[0] != "pending"

    await until(is_decided)
    assert found is not None
    return found


async def test_a_delay_begins_when_the_submission_is_admitted(installation: Installation) -> None:
    installation.lead()
    await installation.define("action", "a")
    async with session_on(installation.url) as session:
        request_id = await _submit(session, delay=timedelta(hours=1))
    assert (await _decided(installation, request_id))[:2] == ("admitted", 1)
    query = "SELECT extract(epoch FROM run_at - created_at)::float8 AS waits FROM ledger.execution"
    (row,) = await installation.fetch(query)
    assert round(row["waits"]) == 3600


async def test_a_committed_submission_is_one_execution_and_a_rolled_back_one_is_none(
    installation: Installation,
) -> None:
    installation.lead()
    await installation.define("action", "a")
    async with session_on(installation.url) as session:
        await session.execute("BEGIN")
        gone = await _submit(session)
        await session.execute("ROLLBACK")
        await session.execute("BEGIN")
        kept = await _submit(session, parameters='{"n": 1.5}', metadata='{"m": 1}', priority=2)
        assert await _became(installation, kept) is None
        await session.execute("COMMIT")
    assert await _decided(installation, kept) == ("admitted", 1, None, None)
    assert await _became(installation, gone) is None
    rows = await installation.fetch("SELECT parameters, metadata, priority FROM ledger.execution")
    assert [tuple(row) for row in rows] == [('{"n": 1.5}', '{"m": 1}', 2)]
    assert not await installation.fetch("SELECT FROM ledger.inbox")


async def test_commits_decide_the_order_between_sessions(installation: Installation) -> None:
    leader = installation.lead()
    await installation.define("action", "a")
    await leader.kill()
    async with session_on(installation.url) as slow, session_on(installation.url) as fast:
        await slow.execute("BEGIN")
        ids = [await _submit(slow), await _submit(slow)]
        ids = [await _submit(fast), await _submit(fast), *ids]
        await slow.execute("COMMIT")
    installation.lead("b")
    first, *others = [(await _decided(installation, each))[1] for each in ids]
    assert others == [first + 1, first + 2, first + 3]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_overlapping_transactions_submit_at_any_isolation_and_with_any_search_path(
    installation: Installation, isolation: str
) -> None:
    installation.lead()
    await installation.define("action", "a")
    await installation.session.execute(_OTHER_NAMES)
    committed = asyncio.Queue[UUID]()
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(session_on(installation.url)) for _ in range(10)]
        waiting = asyncio.Barrier(len(sessions))

        async def submit(session: Any) -> None:
            await session.execute("SET search_path = app, pg_catalog")
            await session.execute(f"BEGIN ISOLATION LEVEL {isolation}")
            request_id = await _submit(session)
            await waiting.wait()
            try:
                await session.execute("COMMIT")
            except asyncpg.SerializationError:
                # At this level alone any transaction may have to be repeated.
                assert isolation == "serializable"
                await session.execute("ROLLBACK")
                request_id = await _submit(session)
            committed.put_nowait(request_id)

        for _ in range(3):
            await asyncio.gather(*(submit(each) for each in sessions))
        for _ in range(committed.qsize()):
            assert (await _decided(installation, committed.get_nowait()))[0] == "admitted"
    assert len(await installation.fetch("SELECT FROM ledger.execution")) == 3 * len(sessions)


async def test_a_session_that_stays_open_for_long_holds_up_nobody(installation: Installation) -> None:
    leader = installation.lead()
    await installation.define("action", "a")
    async with session_on(installation.url) as slow:
        await slow.execute("BEGIN")
        late = await _submit(slow)
        for _ in range(5):
            others = [await _submit(installation.session) for _ in range(100)]
            await _decided(installation, others[-1])
        bound = leader.ledger._inbox

        async def has_passed() -> bool:
            await installation.submit(request(parameters={"other": str(uuid4())}))
            return bound.from_id > 500

        await until(has_passed)
        assert await _became(installation, late) is None
        await slow.execute("COMMIT")
    assert (await _decided(installation, late))[0] == "admitted"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ref": "none"}, "unknown_action: action_ref: there is no action 'none'"),
        ({"parameters": "[]"}, "invalid_parameters: parameters: expected a JSON object"),
        ({"priority": 6}, "invalid_message: priority: 6 is not between 1"),
        ({"delay": timedelta()}, "invalid_message: delay: is not longer than 0"),
        (
            {"delay": timedelta(hours=1), "run_at": datetime(2030, 1, 1, tzinfo=UTC)},
            "invalid_message: run_at, delay: give one of them",
        ),
        ({"idempotency_key": ""}, "invalid_message: idempotency_key: 0 characters"),
        ({"callback_url": "ftp://x"}, "invalid_message: callback_url: expected an http"),
        ({"traceparent": "x"}, "invalid_message: traceparent: not a W3C trace context"),
    ],
)
async def test_what_can_never_be_accepted_is_refused_at_the_call(
    installation: Installation, options: dict[str, Any], message: str
) -> None:
    installation.lead()
    await installation.define("action", "a")
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        await _submit(installation.session, **options)
    assert str(refused.value).startswith(message)


async def test_what_the_leader_refuses_is_an_outcome_and_a_dead_letter(installation: Installation) -> None:
    leader = installation.lead()
    await installation.define("action", "a")
    urgent = await _submit(installation.session, concurrency_key="k")
    large = await _submit(installation.session, parameters=json.dumps({"text": "x" * 300_000}))
    huge = await _submit(installation.session, parameters=json.dumps({"text": "x" * 4_000_000}))
    assert (await _decided(installation, urgent))[:3] == ("rejected", None, "invalid_parameters")
    assert (await _decided(installation, large))[2:] == (
        "too_large",
        "parameters: 300011 bytes, at most 262144 are accepted; send a reference",
    )
    assert (await _decided(installation, huge))[2] == "too_large"
    refused = {str(urgent), str(large), str(huge)}

    async def are_letters() -> bool:
        return {each["message_id"] for each in leader.broker.letters} == refused

    # They leave behind the commit.
    await until(are_letters)
    assert [row[0] for row in await installation.fetch(
        "SELECT kept_until > now() + interval '6 days' FROM ledger.answer WHERE command_id = $1", urgent
    )] == [True]  # fmt: skip


async def test_the_same_key_by_http_and_by_sql_is_the_same_execution(installation: Installation) -> None:
    installation.lead()
    await installation.define("action", "a", max_concurrent=0)
    given = {"n": 1, "text": "ä", "list": [1.5, None, True]}
    (first,) = await installation.submit(request(idempotency_key="k", parameters=given, ttl=60))
    query = (
        "SELECT turnstile.submit('a', $1, idempotency_key => 'k', ttl => interval '1 min', metadata => '{}')"
    )
    request_id = await installation.session.fetchval(query, json.dumps(given))
    assert (await _decided(installation, request_id))[:2] == ("admitted", first["execution_id"])


async def test_a_thousand_calls_in_one_transaction_and_many_sessions_at_once(
    installation: Installation,
) -> None:
    installation.lead()
    await installation.define("action", "a")
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(session_on(installation.url)) for _ in range(4)]
        query = "SELECT turnstile.submit('a', jsonb_build_object('n', n)) FROM generate_series(1, 1000) n"
        await asyncio.gather(*(session.fetch(query) for session in sessions))

    async def are_admitted() -> bool:
        return await installation.fetch("SELECT count(*)::int FROM ledger.execution") == [(4000,)]

    await until(are_admitted)
    runs = await installation.fetch(
        "SELECT count(*)::int FROM (SELECT (parameters ->> 'n')::int - lag((parameters ->> 'n')::int)"
        " OVER (ORDER BY id) AS step FROM ledger.execution) s WHERE step <> 1"
    )
    # Each transaction draws its places in the order of its calls; those of others may come between.
    assert runs[0][0] >= 3


async def test_a_foreign_lock_stops_no_submission(installation: Installation) -> None:
    installation.lead()
    await installation.define("action", "a")
    async with session_on(installation.url) as hostile:
        await hostile.fetch("SELECT pg_advisory_lock(1953853038, 3), pg_advisory_lock(1953853038, 4)")
        ids = [await _submit(installation.session) for _ in range(20)]
        for each in ids:
            assert (await _decided(installation, each))[0] == "admitted"


async def test_a_singleton_by_sql_and_http_is_one_execution_also_under_the_next_leader(
    installation: Installation,
) -> None:
    leader = installation.lead()
    await installation.define("action", "a", max_concurrent=0)
    (first,) = await installation.submit(request(singleton={"key": "s"}))
    request_id = await _submit(installation.session, singleton='"s"')
    assert (await _decided(installation, request_id))[:2] == ("admitted", first["execution_id"])
    await leader.kill()
    installation.lead("b")
    refused = await _submit(installation.session, singleton='{"key": "s", "then": "refuse"}')
    assert (await _decided(installation, refused))[2] == "singleton_exists"
    assert await installation.fetch("SELECT execution_id FROM ledger.singleton") == [(first["execution_id"],)]
