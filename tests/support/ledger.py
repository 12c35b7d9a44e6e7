"""Rows and turns for tests of the ledger, and a database with its tables."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from turnstile.common.domain.states import Status
from turnstile.executor.leader.ledger import Ledger
from turnstile.executor.leader.records import AdmittedRow, EndedRow, GrantRow, Loaded, Turn, WaitingRow

LOST_WORKER = """
INSERT INTO ledger.worker (worker_id, session, secret_hash, name, pools, concurrency, lease_seconds,
                           is_taking, is_draining, about, registered_at, heard_at, gone_at, gone_why,
                           held_ids)
VALUES ('lost', 1, 'x', 'render-1', '{none}', 1, 30, false, false, '{}', now(), now(), now(), 'lost', '{}')
"""
"""A statement that adds the row of a worker that was lost."""


@asynccontextmanager
async def ledger_on(url: str) -> AsyncIterator[Ledger]:
    ledger = Ledger(url)
    try:
        yield ledger
    finally:
        await ledger.close()


@asynccontextmanager
async def session_on(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A session of someone else."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        connection.terminate()


class Led:
    """A ledger that leads, and numbers its turns."""

    def __init__(self, ledger: Ledger, epoch: int) -> None:
        self.ledger, self.epoch, self.number = ledger, epoch, 0

    @classmethod
    async def by(cls, ledger: Ledger, name: str = "a") -> "Led":
        return cls(ledger, await ledger.take_over(name))

    async def write(self, **fields: Any) -> Turn:
        """Write the next turn; its number counts once it was written."""
        turn = Turn(epoch=self.epoch, number=self.number + 1, **({"at": float(self.number)} | fields))
        await self.ledger.write(turn)
        self.number += 1
        return turn

    async def admit(self, *ids: int, **fields: Any) -> Turn:
        return await self.write(admitted=[admitted(each) for each in ids], reserved_id=1000, **fields)

    async def load(self) -> Loaded:
        return await self.ledger.load(self.epoch)

    async def waiting_ids(self) -> list[int]:
        return sorted(row.id for row in living(await self.load()))


def admitted(execution_id: int, **fields: Any) -> AdmittedRow:
    given: dict[str, Any] = {
        "action_ref": "a",
        "key": "",
        "priority": 3,
        "status": Status.QUEUED,
        "created_at": 100.0 + execution_id,
        "run_at": None,
        "expires_at": None,
        "timeout_seconds": None,
        "parameters": b'{"n": 1}',
        "request_hash": UUID(int=execution_id),
        "delivery_key": uuid4(),
    } | fields
    return AdmittedRow(id=execution_id, **given)


def ended(execution_id: int, **fields: Any) -> EndedRow:
    given: dict[str, Any] = {
        "status": Status.COMPLETED,
        "attempt": 1,
        "failures": 0,
        "reclaims": 0,
        "worker_id": "w",
        "queued_at": 101.0,
        "scheduled_at": 102.0,
        "started_at": 103.0,
        "completed_at": 104.0,
        "result": b"1",
        "error": None,
        "passages": (),
    } | fields
    return EndedRow(id=execution_id, **given)


def granted(epoch: int, counter: int, *execution_ids: int, worker_id: str = "w") -> GrantRow:
    """A grant of consecutive numbers."""
    counters = tuple(range(counter, counter + len(execution_ids)))
    return GrantRow(
        epoch=epoch,
        counter=counter,
        worker_id=worker_id,
        granted_at=102.0,
        execution_ids=execution_ids,
        counters=counters,
    )


def waiting(execution_id: int, **fields: Any) -> WaitingRow:
    given: dict[str, Any] = {
        "action_ref": "a",
        "key": "",
        "priority": 3,
        "queued_at": 101.0,
        "expires_at": None,
    } | fields
    return WaitingRow(id=execution_id, **given)


def living(loaded: Loaded) -> Iterator[WaitingRow]:
    """Yield all that has not ended, whether packed or not."""
    yield from loaded.waiting
    for queue in loaded.packed:
        for each, queued_at, expires_at in zip(queue.ids, queue.queued_at, queue.expires_at, strict=True):
            yield WaitingRow(
                id=each,
                action_ref=queue.action_ref,
                key=queue.key,
                priority=queue.priority,
                queued_at=queued_at,
                expires_at=None if expires_at == float("inf") else expires_at,
            )


@asynccontextmanager
async def in_flight(ledger: Ledger, turn: Turn) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Run the statement of a turn up to its commit; yields the commit."""
    async with ledger._writer.use(60.0) as connection:
        transaction = connection.transaction()
        await transaction.start()
        await ledger._send(connection, turn, ())
        yield transaction.commit
