"""The database's own log of every change, written by triggers in the same transaction; append-only.

In: a migrated database, without executions where the whole history is to be checked. Out: `Event`s in the
order of their numbers. A number is drawn while the changed row is locked, and its transaction holds that
lock until it commits. So for each *row* the order of the numbers is the order of the commits. The same holds
for each *queue* (rows of `waiting`, rows of `slot`, a changed limit): all of these change under the lock of
the queue's row, so the numbers of two transactions on one queue never interleave. Claim and finish take no
queue lock: their numbers are ordered within their own rows only.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from importlib import resources
from typing import Any, Final, TypeAlias

import asyncpg
from pydantic_core import from_json, to_json

from tests.proof.history.recording import (
    ActionEvent,
    AttemptEvent,
    Event,
    ExecutionEvent,
    PoolEvent,
    QueueEvent,
    SlotEvent,
    Stamp,
    Step,
    WaitingEvent,
    WorkerChange,
    WorkerEvent,
)
from tests.proof.history.replay import longest_idle, replayed_queues
from turnstile.common.domain.states import Status

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
_CONTENT: Final = ("result", "error_type", "error_message")


async def install(connection: Connection) -> None:
    """Start the log in a database without history: else the log would begin in the middle."""
    for table in ("execution", "action_queue", "worker"):
        assert not await connection.fetchval(f"SELECT EXISTS (SELECT FROM {table})"), f"{table} is not empty"
    await _create(connection)


async def read_events(connection: Connection) -> list[Event]:
    """Return all events; their tags are `tag` in the metadata of the requests."""
    rows = await connection.fetch("SELECT * FROM history.log ORDER BY seq")
    return list(_with_slot_states(_event(row) for row in rows))


@dataclass(slots=True)
class SlotLog:
    """What the slots and queues went through while `slots_logged` was open, read on request."""

    connection: Connection

    async def steps_of(self, execution_id: int) -> list[Step]:
        """Return the inserts and deletes of one execution's slots."""
        return [e.step for e in await self._slots() if e.execution_id == execution_id]

    async def granted(self, queue_id: int) -> list[int]:
        """Return the executions that were granted a slot of a queue, in order."""
        slots = [e for e in await self._slots() if e.queue_id == queue_id]
        return [e.execution_id for e in slots if e.step is Step.INSERT]

    async def peak_slots(self) -> dict[int, int]:
        """Return, by queue, the most slots that were held after any commit."""
        most: dict[int, int] = {}
        for queue in replayed_queues(await read_events(self.connection)):
            most[queue.number] = max(most.get(queue.number, 0), len(queue.held))
        return most

    async def longest_idle(self) -> timedelta:
        """Return how long at most a slot was free beside a runnable waiting execution."""
        return longest_idle(await read_events(self.connection))

    async def waited(self) -> int:
        """Return how often an execution joined its queue."""
        events = await read_events(self.connection)
        return sum(isinstance(e, WaitingEvent) and e.step is Step.INSERT and not e.is_at_gate for e in events)

    async def freed_at(self) -> dict[int, datetime]:
        """Return when the slot of each execution was freed."""
        return {e.execution_id: e.stamp.at for e in await self._slots() if e.step is Step.DELETE}

    async def _slots(self) -> Sequence[SlotEvent]:
        events = await read_events(self.connection)
        return [e for e in events if isinstance(e, SlotEvent) and e.step is not Step.UPDATE]


@asynccontextmanager
async def slots_logged(database_url: str) -> AsyncIterator[SlotLog]:
    """Log every change for the length of the block, in a database that may have a history already."""
    connection = await asyncpg.connect(database_url)
    try:
        await _create(connection)
        try:
            yield SlotLog(connection)
        finally:
            await connection.execute("DROP SCHEMA history CASCADE")
    finally:
        await connection.close()


async def _create(connection: Connection) -> None:
    sql = resources.files("tests.proof.history").joinpath("event_log.sql").read_text(encoding="utf-8")
    await connection.execute(sql)


def _with_slot_states(events: Iterable[Event]) -> Iterator[Event]:
    """Add the transitions that only a slot shows: an execution's row is `queued` until its attempt ends."""
    current: dict[int, ExecutionEvent] = {}
    for event in events:
        match event:
            case ExecutionEvent():
                before = current.get(event.execution_id)
                known = event if before is None else replace(event, previous=before.status)
                current[event.execution_id] = known
                yield known
                continue
            case SlotEvent(step=Step.INSERT):
                yield from _moved(current, event, Status.SCHEDULED)
            case SlotEvent(step=Step.UPDATE, is_over=False) if event.worker_id is not None:
                yield from _moved(current, event, Status.RUNNING)
            case _:
                pass
        yield event


