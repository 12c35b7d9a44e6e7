"""Histories written by hand, as the triggers, the actions and the recorder would write them.

`correct_history` breaks no promise; `test_rules` breaks it in every way.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.proof.history.recording import (
    ActionEvent,
    AttemptEvent,
    Event,
    ExecutionEvent,
    PoolEvent,
    Published,
    QueueEvent,
    Recording,
    Run,
    SlotEvent,
    Stamp,
    Step,
    Submitted,
    WaitingEvent,
    WorkerChange,
    WorkerEvent,
)
from tests.proof.history.replay import EXECUTOR
from turnstile.common.broker.topology import EXECUTION_COMPLETED
from turnstile.common.domain.states import Status, is_terminal

A, B, FREE = 1, 2, 3
"""Queues."""
BOOTED_AT: Final = datetime(2026, 1, 1, tzinfo=UTC)
WORKER: Final = "turnstile worker"


@dataclass(slots=True)
class _Row:
    queue_id: int
    status: Status
    attempt: int = 0
    worker_id: str | None = None
    tag: str = ""


@dataclass(slots=True)
class HistoryWriter:
    """Writes events a tenth of a second apart; each verb is one transaction."""

    events: list[Event] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    published: list[Published] = field(default_factory=list)
    submitted: list[Submitted] = field(default_factory=list)
    _rows: dict[int, _Row] = field(default_factory=dict)
    _txid: int = 0
    _session: str = EXECUTOR
    _starts: dict[int, int] = field(default_factory=dict)
    _renewed_at: datetime = BOOTED_AT

    def recording(self) -> Recording:
        return Recording(
            events=self.events,
            runs=self.runs,
            published=self.published,
            submitted=self.submitted,
            booted_at=BOOTED_AT,
        )

    def action(self, ref: str, *, pool: str = "default", is_listed: bool = True) -> None:
        """Define an action; each letter is one."""
        with self._commit():
            self.events.append(
                ActionEvent(stamp=self._stamp(), action_id=ord(ref), ref=ref, pool=pool, is_listed=is_listed)
            )

    def queue(self, queue_id: int, limit: int | None, *, paused: bool = False, of: str | None = None) -> None:
        with self._commit():
            action_id = None if of is None else ord(of)
            self.events.append(
                QueueEvent(
                    stamp=self._stamp(), queue_id=queue_id, limit=limit, paused=paused, action_id=action_id
                )
            )

    def pool(self, *, paused: bool, name: str = "default") -> None:
        """Pause or resume a pool."""
        with self._commit():
            self.events.append(PoolEvent(stamp=self._stamp(), name=name, paused=paused))

    def worker(
        self,
        worker_id: str,
        change: WorkerChange = WorkerChange.REGISTERED,
        *,
        pools: Sequence[str] = ("default",),
        capacity: int = 4,
        serves: Sequence[str] | None = None,
    ) -> None:
        with self._commit():
            self._worker(worker_id, change, pools=pools, concurrency=capacity, served_refs=serves)

    def admit(
        self, execution_id: int, queue_id: int, *, delayed: bool = False, granted: bool = False
    ) -> None:
        tag = f"tag {execution_id}"
        with self._commit():
            self._rows[execution_id] = _Row(queue_id, Status.QUEUED, tag=tag)
            self._execution(execution_id, None, Status.DELAYED if delayed else Status.QUEUED)
            if not delayed:
                self._waiting(execution_id, Step.INSERT)
            if granted:
                self._grant(execution_id)
        self.submitted.append(
            Submitted(
                submitter="client",
                number=execution_id,
                tag=tag,
                confirmed=True,
                execution_id=execution_id,
            )
        )

    def wake(self, execution_id: int, *, granted: bool = False) -> None:
        with self._commit():
            self._execution(execution_id, Status.DELAYED, Status.QUEUED)
            self._waiting(execution_id, Step.INSERT)
            if granted:
                self._grant(execution_id)

    def claim(self, execution_id: int, worker_id: str) -> None:
        with self._commit(WORKER):
            self._rows[execution_id].worker_id = worker_id
            self._execution(execution_id, Status.SCHEDULED, Status.RUNNING)
            self._slot(execution_id, Step.UPDATE)
        self._starts[execution_id] = self._now_ns() + 1_000_000

    def finish(self, execution_id: int, status: Status = Status.COMPLETED) -> None:
        self._stop(execution_id)
        with self._commit(WORKER):
            self._execution(execution_id, Status.RUNNING, status)
            self._slot(execution_id, Step.UPDATE, is_over=True)
            if not is_terminal(status):
                self._attempt(execution_id, "retried")
        self._publish(execution_id, status)

    def settle(self, execution_id: int, *, then: int | None = None) -> None:
        with self._commit():
            self._slot(execution_id, Step.DELETE, is_over=True)
            if then is not None:
                self._grant(then)

    def reclaim(self, worker_id: str, execution_id: int) -> None:
        """Mark a worker as lost; what it ran is queued again and granted at once."""
        with self._commit():
            self._worker(worker_id, WorkerChange.LOST)
            self._attempt(execution_id, "reclaimed")
            self._rows[execution_id].worker_id = None
            self._execution(execution_id, Status.RUNNING, Status.QUEUED)
            self._slot(execution_id, Step.DELETE)
            self._waiting(execution_id, Step.INSERT)
            self._grant(execution_id)
        self._stop(execution_id, killed=True)

    def grant(self, execution_id: int) -> None:
        """Grant a slot to the head of a queue, as the watchdog does."""
        with self._commit():
            self._grant(execution_id)

    def cancel(self, execution_id: int) -> None:
        """Cancel what is queued."""
        with self._commit():
            self._execution(execution_id, Status.QUEUED, Status.CANCELLED)
            self._waiting(execution_id, Step.DELETE)
        self._publish(execution_id, Status.CANCELLED)

    @contextmanager
    def _commit(self, session: str = EXECUTOR) -> Iterator[None]:
        self._txid, self._session = self._txid + 1, session
        yield

    def _stamp(self) -> Stamp:
        seq = len(self.events) + 1
        return Stamp(
            seq=seq, at=BOOTED_AT + timedelta(seconds=seq / 10), txid=self._txid, session=self._session
        )

    def _now_ns(self) -> int:
        return len(self.events) * 100_000_000

    def _row(self, execution_id: int, kind: type[Event], **fields: Any) -> None:
        """Append an event with the columns of the execution that this kind of event has."""
        row = self._rows[execution_id]
        columns: dict[str, Any] = {
            "queue_id": row.queue_id,
            "execution_id": execution_id,
            "attempt": row.attempt,
            "worker_id": row.worker_id,
            "tag": row.tag,
        }
        own = {name: value for name, value in columns.items() if name in kind.__dataclass_fields__}
        self.events.append(kind(stamp=self._stamp(), **own, **fields))

    def _execution(self, execution_id: int, previous: Status | None, status: Status) -> None:
        self._rows[execution_id].status = status
        content = '["done"]' if is_terminal(status) else "[null]"
        self._row(execution_id, ExecutionEvent, previous=previous, status=status, content=content)

    def _slot(self, execution_id: int, step: Step, *, is_over: bool = False) -> None:
        self._row(execution_id, SlotEvent, step=step, is_over=is_over)

    def _waiting(self, execution_id: int, step: Step) -> None:
        self._row(execution_id, WaitingEvent, step=step)

    def _attempt(self, execution_id: int, outcome: str) -> None:
        self._row(execution_id, AttemptEvent, step=Step.INSERT, outcome=outcome)

    def _worker(self, worker_id: str, change: WorkerChange, **registered: Any) -> None:
        stamp = self._stamp()
        if change is WorkerChange.REGISTERED:
            self._renewed_at = stamp.at
        self.events.append(
            WorkerEvent(
                stamp=stamp,
                worker_id=worker_id,
                change=change,
                renewed_at=self._renewed_at,
                **{"pools": ("default",), **registered},
            )
        )

    def _grant(self, execution_id: int) -> None:
        row = self._rows[execution_id]
        row.attempt, row.worker_id = row.attempt + 1, None
        self._execution(execution_id, Status.QUEUED, Status.SCHEDULED)
        self._waiting(execution_id, Step.DELETE)
        self._slot(execution_id, Step.INSERT)

    def _stop(self, execution_id: int, *, killed: bool = False) -> None:
        row = self._rows[execution_id]
        self.runs.append(
            Run(
                execution_id=execution_id,
                attempt=row.attempt - killed,
                pid=1,
                started_ns=self._starts.pop(execution_id),
                stopped_ns=None if killed else self._now_ns() + 50_000_000,
            )
        )

    def _publish(self, execution_id: int, status: Status) -> None:
        attempt = self._rows[execution_id].attempt
        if is_terminal(status):
            self.published.append(
                Published(type=EXECUTION_COMPLETED, execution_id=execution_id, attempt=attempt, status=status)
            )


def correct_history() -> Recording:
    """Return a history with and without limits, a lost worker, and every kind of end and return."""
    writer = HistoryWriter()
    for queue_id, limit in ((A, 1), (B, 1), (FREE, None)):
        writer.queue(queue_id, limit)
    writer.worker("w1")
    writer.worker("w2")
    writer.admit(1, A, granted=True)
    writer.claim(1, "w1")
    writer.admit(2, A)
    writer.admit(3, A)
    writer.admit(4, B, granted=True)
    writer.claim(4, "w2")
    writer.cancel(2)
    writer.finish(1)
    writer.settle(1, then=3)
    writer.claim(3, "w1")
    writer.reclaim("w1", 3)
    writer.claim(3, "w2")
    writer.finish(3, Status.FAILED)
    writer.settle(3)
    writer.finish(4, Status.DELAYED)
    writer.settle(4)
    writer.wake(4, granted=True)
    writer.claim(4, "w2")
    writer.admit(5, B)
    writer.finish(4, Status.TIMEOUT)
    writer.settle(4, then=5)
    writer.admit(6, FREE, granted=True)
    writer.admit(7, FREE, granted=True)
    for execution_id in (5, 7, 6):
        writer.claim(execution_id, "w2")
    for execution_id in (6, 5, 7):
        writer.finish(execution_id)
        writer.settle(execution_id)
    writer.worker("w2", WorkerChange.STOPPED)
    return writer.recording()
