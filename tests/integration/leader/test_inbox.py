"""Commands are read in the order of their ids, and none is left behind, however late it is committed."""

import os
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
from msgspec import structs

from tests.support.ledger import Led, session_on
from tests.support.traffic import until
from turnstile.common.domain.errors import Code
from turnstile.executor.leader.door import columns_of
from turnstile.executor.leader.inbox_bound import InboxBound
from turnstile.executor.leader.ports import (
    CancelExecutions,
    CancelRequest,
    Command,
    DefinitionCommand,
    Request,
)
from turnstile.executor.leader.records import DefinitionRow

if TYPE_CHECKING:
    import asyncpg

_REQUEST = Request(
    action_ref="a",
    parameters=b'{"n": 1}',
    request_hash=UUID(int=7),
    metadata=b'{"m": 1}',
    ttl_seconds=2.5,
    concurrency_key="k",
    refusal=(Code.INVALID_PARAMETERS, "no"),
)
_CANCEL = CancelRequest(execution_id=7, idempotency_key=None, reason="r")
_MANY = CancelExecutions(execution_ids=(3, 2, 1), reason=None, changed_by={"name": "me"})
_DEFINITION = DefinitionCommand(
    kind="action", name="a", definition=None, changed_by={"name": "me"}, if_match="*", is_patch=True
)


async def _put(session: "asyncpg.Connection[asyncpg.Record]", command: Command = _REQUEST) -> UUID:
    command_id = uuid4()
    await session.execute(
        "INSERT INTO ledger.inbox (command_id, kind, is_bulk, size_bytes, body, parameters, metadata)"
        " VALUES ($1, $2, $3, 0, $4, $5, $6)",
        command_id,
        *columns_of(command),
    )
    return command_id


async def test_commands_come_in_order_until_a_turn_has_decided_them(led: Led, database_url: str) -> None:
    async with session_on(database_url) as session:
        ids = [await _put(session, each) for each in (_REQUEST, _CANCEL, _MANY, _DEFINITION)]
    found = await led.ledger.inbox(2)
    assert [row.command_id for row in found] == ids[:2]
    await led.write(inbox_over=[row.id for row in found], answers=[(row.command_id, b"{}") for row in found])
    found = [*found, *await led.ledger.inbox(2)]
    assert [row.command_id for row in found] == ids
    assert [row.body for row in found] == [_REQUEST, _CANCEL, _MANY, _DEFINITION]


async def test_a_command_that_was_answered_comes_without_its_body(led: Led, database_url: str) -> None:
    async with session_on(database_url) as session:
        await led.write(answers=[(await _put(session), b"{}")])
        other = await _put(session)
    answered, new = await led.ledger.inbox(10)
    assert (answered.body, new.command_id) == (None, other)


async def test_of_commands_that_name_many_only_the_first_come_and_others_pass_them(
    led: Led, database_url: str
) -> None:
    async with session_on(database_url) as session:
        many = [await _put(session, _MANY) for _ in range(5)]
        single = await _put(session)
    assert [row.command_id for row in await led.ledger.inbox(10)] == [*many[:2], single]


async def test_the_parameters_of_a_submission_are_checked_when_it_is_read(
    led: Led, database_url: str
) -> None:
    async with session_on(database_url) as session:
        await led.write(definitions=[DefinitionRow(kind="action", name="a", body={"ref": "a"})])
        await session.execute("""SELECT turnstile.submit('a', '{"n": 1}')""")
    led.ledger._refusal_of = lambda ref, parameters: (Code.INVALID_PARAMETERS, f"{ref} {parameters}")
    (row,) = await led.ledger.inbox(10)
    assert isinstance(row.body, Request)
    assert row.body.refusal == (Code.INVALID_PARAMETERS, "a {'n': 1}")


async def test_a_poll_reads_a_bounded_number_of_bytes(led: Led, database_url: str) -> None:
    # Random, so that it is not compressed.
    large = structs.replace(_REQUEST, parameters=b'{"text": "%s"}' % os.urandom(1_500_000).hex().encode())
    async with session_on(database_url) as session:
        for _ in range(6):
            await _put(session, large)
    led.ledger._parameters_bytes_max = 4_000_000
    assert len(await led.ledger.inbox(10)) == 3


async def test_a_command_that_is_committed_late_is_found(led: Led, database_url: str) -> None:
    async with session_on(database_url) as slow, session_on(database_url) as fast:
        await slow.execute("BEGIN")
        late = await _put(slow)
        for _ in range(4):
            await _put(fast)
            await led.write(inbox_over=[row.id for row in await led.ledger.inbox(10)])
            assert not await led.ledger.inbox(10)
        await slow.execute("COMMIT")
        assert [row.command_id for row in await led.ledger.inbox(10)] == [late]


async def test_the_bound_passes_what_was_decided(led: Led, database_url: str) -> None:
    async with session_on(database_url) as session:
        for _ in range(5):
            await _put(session)
        await led.write(inbox_over=[row.id for row in await led.ledger.inbox(10)])

        async def has_passed() -> bool:
            await led.ledger.inbox(10)
            return led.ledger._inbox.from_id == 6

        await until(has_passed)


@pytest.mark.parametrize("first_id", [None, 3])
def test_the_bound_waits_for_those_that_may_have_drawn_an_id(first_id: int | None) -> None:
    bound = InboxBound()
    bound.read(5, frozenset({"3/71", "3/72"}), first_id)
    bound.read(8, frozenset({"3/72", "4/90"}), first_id)
    assert bound.from_id == 0
    bound.read(9, frozenset({"4/90"}), first_id)
    assert bound.from_id == (6 if first_id is None else 3)
