"""Commands are read in the order of their ids, and none is left behind, however late it is committed."""

from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from tests.support.ledger import Led, session_on
from turnstile.executor.leader.inbox_bound import InboxBound
from turnstile.executor.leader.ports import CancelRequest, DefinitionCommand, Request

if TYPE_CHECKING:
    import asyncpg

_REQUEST = """
{"action_ref": "a", "parameters": {"n": 1}, "request_hash": "00000000-0000-0000-0000-000000000007",
 "metadata": {"m": 1}, "ttl_seconds": 2.5}
"""
_CANCEL = '{"execution_id": 7, "idempotency_key": null, "reason": "r"}'
_DEFINITION = '{"kind": "action", "name": "a", "definition": null, "changed_by": {"who": "me"}}'


async def _put(
    session: "asyncpg.Connection[asyncpg.Record]", kind: str = "request", body: str = _REQUEST
) -> UUID:
    command_id = uuid4()
    await session.execute(
        "INSERT INTO ledger.inbox (command_id, kind, body) VALUES ($1, $2, $3)", command_id, kind, body
    )
    return command_id


async def test_commands_come_in_order_until_a_turn_has_decided_them(led: Led, ledger_url: str) -> None:
    async with session_on(ledger_url) as session:
        ids = [
            await _put(session),
            await _put(session, "cancel", _CANCEL),
            await _put(session, "definition", _DEFINITION),
        ]
    found = await led.ledger.inbox(2)
    assert [row.command_id for row in found] == ids[:2]
    await led.write(inbox_over=[row.id for row in found], answers=[(row.command_id, b"{}") for row in found])
    found = [*found, *await led.ledger.inbox(2)]
    assert [row.command_id for row in found] == ids
    assert [row.body for row in found] == [
        Request(
            action_ref="a",
            parameters=b'{"n": 1}',
            request_hash=UUID(int=7),
            metadata=b'{"m": 1}',
            ttl_seconds=2.5,
        ),
        CancelRequest(execution_id=7, idempotency_key=None, reason="r"),
        DefinitionCommand(kind="action", name="a", definition=None, changed_by={"who": "me"}),
    ]


async def test_a_command_that_is_committed_late_is_found(led: Led, ledger_url: str) -> None:
    async with session_on(ledger_url) as slow, session_on(ledger_url) as fast:
        await slow.execute("BEGIN")
        late = await _put(slow)
        for _ in range(4):
            await _put(fast)
            await led.write(inbox_over=[row.id for row in await led.ledger.inbox(10)])
            assert not await led.ledger.inbox(10)
        await slow.execute("COMMIT")
        assert [row.command_id for row in await led.ledger.inbox(10)] == [late]


async def test_the_bound_passes_what_was_decided(led: Led, ledger_url: str) -> None:
    async with session_on(ledger_url) as session:
        for _ in range(5):
            await _put(session)
        await led.write(inbox_over=[row.id for row in await led.ledger.inbox(10)])
        for _ in range(3):
            await led.ledger.inbox(10)
    assert led.ledger._inbox.from_id == 6


@pytest.mark.parametrize("first_id", [None, 3])
def test_the_bound_waits_for_those_that_may_have_drawn_an_id(first_id: int | None) -> None:
    bound = InboxBound()
    bound.read(5, frozenset({71, 72}), first_id)
    bound.read(8, frozenset({72, 90}), first_id)
    assert bound.from_id == 0
    bound.read(9, frozenset({90}), first_id)
    assert bound.from_id == (6 if first_id is None else 3)
