"""What happened, read from the record when it is over.

In: the database. Out: a `History` of plain values, which `figures` and `report` judge without a database.
All instants are the database's own clock.
"""

from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING

from pydantic import JsonValue
from pydantic_core import from_json

from turnstile.common.database import Database
from turnstile.common.domain.states import Status

if TYPE_CHECKING:
    import asyncpg


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptHistory:
    """One held slot, from its grant to the end of its attempt."""

    execution_id: int
    waiting_since: datetime
    granted_at: datetime
    started_at: datetime | None
    """None: no worker claimed it."""
    ended_at: datetime | None
    """None: it has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHistory:
    """One line: its limit, and its attempts in the order of their grants."""

    action_ref: str
    max_concurrent: int | None
    attempts: tuple[AttemptHistory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionHistory:
    """How one execution ended; `number` is what the demonstration called it."""

    execution_id: int
    action_ref: str
    number: int | None
    status: Status
    result: JsonValue
    error_message: str | None
    created_at: datetime
    completed_at: datetime | None
    holds_slot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything, executions in the order of their tickets."""

    queues: tuple[QueueHistory, ...]
    executions: tuple[ExecutionHistory, ...]


def query(name: str) -> str:
    """Return the text of the query in `<name>.sql`."""
    return resources.files("turnstile.executor.demo").joinpath(f"{name}.sql").read_text(encoding="utf-8")


async def read_history(database: Database) -> History:
    """Read the whole record; the statements have a bound on their time, the record has none."""
    attempts = await database.fetch(query("attempts"))
    executions = await database.fetch(query("executions"))
    return History(
        queues=tuple(_queue(list(rows)) for _, rows in groupby(attempts, lambda row: row["queue_id"])),
        executions=tuple(_execution(row) for row in executions),
    )


def _queue(rows: "list[asyncpg.Record]") -> QueueHistory:
    names = AttemptHistory.__dataclass_fields__
    return QueueHistory(
        action_ref=rows[0]["action_ref"],
        max_concurrent=rows[0]["max_concurrent"],
        attempts=tuple(AttemptHistory(**{name: row[name] for name in names}) for row in rows),
    )


def _execution(row: "asyncpg.Record") -> ExecutionHistory:
    result = None if row["result"] is None else from_json(row["result"])
    return ExecutionHistory(**{**dict(row), "status": Status(row["status"]), "result": result})
