"""What a turn writes with an end: its webhook, and the last piece of its log; and bodies stored before it."""

import json
from collections.abc import AsyncIterator
from typing import TypeAlias

import asyncpg
import pytest

from tests.support.ledger import Led, admitted, ended, session_on
from tests.support.traffic import until
from turnstile.executor.leader.records import LogRow, ProgressRow
from turnstile.executor.sql import statements

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
_URL = "https://hooks.example.org:8443/done?x=1"


@pytest.fixture
async def reader(database_url: str) -> AsyncIterator[Connection]:
    async with session_on(database_url) as session:
        yield session


async def _webhooks(reader: Connection) -> list[tuple[int, str, str, str]]:
    rows = await reader.fetch(
        "SELECT execution_id, url, origin, state FROM ledger.webhook"
        " WHERE due_at <= clock_timestamp() AND created_at > clock_timestamp() - interval '1 minute'"
        " ORDER BY execution_id"
    )
    return [tuple(row) for row in rows]


async def test_an_end_with_a_callback_has_a_webhook_that_is_due_and_no_other_end_has_one(
    led: Led, reader: Connection
) -> None:
    await led.write(admitted=[admitted(1, callback_url=_URL), admitted(2)], reserved_id=1000)
    assert not await _webhooks(reader)
    await led.write(ended=[ended(1), ended(2)])
    assert await _webhooks(reader) == [(1, _URL, "https://hooks.example.org:8443", "pending")]


async def test_an_end_in_the_turn_of_its_admission_has_a_webhook(led: Led, reader: Connection) -> None:
    new = [admitted(1, callback_url=_URL), admitted(2), admitted(3, callback_url=_URL)]
    await led.write(admitted=new, ended=[ended(1), ended(2)], reserved_id=1000)
    assert [each[0] for each in await _webhooks(reader)] == [1]


async def test_an_end_that_waits_for_a_locked_row_has_its_webhook_when_it_is_written(
    led: Led, database_url: str, reader: Connection
) -> None:
    await led.write(admitted=[admitted(1, callback_url=_URL), admitted(2)], reserved_id=1000)
    async with session_on(database_url) as holder:
        await holder.execute("BEGIN; SELECT FROM ledger.execution WHERE id = 1 FOR UPDATE")
        await led.write(ended=[ended(1), ended(2)])
        await holder.execute("ROLLBACK")

    async def has_webhook() -> bool:
        return [each[0] for each in await _webhooks(reader)] == [1]

    await until(has_webhook)
    assert await reader.fetchval("SELECT status FROM ledger.execution WHERE id = 1") == "completed"


async def test_a_piece_of_a_log_that_comes_twice_is_stored_once(led: Led, reader: Connection) -> None:
    await led.admit(1)
    piece = LogRow(execution_id=1, attempt=1, start=7, text="the end\n")
    await led.write(logs=[piece])
    await led.write(ended=[ended(1)], logs=[piece])
    rows = await reader.fetch("SELECT attempt, start, text FROM ledger.log WHERE execution_id = 1")
    assert [tuple(row) for row in rows] == [(1, 7, "the end\n")]


async def test_the_last_progress_is_stored_with_the_end_also_beside_a_locked_or_later_report(
    led: Led, database_url: str, reader: Connection
) -> None:
    await led.admit(1)
    report = (
        "INSERT INTO ledger.progress VALUES (1, 1, {}, 10, NULL, now())"
        " ON CONFLICT (execution_id, attempt, is_last) DO UPDATE SET done = excluded.done"
    )
    await reader.execute(report.format(3))
    last = ProgressRow(execution_id=1, attempt=1, at=5.0, done=10, total=10, message="m" * 501)
    async with session_on(database_url) as holder:
        await holder.execute("BEGIN; SELECT FROM ledger.progress FOR UPDATE")
        await led.write(ended=[ended(1)], progress=[last])
        await holder.execute("ROLLBACK")
    await reader.execute(report.format(4))
    read = statements("history/history.sql")["execution"]
    (attempt,) = json.loads(await reader.fetchval(f"SELECT attempts FROM ({read}) e", 1))
    assert (attempt["progress"]["done"], attempt["progress"]["message"]) == (10, "m" * 500)


async def test_a_large_body_becomes_that_of_its_execution_also_with_its_end_and_leaves_no_row(
    led: Led, reader: Connection
) -> None:
    first = await led.ledger.store_body(b'{"n": 1}', b'{"m": 1}')
    second = await led.ledger.store_body(b'{"n": 2}', None)
    unused = await led.ledger.store_body(b'{"n": 3}', None)
    assert first is not None
    assert second is not None
    assert unused is not None
    await led.write(
        admitted=[admitted(1, body_id=first), admitted(2, body_id=second), admitted(3)],
        ended=[ended(2)],
        bodies_over=[first, second, unused],
        reserved_id=1000,
    )
    rows = await reader.fetch("SELECT parameters, metadata FROM ledger.execution ORDER BY id")
    assert [(row["parameters"], row["metadata"]) for row in rows] == [
        ('{"n": 1}', '{"m": 1}'), ('{"n": 2}', None), (admitted(3).parameters.decode(), None),
    ]  # fmt: skip
    assert not await reader.fetch("SELECT FROM ledger.large_body")


async def test_a_large_body_that_cannot_be_stored_is_left_to_the_turn(led: Led, reader: Connection) -> None:
    assert await led.ledger.store_body(b'{"n": "\\u0000"}', None) is None
    assert await led.ledger.store_body(b'{"n": 1}', None) is not None


async def test_what_no_turn_has_used_is_deleted_an_hour_later(led: Led, reader: Connection) -> None:
    old = await led.ledger.store_body(b'{"n": 1}', None)
    await reader.execute("UPDATE ledger.large_body SET stored_at = now() - interval '61 minutes'")
    new = await led.ledger.store_body(b'{"n": 2}', None)
    assert [row["id"] for row in await reader.fetch("SELECT id FROM ledger.large_body")] == [new] != [old]
