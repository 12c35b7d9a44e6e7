"""Reads ended executions back from the record, as the messages that tell their end again (P4)."""

import logging
from collections.abc import Sequence

import asyncpg

from turnstile.common.broker.delivery import Outgoing
from turnstile.common.database import Database
from turnstile.common.documents import readable
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.envelopes import completed_message, slot_message
from turnstile.common.messages import Error, ExecutionCompleted
from turnstile.executor.sql import query

logger = logging.getLogger(__name__)


async def read_ends(
    database: Database, execution_ids: Sequence[int], *, result_bytes_max: int
) -> list[Outgoing]:
    """Return one message per execution.

    A result above `result_bytes_max`, or one that nobody could read, is left out: a slot waits for this. An
    execution that cannot be read at all is left out too, with a line in the log: others wait beside it.
    """
    messages = []
    for row in await database.fetch(query("ends"), list(execution_ids), result_bytes_max):
        try:
            messages.append(_end(row))
        except ValueError as error:
            # Of a version to come, or written by hand.
            fields = {"execution_id": row["id"], "status": row["status"], "reason": str(error)}
            logger.error("end_unreadable", extra=fields)
    return messages


def _end(row: asyncpg.Record) -> Outgoing:
    status = Status(row["status"])
    if not is_terminal(status):
        return slot_message(row["id"], row["attempt"], row["ref"], status)
    completed = ExecutionCompleted(
        execution_id=row["id"],
        action_id=row["action_id"],
        action_ref=row["ref"],
        status=status,
        result=readable(row["result"]),
        error=Error(type=row["error_type"], message=row["error_message"] or "")
        if row["error_type"]
        else None,
        attempt=row["attempt"],
        completed_at=row["completed_at"],
    )
    return completed_message(completed, app_id="executor", traceparent=row["traceparent"])


def _error(row: asyncpg.Record) -> Error | None:
    return Error(type=row["error_type"], message=row["error_message"] or "") if row["error_type"] else None
