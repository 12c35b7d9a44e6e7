"""From which id on the commands of the inbox are read, and what a row of it means.

Rows of decided commands stay for as long as an old snapshot is open, so a poll begins behind them. The
bound passes an id when every transaction that could still commit it has ended: no command is left behind,
however long its transaction takes.
"""

import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

from turnstile.executor.leader.ports import CancelRequest, DefinitionCommand, InboxRow, Request

if TYPE_CHECKING:
    import asyncpg


class InboxBound:
    """The bound of one leadership. A new one begins at the first row."""

    def __init__(self) -> None:
        self.from_id = 0
        self._candidate: tuple[int, frozenset[int]] | None = None

    def read(self, newest_id: int, running: frozenset[int], first_id: int | None) -> None:
        """Note a poll: the newest id that was drawn, who ran after that was read, the first row found."""
        if self._candidate is not None:
            candidate_id, entering = self._candidate
            if entering & running:
                return
            # All that had drawn an id up to this one have ended: what they committed was found or decided.
            end = candidate_id + 1
            self.from_id = max(self.from_id, end if first_id is None else min(first_id, end))
        self._candidate = newest_id, running


def command_of(row: "asyncpg.Record") -> InboxRow:
    """Return a command as a value. The statement that stored it has validated its fields."""
    fields: dict[str, Any] = json.loads(row["body"])
    body: Request | CancelRequest | DefinitionCommand
    match row["kind"]:
        case "request":
            fields["parameters"] = json.dumps(fields["parameters"]).encode()
            fields["request_hash"] = UUID(fields["request_hash"])
            if fields.get("metadata") is not None:
                fields["metadata"] = json.dumps(fields["metadata"]).encode()
            body = Request(**fields)
        case "cancel":
            body = CancelRequest(**fields)
        case _:
            body = DefinitionCommand(**fields)
    return InboxRow(id=row["id"], command_id=UUID(bytes=row["command_id"].bytes), body=body)
