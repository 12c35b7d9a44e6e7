"""`turnstile.submit`: what it refuses, the order of commits, one admission each, its cost (P2, P5, P15)."""

import json
from datetime import timedelta
from importlib import import_module
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.integration.executor.page_counts import cost_of
from tests.support.cases import named
from tests.support.protocol import Connection, Protocol
from turnstile.common.domain.errors import Unavailable
from turnstile.common.messages import ExecutionRequested
from turnstile.common.requests import request_hash
from turnstile.executor.protocol import StoredSubmission, SubmissionPage
from turnstile.executor.results import Accepted, Admission, Verdict

_LARGE = f'{{"a": "{"x" * 17_000_000}"}}'


async def submit(connection: Connection, ref: str = "a", **options: Any) -> UUID:
    named = "".join(f", {name} => ${index}" for index, name in enumerate(options, 2))
    call = f"SELECT turnstile.submit($1{named})"
    return UUID(str(await connection.fetchval(call, ref, *options.values())))


async def line(protocol: Protocol, from_ticket: int = 0, **options: Any) -> list[StoredSubmission]:
    return (await page(protocol, from_ticket, **options)).submissions


async def page(protocol: Protocol, from_ticket: int = 0, **options: Any) -> SubmissionPage:
    given = {
        "body_bytes_max": 10**6,
        "passed_refs": (),
        "min_age_seconds": 0.0,
        "with_entering": True,
        **options,
    }
    return await protocol.queue_manager.protocol.next_submissions(from_ticket, 100, 10**6, **given)


async def admit(protocol: Protocol, submissions: list[StoredSubmission]) -> list[Verdict]:
    admissions = []
    for submission in submissions:
        assert submission.request_json is not None
        request = ExecutionRequested.model_validate_json(submission.request_json)
        admissions.append(Admission.of(request, request_hash(request), delivery_key=submission.request_id))
    tickets: dict[UUID | None, int] = {each.request_id: each.ticket for each in submissions}
    verdicts, _ = await protocol.queue_manager.admit(admissions, tickets)
    return verdicts


async def test_the_order_is_that_of_the_commits(protocol: Protocol, other: Protocol) -> None:
    await protocol.put()
    async with protocol.transaction():
        called_first = [await submit(protocol.connection) for _ in range(3)]
        committed_first = [await submit(other.connection) for _ in range(2)]
        assert [each.request_id for each in await line(other)] == committed_first
    assert [each.request_id for each in await line(other)] == committed_first + called_first


async def test_a_transaction_with_tickets_is_listed_until_its_rows_are_visible(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put()
    async with protocol.transaction():
        called = await submit(protocol.connection)
        assert (await page(other)).entering == frozenset()
        await protocol.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        later = await submit(other.connection)
        found = await page(other)
        assert found.entering is not None
        assert (len(found.entering), [each.request_id for each in found.submissions]) == (1, [later])
        assert found.newest_ticket == found.oldest_ticket == found.submissions[0].ticket
    found = await page(other)
    assert found.entering == frozenset()
    assert [each.request_id for each in found.submissions] == [called, later]


async def test_those_that_are_too_young_are_left_and_bound_the_line(protocol: Protocol) -> None:
    await protocol.put()
    await submit(protocol.connection)
    found = await page(protocol, min_age_seconds=3600.0, with_entering=False)
    assert (found.submissions, found.oldest_ticket, found.entering) == ([], found.newest_ticket, None)


async def test_a_session_that_holds_the_lock_of_those_that_enter_stops_no_submission(
    protocol: Protocol, other: Protocol
) -> None:
    await protocol.put()
    await other.connection.execute("SELECT pg_advisory_lock(turnstile.submissions_lock('entering'))")
    request_id = await submit(protocol.connection)
    assert [each.request_id for each in await line(protocol)] == [request_id]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"ref": "no.such"}, "unknown_action: action_ref: there is no action 'no.such'"),
    ({"ref": None}, "invalid_message: action_ref: is null"),
    ({"parameters": "[1]"}, "invalid_parameters: parameters: expected a JSON object"),
    ({"parameters": None}, "invalid_parameters: parameters: expected a JSON object"),
    ({"metadata": "7"}, "invalid_message: metadata: expected a JSON object"),
    ({"priority": 0}, "invalid_message: priority: 0 is not between 1 (first) and 5 (last)"),
    ({"timeout": timedelta(seconds=-1)}, "invalid_message: timeout: is not longer than 0"),
    ({"ttl": timedelta(0)}, "invalid_message: ttl: is not longer than 0"),
    ({"idempotency_key": ""}, "invalid_message: idempotency_key: 0 characters; expected 1 to 512"),
    ({"concurrency_key": "k" * 513}, "invalid_message: concurrency_key: 513 characters; expected 1"),
    ({"callback_url": "ftp://x"}, "invalid_message: callback_url: expected an http or https URL"),
    ({"callback_url": f"http://{'x' * 2048}"}, "invalid_message: callback_url: 2055 characters"),
    ({"traceparent": "00-" + "a" * 10_000}, "invalid_message: traceparent: not a W3C trace context"),
    ({"parameters": _LARGE}, "too_large: parameters, metadata: 17000011 bytes, at most 16777216"),
    ({"metadata": _LARGE}, "too_large: parameters, metadata: 17000011 bytes, at most 16777216"),
]


