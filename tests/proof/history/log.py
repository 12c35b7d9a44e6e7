"""The database's own word: a log of every move, written by triggers in the same transaction, and append-only.

In: a migrated database without executions. Out: `Move`s in the order of their numbers.

What that order means: a number is drawn while the row that changed is locked, and its transaction holds that
lock until it commits. So for each *row* the order of the numbers is the order of the commits. For each *line*
too (what joins and leaves `waiting`, what is put into `slot` and taken out, a changed limit): all these are
made under the lock of the queue's row, so the numbers of two transactions on one line never interleave. Claim
and finish take no queue lock: theirs mean nothing against a line, only against their own rows.
"""

from collections.abc import Mapping
from datetime import datetime
from importlib import resources
from typing import Any, Final, TypeAlias

import asyncpg
from pydantic_core import from_json, to_json

from tests.proof.history.recording import (
    AttemptMove,
    ExecutionMove,
    LineMove,
    Move,
    QueueMove,
    SlotMove,
    Stamp,
    Step,
    WorkerEvent,
    WorkerMove,
)
from turnstile.common.domain.states import Status

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
_CONTENT: Final = ("result", "error_type", "error_message")


async def install(connection: Connection) -> None:
    """Begin the log; the database must not have lived yet, or the log would begin in the middle."""
    for table in ("execution", "action_queue", "worker"):
        assert not await connection.fetchval(f"SELECT EXISTS (SELECT FROM {table})"), f"{table} is not empty"
    await connection.execute(
        resources.files("tests.proof.history").joinpath("log.sql").read_text(encoding="utf-8")
    )


async def read_moves(connection: Connection, *, mark: str = "mark") -> list[Move]:
    """Return all moves; `mark` is the key in the requests' metadata by which their submitter knows them."""
    rows = await connection.fetch("SELECT * FROM history.log ORDER BY seq")
    return [_move(row, mark) for row in rows]


def _move(row: asyncpg.Record, mark: str) -> Move:
    stamp = Stamp(seq=row["seq"], at=row["at"], txid=row["txid"], session=row["session"])
    step = Step(row["step"])
    old: Mapping[str, Any] = from_json(row["old"] or "{}")
    new: Mapping[str, Any] = from_json(row["new"] or "{}")
    known = new or old
    # Of a deleted row `known` is what it was.
    match row["place"]:
        case "execution":
            return _execution_move(row, stamp, old, new, mark)
        case "slot":
            return SlotMove(
                stamp=stamp,
                step=step,
                queue_id=row["queue_id"],
                execution_id=row["execution_id"],
                attempt=row["attempt"],
                worker_id=row["worker_id"],
                is_over=known["finished_at"] is not None,
            )
        case "waiting":
            return LineMove(
                stamp=stamp, step=step, queue_id=row["queue_id"], execution_id=row["execution_id"]
            )
        case "action_queue":
            return QueueMove(
                stamp=stamp, queue_id=row["queue_id"], limit=known["max_concurrent"], paused=known["paused"]
            )
        case "worker":
            return _worker_move(row["worker_id"], step, stamp, old, known)
        case "attempt":
            return AttemptMove(
                stamp=stamp,
                step=step,
                execution_id=row["execution_id"],
                attempt=row["attempt"],
                worker_id=row["worker_id"],
                outcome=known["outcome"],
            )
        case place:
            raise AssertionError(f"nothing is noted of {place}")


def _execution_move(
    row: asyncpg.Record, stamp: Stamp, old: Mapping[str, Any], new: Mapping[str, Any], mark: str
) -> ExecutionMove:
    known = new or old
    written = known["metadata"].get(mark)
    return ExecutionMove(
        stamp=stamp,
        queue_id=row["queue_id"],
        execution_id=row["execution_id"],
        previous=Status(old["status"]) if old else None,
        status=Status(new["status"]) if new else None,
        attempt=row["attempt"],
        worker_id=row["worker_id"],
        content=to_json([known[name] for name in _CONTENT]).decode(),
        mark=None if written is None else str(written),
    )


def _worker_move(
    worker_id: str, step: Step, stamp: Stamp, old: Mapping[str, Any], known: Mapping[str, Any]
) -> WorkerMove:
    if not old:
        event = WorkerEvent.REGISTERED
    elif step is Step.DELETE:
        event = WorkerEvent.FORGOTTEN
    elif known["lost_at"] != old["lost_at"]:
        event = WorkerEvent.LOST
    else:
        event = WorkerEvent.STOPPED
    return WorkerMove(
        stamp=stamp, worker_id=worker_id, event=event, renewed_at=datetime.fromisoformat(known["renewed_at"])
    )
