"""What happened in a run, as plain values from four witnesses that are independent of the services.

In: `event_log` (triggers in the database), `run_log` (the actions), `recorder` (a queue on the exchange) and
the submitter. Out: a `Recording`, which `checker.violations` holds against the promises P1 to P7, with
`Bounds` on time. Nothing here decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from turnstile.common.domain.states import Status
from turnstile.stress.check.gates import longest_outside

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def nanoseconds(at: datetime) -> int:
    """Return an instant in nanoseconds since 1970."""
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000


def moment(at: int) -> datetime:
    """Return an instant that is given in nanoseconds."""
    return _EPOCH + timedelta(microseconds=at // 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """When, and in which session and transaction, a row was changed."""

    seq: int
    """Number in the log. For each row, and for each queue, it follows the order of the commits."""
    at: datetime
    """The database's clock at the change, shortly before the commit."""
    txid: int
    session: str
    """The session's application name: `turnstile executor`, `turnstile worker` ..."""


class Step(StrEnum):
    """The statement that changed a row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionEvent:
    """A row of `execution` was inserted, changed status, attempt or worker, or changed after its end."""

    stamp: Stamp
    queue_id: int
    execution_id: int
    previous: Status | None
    """None: the row was inserted."""
    status: Status | None
    """None: the row was deleted."""
    attempt: int
    worker_id: str | None
    content: str
    """Result and error, as one text."""
    tag: str | None
    """The submitter's own name for the request, from its metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotEvent:
    """A row of `slot`; of a deleted row, its last state."""

    stamp: Stamp
    step: Step
    queue_id: int
    execution_id: int
    attempt: int
    worker_id: str | None
    is_over: bool
    """The attempt has ended; the slot waits to be settled."""
    has_gates: bool = False
    """It passed gates after its queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingEvent:
    """A row of `waiting`: an execution joined its queue or the line of a later gate, or left it."""

    stamp: Stamp
    step: Step
    queue_id: int
    execution_id: int
    is_at_gate: bool = False
    """The line is that of a gate after the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEvent:
    """A queue was created, or its limit or pause changed."""

    stamp: Stamp
    queue_id: int
    limit: int | None
    paused: bool
    action_id: int | None = None
    """None: the log says nothing of its action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionEvent:
    """An action was defined, or moved to another pool or kind."""

    stamp: Stamp
    action_id: int
    ref: str
    pool: str
    is_listed: bool
    """Only workers that list it can run it; all others run it by its entrypoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEvent:
    """A pool was paused or resumed."""

    stamp: Stamp
    name: str
    paused: bool


class WorkerChange(StrEnum):
    """A transition of a worker."""

    REGISTERED = "registered"
    DRAINED = "drained"
    """It takes no offers from now on."""
    LOST = "lost"
    STOPPED = "stopped"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEvent:
    """A row of `worker` was inserted, deleted, or marked as draining, lost or stopped."""

    stamp: Stamp
    worker_id: str
    change: WorkerChange
    renewed_at: datetime
    """Its last heartbeat."""
    pools: Sequence[str] = ()
    concurrency: int = 0
    served_refs: Sequence[str] | None = None
    """The actions whose code it has. None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEvent:
    """A row of `attempt` was written; it must never change."""

    stamp: Stamp
    step: Step
    execution_id: int
    attempt: int
    worker_id: str
    outcome: str


Event: TypeAlias = (
    ExecutionEvent
    | SlotEvent
    | WaitingEvent
    | QueueEvent
    | ActionEvent
    | PoolEvent
    | WorkerEvent
    | AttemptEvent
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One physical run, as the action recorded it."""

    execution_id: int
    attempt: int
    pid: int
    started_ns: int
    """CLOCK_BOOTTIME."""
    stopped_ns: int | None
    """None: it was killed, or raised, before it recorded its stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One message that the recorder's queue received."""

    type: str
    """`execution.completed` or `execution.status_changed`."""
    execution_id: int
    attempt: int
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """One request, as its submitter knows it, however often it was sent."""

    submitter: str
    """A sequential sender; between two submitters there is no order."""
    number: int
    """Position among the requests of its submitter, in the order of their first sending."""
    tag: str
    """In the request's metadata, and nowhere else."""
    confirmed: bool
    """The broker confirmed it, or HTTP answered 2xx."""
    refused: bool = False
    """The answer rejected it, or it is a dead letter: it must not be an execution."""
    execution_id: int | None = None
    """From the answer, where there was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Everything that was recorded, read after the system has drained."""

    events: Sequence[Event]
    """In the order of their numbers."""
    runs: Sequence[Run]
    published: Sequence[Published]
    submitted: Sequence[Submitted]
    booted_at: datetime
    """Where CLOCK_BOOTTIME is 0, by the database's clock."""

    def instant(self, boot_ns: int) -> int:
        """Convert a CLOCK_BOOTTIME value to nanoseconds of the database's clock."""
        return nanoseconds(self.booted_at) + boot_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The time of a deliberate fault and of the recovery after it; bounds do not count there."""

    began_at: datetime
    ended_at: datetime
    what: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Upper bounds on durations, outside all windows."""

    idle_seconds: float
    """A free slot beside a runnable waiting execution (P7)."""
    leak_seconds: float
    """From the end of an attempt until its slot is free (P4)."""
    reclaim_seconds: float
    """From the last heartbeat of a lost worker until its work is reclaimed (P7)."""
    overlap_seconds: float
    """How long a run may continue after its attempt was reclaimed: the window of a partitioned worker."""
    windows: Sequence[Window] = ()

    def excused(self) -> list[tuple[int, int]]:
        """Return the windows in nanoseconds, in the order of their beginnings."""
        return sorted((nanoseconds(w.began_at), nanoseconds(w.ended_at)) for w in self.windows)

    def seconds_outside(self, began_at: datetime, ended_at: datetime) -> float:
        """Return the longest part of a period outside all windows."""
        return longest_outside(nanoseconds(began_at), nanoseconds(ended_at), self.excused()) / 1e9

    def overlap_until(self, ended_at: int) -> int:
        """Return until when a run may continue that was reclaimed at this instant; in nanoseconds."""
        allowed_ns = round(self.overlap_seconds * 1e9)
        until = ended_at + allowed_ns
        for begins, ends in self.excused():
            if begins <= until:
                until = max(until, ends + allowed_ns)
        return until


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken promise, with its queue or execution."""

    promise: str
    """`P1` to `P7`, or `P11` to `P14`."""
    what: str
    at: datetime | None = None
    queue_id: int | None = None
    execution_id: int | None = None

    def __str__(self) -> str:
        ids = (("queue", self.queue_id), ("execution", self.execution_id))
        where = [f"{name} {value}" for name, value in ids if value is not None]
        when = [] if self.at is None else [f"at {self.at:%H:%M:%S.%f}"]
        return f"{self.promise}: {self.what} ({', '.join(where + when)})"
