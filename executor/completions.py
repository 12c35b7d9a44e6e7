"""Builds `execution.completed` messages of executions that the executor ended or publishes again (P4)."""

import logging
from collections.abc import Sequence
from typing import Final

import asyncpg

from turnstile.common.broker.message import Outgoing
from turnstile.common.database import Database
from turnstile.common.domain.outcomes import Failure
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.envelopes import completed_message, slot_message
from turnstile.common.json_limits import readable
from turnstile.common.messages import Error
from turnstile.common.telemetry.logs import Episodes
from turnstile.executor.results import Move
from turnstile.executor.sql import query

logger = logging.getLogger(__name__)
_UNREADABLE: Final = Episodes(logger, "outcome_unreadable", level=logging.ERROR)


async def read_completions(
    database: Database, execution_ids: Sequence[int], *, result_bytes_max: int
) -> list[Outgoing]:
    """Read ended executions and return one message each.

    A result above `result_bytes_max`, or one that no client could read, is left out: a slot waits for this
    message. An execution that cannot be read at all is skipped and logged, so that the others are published.
    """
    messages = []
    for row in await database.fetch(query("outcomes"), list(execution_ids), result_bytes_max):
        try:
            messages.append(_message(row))
        except ValueError as error:
            # Written by a newer version, or by hand.
            _UNREADABLE.failed(
                str(row["id"]), execution_id=row["id"], status=row["status"], reason=str(error)
            )
    return messages


def completion_of(move: Move, error: Error) -> Outgoing:
    """Return the completion of an execution that ended without a worker."""
    return completed_message(
        execution_id=move.execution_id,
        action_id=move.action_id,
        action_ref=move.action_ref,
        status=move.status,
        error=error,
        attempt=move.attempt,
        completed_at=move.moved_at,
        app_id="executor",
    )


def _message(row: asyncpg.Record) -> Outgoing:
    status = Status(row["status"])
    if not is_terminal(status):
        return slot_message(row["id"], row["attempt"], row["ref"], status)
    error_type = row["error_type"]
    return completed_message(
        execution_id=row["id"],
        action_id=row["action_id"],
        action_ref=row["ref"],
        status=status,
        result=readable(row["result"]),
        error=Failure(type=error_type, message=row["error_message"] or "") if error_type else None,
        attempt=row["attempt"],
        completed_at=row["completed_at"],
        app_id="executor",
        traceparent=row["traceparent"],
    )
