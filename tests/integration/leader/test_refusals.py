"""Content that the database refuses: nothing of the turn is written, and the error names the execution."""

import secrets
from typing import Any

import pytest

from tests.support.ledger import Led, admitted, ended, session_on
from turnstile.common.domain.states import Status
from turnstile.executor.leader.ports import TurnRefused

_LONG_KEY = secrets.token_hex(8000)
"""Above what an index can hold."""


@pytest.mark.parametrize(
    "fields",
    [
        {"result": b'"\\u0000"'},
        {"result": b'"\\ud800"'},
        {"result": b"1e1000000"},
        {"result": b"[" * 200_000 + b"]" * 200_000},
        {"result": b"no JSON"},
        {"result": b'"\xff"'},
        {"worker_id": "zero \0"},
        {"worker_id": "half \ud800"},
        {"failures": 2**63},
        {"failures": 2**31},
        {"completed_at": float("nan")},
        {"completed_at": 1e18},
        {"status": Status.FAILED, "result": None, "error": ("Error", "zero \0")},
    ],
    ids=lambda fields: str(fields)[:50],
)
async def test_an_end_that_cannot_be_stored_is_named(led: Led, fields: dict[str, Any]) -> None:
    await led.admit(*range(1, 8))
    good = [ended(each) for each in (1, 2, 3, 4, 6)]
    with pytest.raises(TurnRefused) as raised:
        await led.write(admitted=[admitted(8)], ended=[*good, ended(5, **fields)])
    assert raised.value.execution_ids == (5,)
    assert await led.waiting_ids() == [1, 2, 3, 4, 5, 6, 7]
    await led.write(admitted=[admitted(8)], ended=good)
    assert await led.waiting_ids() == [5, 7, 8]


@pytest.mark.parametrize(
    "fields",
    [
        {"parameters": b'{"a": "\\u0000"}'},
        {"metadata": b'{"a": 1e1000000}'},
        {"key": "zero \0"},
        {"action_ref": "half \ud800"},
        {"idempotency_key": _LONG_KEY},
        {"created_at": 1e18},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_a_request_that_cannot_be_stored_is_named(led: Led, fields: dict[str, Any]) -> None:
    with pytest.raises(TurnRefused) as raised:
        await led.write(admitted=[admitted(1), admitted(2, **fields), admitted(3)], reserved_id=10)
    assert raised.value.execution_ids == (2,)
    assert not await led.waiting_ids()
    await led.admit(1, 3)


async def test_a_refusal_shows_no_content(led: Led) -> None:
    await led.admit(1)
    with pytest.raises(TurnRefused) as raised:
        await led.write(ended=[ended(1, result=b'"the secret"', worker_id=None)])
    assert "secret" not in str(raised.value)


async def test_content_of_one_kind_after_another_is_written(led: Led, database_url: str) -> None:
    """A refusal leaves the session as it was: the next turns are written with the same statements."""
    for number in range(1, 4):
        await led.write(admitted=[admitted(number)], reserved_id=100)
        with pytest.raises(TurnRefused):
            await led.write(ended=[ended(number, result=b"no JSON")])
        await led.write(ended=[ended(number)])
    async with session_on(database_url) as session:
        assert await session.fetchval("SELECT count(*) FROM ledger.execution WHERE status = 'completed'") == 3
