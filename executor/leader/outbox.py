"""Events for listeners: `execution.completed` of every end, at least once (P4).

An event is published after the commit of its end. What is not confirmed in time is stored by the next turn,
so no input waits for a slow listener; an end that no worker saw is stored in its own turn. A turn names
what it ended, and a new leader publishes the events of the last turn once more.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

from turnstile.executor.leader.ports import Outcome
from turnstile.executor.leader.records import EndedRow, EventRow
from turnstile.executor.queue_manager.decisions import Finished

_BATCH: Final = 500


class Outbox:
    """Events that are stored until they are confirmed."""

    def __init__(self, rows: Iterable[EventRow]) -> None:
        self.rows = {row.id: row for row in rows}
        self._next = max(self.rows, default=0) + 1
        self._to_store: list[Mapping[str, Any]] = []
        self._confirmed: list[int] = []

    def store(self, bodies: Iterable[Mapping[str, Any]]) -> None:
        """Store events with the next turn."""
        self._to_store.extend(bodies)

    def take_new(self) -> list[EventRow]:
        """Return the rows that this turn inserts; they are published after its commit."""
        found = []
        for body in self._to_store:
            found.append(EventRow(id=self._next, body=json.dumps(body).encode()))
            self._next += 1
        self._to_store = []
        self.rows.update((row.id, row) for row in found)
        return found

    def take_confirmed(self) -> list[int]:
        """Return the rows that this turn deletes."""
        found, self._confirmed = self._confirmed, []
        return found

    @property
    def has_more(self) -> bool:
        """Whether another turn has something to write."""
        return bool(self._to_store or self._confirmed)

    def first(self) -> list[EventRow]:
        """Return the first stored events."""
        return list(islice(self.rows.values(), _BATCH))

    def confirm(self, rows: Iterable[EventRow]) -> None:
        """Forget stored events that have been published."""
        for row in rows:
            if self.rows.pop(row.id, None) is not None:
                self._confirmed.append(row.id)


def event_of(finished: Finished, row: EndedRow) -> Mapping[str, Any]:
    """Return the body of `execution.completed` for an end that this turn decided."""
    return _body(finished.queue.action.ref, row.id, row)


def event_of_outcome(outcome: Outcome) -> Mapping[str, Any]:
    """Return the body of `execution.completed` for an end that was read."""
    return _body(outcome.action_ref, outcome.execution_id, outcome)


def _body(action_ref: str, execution_id: int, end: EndedRow | Outcome) -> Mapping[str, Any]:
    return {
        "type": "execution.completed", "execution_id": execution_id, "action_ref": action_ref,
        "status": str(end.status), "attempt": end.attempt, "completed_at": end.completed_at,
        "result": None if end.result is None else end.result.decode(),
        "error": None if end.error is None else {"type": end.error[0], "message": end.error[1]},
    }  # fmt: skip