async def test_what_cannot_be_admitted_is_refused_at_once(protocol: Protocol) -> None:
    await protocol.put()
    for options, message in REFUSED:
        with named(message), pytest.raises(asyncpg.InvalidParameterValueError) as refused:
            await submit(protocol.connection, **options)
        assert str(refused.value).startswith(message)
    assert await line(protocol) == []


async def test_two_executors_admit_it_once(protocol: Protocol, other: Protocol) -> None:
    await protocol.put()
    request_ids = [await submit(protocol.connection) for _ in range(3)]
    seen_by_both = await line(protocol)
    first = await admit(protocol, seen_by_both)
    with pytest.raises(Unavailable):
        await admit(other, seen_by_both)
    assert [type(verdict) for verdict in first] == [Accepted] * 3
    assert await protocol.column("SELECT delivery_key FROM execution ORDER BY id") == request_ids
    assert await line(protocol) == []


async def test_an_old_snapshot_makes_neither_the_call_nor_a_poll_more_expensive(
    protocol: Protocol, old_snapshot: None
) -> None:
    await protocol.put()

    async def pages() -> tuple[int, int]:
        await submit(protocol.connection)
        async with protocol.transaction():
            called = (await cost_of(protocol, submit(protocol.connection))).pages
        found = await line(protocol)
        async with protocol.transaction():
            polled = (await cost_of(protocol, line(protocol, found[0].ticket))).pages
        await admit(protocol, found)
        return called, polled

    before = await pages()
    for _ in range(10):
        for _ in range(50):
            await submit(protocol.connection)
        await admit(protocol, await line(protocol))
    after = await pages()
    assert after[0] <= before[0] * 1.2 + 10
    assert after[1] <= before[1] * 1.2 + 10


async def test_a_body_larger_than_the_bound_of_a_page_comes_alone(protocol: Protocol) -> None:
    await protocol.put()
    for size in (10, 700_000, 600_000, 10):
        await submit(protocol.connection, parameters=json.dumps({"text": "x" * size}))
    found = await line(protocol)
    assert [len(each.request_json or "") > 1000 for each in found] == [False, True, True]


async def test_a_body_that_no_executor_takes_is_not_read_and_its_dead_letter_is_cut(
    protocol: Protocol,
) -> None:
    await protocol.put()
    small, large = [
        await submit(protocol.connection, parameters=json.dumps({"text": "x" * size}))
        for size in (10, 300_000)
    ]
    found = await line(protocol, body_bytes_max=200_000)
    assert [(each.request_id, each.request_json is None) for each in found] == [(small, False), (large, True)]
    rejected = [(each.ticket, "too_large", "body: large") for each in found if each.request_json is None]
    await protocol.queue_manager.protocol.reject_submissions(rejected)
    (letter,) = await protocol.connection.fetch(
        "SELECT message_id, body, body_bytes, stored_bytes FROM dead_letter"
    )
    assert (letter["message_id"], len(letter["body"])) == (str(large), 65536)
    assert letter["body"].startswith(b'{"metadata": {}, "action_ref": "a", "parameters": {"text": "xxx')
    assert (letter["body_bytes"] > 300_000, letter["stored_bytes"]) == (True, 65536 + 512)


async def test_migration_0026_rejects_the_requests_that_no_executor_can_read(protocol: Protocol) -> None:
    await protocol.put()
    bounded = "ck_submission_request_is_bounded"
    await protocol.connection.execute(f"ALTER TABLE submission DROP CONSTRAINT {bounded}")
    small = await submit(protocol.connection)
    large = await submit(protocol.connection)
    await protocol.connection.execute(
        "UPDATE submission SET request = $2::text::jsonb WHERE request_id = $1", large, _LARGE
    )
    await protocol.connection.execute(
        import_module("turnstile.migrations.versions.0026_bounded_submissions")._REJECT
    )
    assert [each.request_id for each in await line(protocol)] == [small]
    for table in ("submission", "submission_line"):
        assert await protocol.column(f"SELECT request_id FROM {table}") == [small]
    (found,) = await protocol.connection.fetch("SELECT * FROM turnstile.submission($1)", large)
    assert (found["status"], found["code"]) == ("rejected", "too_large")
    assert "bytes, at most 16777216 are accepted" in found["message"]
