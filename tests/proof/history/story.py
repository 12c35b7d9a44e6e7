"""Histories written by hand, for the rules to be tried on.

In: verbs, each one transaction. Out: a `Recording` of what the triggers, the actions and the tap would have
written. Next: `clean` tells one as it should be, `doctored` breaks it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from tests.proof.history.recording import (
    AttemptMove,
    ExecutionMove,
    LineMove,
    Move,
    Physical,
    QueueMove,
    Recording,
    SlotMove,
    Stamp,
    Step,
    Submitted,
    Told,
    WorkerEvent,
    WorkerMove,
)
from turnstile.common.domain.states import Status, is_terminal
from turnstile.common.messages import COMPLETED

BOOTED_AT: Final = datetime(2026, 1, 1, tzinfo=UTC)
EXECUTOR: Final = "turnstile executor"
WORKER: Final = "turnstile worker"


@dataclass(slots=True)
class _Row:
    queue_id: int
    status: Status
    attempt: int = 0
    worker_id: str | None = None
    mark: str = ""


@dataclass(slots=True)
class Story:
    """Writes a history move by move, each a tenth of a second after the last."""

    moves: list[Move] = field(default_factory=list)
    runs: list[Physical] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    submitted: list[Submitted] = field(default_factory=list)
    _rows: dict[int, _Row] = field(default_factory=dict)
    _txid: int = 0
    _session: str = EXECUTOR
    _starts: dict[int, int] = field(default_factory=dict)
    _renewed_at: datetime = BOOTED_AT

    def recording(self) -> Recording:
        return Recording(
            moves=self.moves,
            runs=self.runs,
            told=self.told,
            submitted=self.submitted,
            booted_at=BOOTED_AT,
        )

    def queue(self, queue_id: int, limit: int | None, *, paused: bool = False) -> None:
        with self._commit():
            self.moves.append(QueueMove(stamp=self._stamp(), queue_id=queue_id, limit=limit, paused=paused))

    def worker(self, worker_id: str, event: WorkerEvent = WorkerEvent.REGISTERED) -> None:
        with self._commit():
            self._worker(worker_id, event)

    def admit(
        self, execution_id: int, queue_id: int, *, delayed: bool = False, granted: bool = False
    ) -> None:
        mark = f"mark {execution_id}"
        with self._commit():
            self._rows[execution_id] = _Row(queue_id, Status.QUEUED, mark=mark)
            self._move(execution_id, None, Status.DELAYED if delayed else Status.QUEUED)
            if not delayed:
                self._line(execution_id, Step.INSERT)
            if granted:
                self._grant(execution_id)
        self.submitted.append(
            Submitted(
                submitter="client",
                number=execution_id,
                mark=mark,
                confirmed=True,
                execution_id=execution_id,
            )
        )

    def wake(self, execution_id: int, *, granted: bool = False) -> None:
        with self._commit():
            self._move(execution_id, Status.DELAYED, Status.QUEUED)
            self._line(execution_id, Step.INSERT)
            if granted:
                self._grant(execution_id)

    def claim(self, execution_id: int, worker_id: str) -> None:
        with self._commit(WORKER):
            self._rows[execution_id].worker_id = worker_id
            self._move(execution_id, Status.SCHEDULED, Status.RUNNING)
            self._slot(execution_id, Step.UPDATE)
        self._starts[execution_id] = self._now_ns() + 1_000_000

    def finish(self, execution_id: int, status: Status = Status.COMPLETED) -> None:
        self._stop(execution_id)
        with self._commit(WORKER):
            self._move(execution_id, Status.RUNNING, status)
            self._slot(execution_id, Step.UPDATE, is_over=True)
            self._history(execution_id, str(status))
        self._tell(execution_id, status)

    def settle(self, execution_id: int, *, then: int | None = None) -> None:
        with self._commit():
            self._slot(execution_id, Step.DELETE, is_over=True)
            if then is not None:
                self._grant(then)

    def lose(self, worker_id: str, execution_id: int) -> None:
        """Lose a worker; what it ran stands at the head again and is granted at once."""
        with self._commit():
            self._worker(worker_id, WorkerEvent.LOST)
            self._history(execution_id, "reclaimed")
            self._rows[execution_id].worker_id = None
            self._move(execution_id, Status.RUNNING, Status.QUEUED)
            self._slot(execution_id, Step.DELETE)
            self._line(execution_id, Step.INSERT)
            self._grant(execution_id)
        self._stop(execution_id, killed=True)

    def grant(self, execution_id: int) -> None:
        """Give a slot to the head of a line, as the watchdog does."""
        with self._commit():
            self._grant(execution_id)

    def cancel(self, execution_id: int) -> None:
        """End what stands in line."""
        with self._commit():
            self._move(execution_id, Status.QUEUED, Status.CANCELLED)
            self._line(execution_id, Step.DELETE)
        self._tell(execution_id, Status.CANCELLED)

    @contextmanager
    def _commit(self, session: str = EXECUTOR) -> Iterator[None]:
        self._txid, self._session = self._txid + 1, session
        yield

    def _stamp(self) -> Stamp:
        seq = len(self.moves) + 1
        return Stamp(
            seq=seq, at=BOOTED_AT + timedelta(seconds=seq / 10), txid=self._txid, session=self._session
        )

    def _now_ns(self) -> int:
        return len(self.moves) * 100_000_000

    def _move(self, execution_id: int, previous: Status | None, status: Status) -> None:
        row = self._rows[execution_id]
        row.status = status
        self.moves.append(
            ExecutionMove(
                stamp=self._stamp(),
                queue_id=row.queue_id,
                execution_id=execution_id,
                previous=previous,
                status=status,
                attempt=row.attempt,
                worker_id=row.worker_id,
                content='["done"]' if is_terminal(status) else "[null]",
                mark=row.mark,
            )
        )

    def _slot(self, execution_id: int, step: Step, *, is_over: bool = False) -> None:
        row = self._rows[execution_id]
        self.moves.append(
            SlotMove(
                stamp=self._stamp(),
                step=step,
                queue_id=row.queue_id,
                execution_id=execution_id,
                attempt=row.attempt,
                worker_id=row.worker_id,
                is_over=is_over,
            )
        )

    def _line(self, execution_id: int, step: Step) -> None:
        queue_id = self._rows[execution_id].queue_id
        self.moves.append(
            LineMove(stamp=self._stamp(), step=step, queue_id=queue_id, execution_id=execution_id)
        )

    def _worker(self, worker_id: str, event: WorkerEvent) -> None:
        stamp = self._stamp()
        if event is WorkerEvent.REGISTERED:
            self._renewed_at = stamp.at
        self.moves.append(
            WorkerMove(stamp=stamp, worker_id=worker_id, event=event, renewed_at=self._renewed_at)
        )

    def _grant(self, execution_id: int) -> None:
        row = self._rows[execution_id]
        row.attempt, row.worker_id = row.attempt + 1, None
        self._move(execution_id, Status.QUEUED, Status.SCHEDULED)
        self._line(execution_id, Step.DELETE)
        self._slot(execution_id, Step.INSERT)

    def _history(self, execution_id: int, outcome: str) -> None:
        row = self._rows[execution_id]
        assert row.worker_id is not None
        self.moves.append(
            AttemptMove(
                stamp=self._stamp(),
                step=Step.INSERT,
                execution_id=execution_id,
                attempt=row.attempt,
                worker_id=row.worker_id,
                outcome=outcome,
            )
        )

    def _stop(self, execution_id: int, *, killed: bool = False) -> None:
        row = self._rows[execution_id]
        self.runs.append(
            Physical(
                execution_id=execution_id,
                attempt=row.attempt - killed,
                pid=1,
                started_ns=self._starts.pop(execution_id),
                stopped_ns=None if killed else self._now_ns() + 50_000_000,
            )
        )

    def _tell(self, execution_id: int, status: Status) -> None:
        attempt = self._rows[execution_id].attempt
        if is_terminal(status):
            self.told.append(Told(type=COMPLETED, execution_id=execution_id, attempt=attempt, status=status))
