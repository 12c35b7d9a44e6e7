"""Reads ended executions back from the record, as the messages that tell their end again (P4)."""

from collections.abc import Sequence

from common.broker.delivery import Outgoing
from common.database import Database
from common.documents import readable
from common.domain.states import Status, is_terminal
from common.envelopes import completed_message, slot_message
from common.messages import Error, ExecutionCompleted
from executor.sql import query


async def read_ends(
    database: Database, execution_ids: Sequence[int], *, result_bytes_max: int
) -> list[Outgoing]:
    """Return one message per execution.

    A result above `result_bytes_max`, or one that nobody could read, is left out: a slot waits for this.
    """
    messages = []
    for row in await database.fetch(query("ends"), list(execution_ids), result_bytes_max):
        status = Status(row["status"])
        if not is_terminal(status):
            messages.append(slot_message(row["id"], row["attempt"], row["ref"], status))
            continue
        error = (
            Error(type=row["error_type"], message=row["error_message"] or "") if row["error_type"] else None
        )
        completed = ExecutionCompleted(
            execution_id=row["id"],
            action_id=row["action_id"],
            action_ref=row["ref"],
            status=status,
            result=readable(row["result"]),
            error=error,
            attempt=row["attempt"],
            completed_at=row["completed_at"],
        )
        messages.append(completed_message(completed, app_id="executor", traceparent=row["traceparent"]))
    return messages
