"""Events for listeners: `execution.completed` of every end, at least once (P4).

An event is published after the commit of its end. What is not confirmed in time is stored by the next turn,
so no input waits for a slow listener; an end that no worker saw is stored in its own turn. A turn names
what it ended, and a new leader publishes the events of the last turn once more. Memory has a bounded part of
what is stored; the rest is read again, in order, when its turn comes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from turnstile.common.domain.states import Status
from turnstile.executor.leader.ports import Outcome, StatusChanged
from turnstile.executor.leader.records import EndedRow, EventRow
from turnstile.executor.queue_manager.decisions import Admitted, Decisions, Finished, Granted, Moved

_BATCH: Final = 500
RESULT_BYTES_MAX: Final = 64 * 1024
KEPT_MAX: Final = 5_000
_KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""What is kept in memory of stored events; one event may be larger."""


class Outbox:
    """Events that are stored until they are confirmed."""

    def __init__(
        self, rows: Sequence[EventRow], newest_id: int = 0, *, result_bytes_max: int = RESULT_BYTES_MAX
    ) -> None:
        """Begin with the first stored events; `newest_id` is that of the last one that is stored.

        A larger result than `result_bytes_max` is not stored: it would not be published.
        """
        self._result_bytes_max = result_bytes_max
        self.rows: dict[int, EventRow] = {}
        """Those that memory has, in order."""
        self._bytes = 0
        self._read_id = 0
        """Up to here memory has or had all of them."""
        self._newest_id = max(newest_id, rows[-1].id if rows else 0)
        """The last one that was given away, perhaps by the present turn."""
        self._to_store: list[Mapping[str, Any]] = []
        self._confirmed: list[int] = []
        self.add(rows)

    def store(self, bodies: Iterable[Mapping[str, Any]]) -> None:
        """Store events with the next turn."""
        for body in bodies:
            result = body["result"]
            is_large = result is not None and len(result.encode()) > self._result_bytes_max
            self._to_store.append({**body, "result": None} if is_large else body)

    def take_new(self) -> list[EventRow]:
        """Return the rows that this turn inserts; they are published after its commit."""
        found: list[EventRow] = []
        for body in self._to_store:
            found.append(EventRow(id=self._newest_id + len(found) + 1, body=json.dumps(body).encode()))
        self._to_store = []
        has_all = not self.has_unread
        self._newest_id += len(found)
        if has_all:
            # Else they are read behind the others.
            self.add(found)
        return found

    def take_confirmed(self) -> list[int]:
        """Return the rows that this turn deletes."""
        found, self._confirmed = self._confirmed, []
        return found

    @property
    def has_more(self) -> bool:
        """Whether another turn has something to write."""
        return bool(self._to_store or self._confirmed)

    @property
    def has_unread(self) -> bool:
        """Whether events are stored that memory does not have."""
        return self._read_id < self._newest_id

    @property
    def read_id(self) -> int:
        """The events behind this one are read next."""
        return self._read_id

    def add(self, rows: Iterable[EventRow]) -> None:
        """Keep stored events that follow those that memory has, as many as fit."""
        for row in rows:
            if self.rows and (len(self.rows) >= KEPT_MAX or self._bytes + len(row.body) > _KEPT_BYTES_MAX):
                return
            self.rows[row.id] = row
            self._bytes += len(row.body)
            self._read_id = row.id

    def first(self) -> list[EventRow]:
        """Return the first stored events."""
        return list(islice(self.rows.values(), _BATCH))

    def confirm(self, rows: Iterable[EventRow]) -> None:
        """Forget stored events that have been published."""
        for row in rows:
            if self.rows.pop(row.id, None) is not None:
                self._bytes -= len(row.body)
                self._confirmed.append(row.id)


def event_of(
    finished: Finished, row: EndedRow, *, action_id: int | None, traceparent: str | None
) -> Mapping[str, Any]:
    """Return the body of `execution.completed` for an end that this turn decided."""
    return _body((finished.queue.action.ref, action_id), row.id, row, traceparent)


def event_of_outcome(outcome: Outcome, *, action_id: int | None) -> Mapping[str, Any]:
    """Return the body of `execution.completed` for an end that was read."""
    return _body((outcome.action_ref, action_id), outcome.execution_id, outcome, outcome.traceparent)


def _body(
    action: tuple[str, int | None], execution_id: int, end: EndedRow | Outcome, traceparent: str | None
) -> Mapping[str, Any]:
    return {
        "type": "execution.completed", "execution_id": execution_id, "action_ref": action[0],
        "action_id": action[1], "status": str(end.status), "attempt": end.attempt,
        "completed_at": end.completed_at, "result": None if end.result is None else end.result.decode(),
        "error": None if end.error is None else {"type": end.error[0], "message": end.error[1]},
        "traceparent": traceparent,
    }  # fmt: skip


def changes_of(out: Decisions, ended: Sequence[EndedRow]) -> Iterator[StatusChanged]:
    """Yield the changes of a turn; `ended` is parallel to what finished."""
    for new in out.admitted:
        status = Status.QUEUED if new.due_at is None else Status.DELAYED
        yield _change(new, None, status, 0, out.now)
    for each in out.moved:
        yield _change(each, each.previous, each.status, each.attempt, each.at)
    for finished, row in zip(out.finished, ended, strict=True):
        yield from _end(finished, row)
    for granted in out.granted:
        yield _change(granted, Status.QUEUED, Status.SCHEDULED, granted.attempt, out.now)


def _end(each: Finished, row: EndedRow) -> Iterator[StatusChanged]:
    previous = each.previous
    if previous is Status.SCHEDULED and each.started_at is not None:
        # A short attempt was not reported as started.
        yield _change(each, previous, Status.RUNNING, each.attempt, each.started_at)
        previous = Status.RUNNING
    yield _change(each, previous, row.status, each.attempt, each.completed_at)


def _change(
    of: Admitted | Moved | Finished | Granted,
    previous: Status | None,
    status: Status,
    attempt: int,
    at: float,
) -> StatusChanged:
    return StatusChanged(
        execution_id=of.id, action_ref=of.queue.action.ref, status=status, previous_status=previous,
        attempt=attempt, changed_at=datetime.fromtimestamp(at, UTC),
    )  # fmt: skip