def _moved(current: dict[int, ExecutionEvent], slot: SlotEvent, target: Status) -> Iterator[ExecutionEvent]:
    """Yield the execution's transition, unless it was made before: a slot changes for other reasons too."""
    before = current.get(slot.execution_id)
    if before is not None and (before.status, target) != (target, Status.RUNNING):
        event = replace(
            before,
            stamp=slot.stamp,
            previous=before.status,
            status=target,
            attempt=slot.attempt,
            worker_id=slot.worker_id,
        )
        current[slot.execution_id] = event
        yield event


def _event(row: asyncpg.Record) -> Event:
    stamp = Stamp(seq=row["seq"], at=row["at"], txid=row["txid"], session=row["session"])
    step = Step(row["step"])
    old: Mapping[str, Any] = from_json(row["old"] or "{}")
    new: Mapping[str, Any] = from_json(row["new"] or "{}")
    known = new or old  # Of a deleted row, its last state.
    match row["table_name"]:
        case "execution":
            return _execution_event(row, stamp, old, new)
        case "slot":
            return SlotEvent(
                stamp=stamp,
                step=step,
                queue_id=row["queue_id"],
                execution_id=row["execution_id"],
                attempt=row["attempt"],
                worker_id=row["worker_id"],
                is_over=known["finished_at"] is not None,
                has_gates=known["gate_ids"] is not None,
            )
        case "waiting":
            return WaitingEvent(
                stamp=stamp,
                step=step,
                queue_id=row["queue_id"],
                execution_id=row["execution_id"],
                is_at_gate=known["queue_id"] is not None,
            )
        case "action_queue":
            return QueueEvent(
                stamp=stamp,
                queue_id=row["queue_id"],
                limit=known["max_concurrent"],
                paused=known["paused"],
                action_id=known["action_id"],
            )
        case "action":
            return ActionEvent(
                stamp=stamp,
                action_id=known["id"],
                ref=known["ref"],
                pool=known["pool"],
                is_listed=known["runner"] == "python" and known["entrypoint"] is None,
            )
        case "worker_pool":
            return PoolEvent(stamp=stamp, name=known["name"], paused=known["paused"])
        case "worker":
            return _worker_event(row["worker_id"], step, stamp, old, known)
        case "attempt":
            return AttemptEvent(
                stamp=stamp,
                step=step,
                execution_id=row["execution_id"],
                attempt=row["attempt"],
                worker_id=row["worker_id"],
                outcome=known["outcome"],
            )
        case table:
            raise AssertionError(f"{table} is not logged")


def _execution_event(
    row: asyncpg.Record, stamp: Stamp, old: Mapping[str, Any], new: Mapping[str, Any]
) -> ExecutionEvent:
    known = new or old
    written = known["metadata"].get("tag")
    return ExecutionEvent(
        stamp=stamp,
        queue_id=row["queue_id"],
        execution_id=row["execution_id"],
        previous=Status(old["status"]) if old else None,
        status=Status(new["status"]) if new else None,
        attempt=row["attempt"],
        worker_id=row["worker_id"],
        content=to_json([known[name] for name in _CONTENT]).decode(),
        tag=None if written is None else str(written),
    )


def _worker_event(
    worker_id: str, step: Step, stamp: Stamp, old: Mapping[str, Any], known: Mapping[str, Any]
) -> WorkerEvent:
    if not old:
        change = WorkerChange.REGISTERED
    elif step is Step.DELETE:
        change = WorkerChange.DELETED
    elif known["lost_at"] != old["lost_at"]:
        change = WorkerChange.LOST
    elif known["stopped_at"] != old["stopped_at"]:
        change = WorkerChange.STOPPED
    else:
        change = WorkerChange.DRAINED
    return WorkerEvent(
        stamp=stamp,
        worker_id=worker_id,
        change=change,
        renewed_at=datetime.fromisoformat(known["renewed_at"]),
        pools=known["pools"],
        concurrency=known["concurrency"],
        served_refs=known["served_refs"],
    )
