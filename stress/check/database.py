"""Reads the history of a database as plain values for `history`; all instants are the database's clock."""

from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING

from pydantic_core import from_json

from turnstile.common.database import Database
from turnstile.common.domain.states import Status
from turnstile.stress.check.history import AttemptHistory, ExecutionHistory, History, QueueHistory

if TYPE_CHECKING:
    import asyncpg


async def read_history(database: Database) -> History:
    """Read all attempts and executions; the statements have a timeout, the number of rows has no bound."""
    attempts = await database.fetch(_query("attempts"))
    executions = await database.fetch(_query("executions"))
    return History(
        queues=tuple(_queue(list(rows)) for _, rows in groupby(attempts, lambda row: row["queue_id"])),
        executions=tuple(_execution(row) for row in executions),
    )


def _query(name: str) -> str:
    return resources.files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


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
