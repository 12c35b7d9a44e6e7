"""What a turn writes with an end: its webhook, and the last piece of its log."""

from collections.abc import AsyncIterator
from typing import TypeAlias

import asyncpg
import pytest

from tests.support.ledger import Led, admitted, ended, session_on, until
from turnstile.executor.leader.records import LogRow

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
