"""What happened in a run, as plain values from four witnesses that none of our services can tidy up.

In: `log` (the database's own triggers), `runs` (the actions themselves), `tap` (a queue on the exchange) and
the submitter. Out: a `Recording`, which `verdict.violations` holds against the promises P1 to P7. Nothing
here decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from turnstile.common.domain.states import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """When and by whom a row was changed."""

    seq: int
    """Its number in the log. Per row, and per line, the order of these is the order of the commits."""
    at: datetime
    """The database's clock when it was written, shortly before the commit."""
    txid: int
    session: str
    """The name that the session gave itself: `turnstile executor`, `turnstile worker` ..."""


class Step(StrEnum):
    """What was done to a row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionMove:
    """A row of `execution` was born, changed its status, attempt or worker, or was touched after its end."""

    stamp: Stamp
    queue_id: int
    execution_id: int
    previous: Status | None
    """None: it was born."""
    status: Status | None
    """None: the row was deleted."""
    attempt: int
    worker_id: str | None
    content: str
    """Result and error, as one text."""
    mark: str | None
    """What the submitter wrote into the request to know it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMove:
    """A row of `slot`; of a deleted one, what it was."""

    stamp: Stamp
    step: Step
    queue_id: int
    execution_id: int
    attempt: int
    worker_id: str | None
    is_over: bool
    """The attempt has ended, and the slot only waits to be settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineMove:
    """A row of `waiting`: somebody stands in line, or has left it."""

    stamp: Stamp
    step: Step
    queue_id: int
    execution_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMove:
    """A queue was born, or its limit or pause changed."""

    stamp: Stamp
    queue_id: int
    limit: int | None
    paused: bool


class WorkerEvent(StrEnum):
    """What became of a worker."""

    REGISTERED = "registered"
    LOST = "lost"
    STOPPED = "stopped"
    FORGOTTEN = "forgotten"
    """Its row was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMove:
    """A worker came or went."""

    stamp: Stamp
    worker_id: str
    event: WorkerEvent
    renewed_at: datetime
    """Its last sign of life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptMove:
    """A row of `attempt`, the history, was written; it is never changed."""

    stamp: Stamp
    step: Step
    execution_id: int
    attempt: int
    worker_id: str
    outcome: str


Move: TypeAlias = ExecutionMove | SlotMove | LineMove | QueueMove | WorkerMove | AttemptMove


@dataclass(frozen=True, slots=True, kw_only=True)
class Physical:
    """One run, as the action itself wrote it down."""

    execution_id: int
    attempt: int
    pid: int
    started_ns: int
    """CLOCK_BOOTTIME."""
    stopped_ns: int | None
    """None: it was killed, or raised, before it could say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One message that the tap heard."""

    type: str
    """`execution.completed` or `execution.status_changed`."""
    execution_id: int
    attempt: int
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """One request, as its submitter knows it, however often it had to be sent."""

    submitter: str
    """Whoever sends one after the other; between two submitters there is no order."""
    number: int
    """Its place among those of its submitter, in the order of their first sending."""
    mark: str
    """Stands in the request's metadata, and nowhere else."""
    confirmed: bool
    """The broker confirmed it, or HTTP answered 2xx."""
    refused: bool = False
    """It must not have been taken: the answer said so, or it lies in the dead letters."""
    execution_id: int | None = None
    """What the answer said, where there was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """All of it, read after everything has drained."""

    moves: Sequence[Move]
    """In the order of their numbers."""
    runs: Sequence[Physical]
    told: Sequence[Told]
    submitted: Sequence[Submitted]
    booted_at: datetime
    """Where CLOCK_BOOTTIME is 0, by the database's clock."""

    def instant(self, boot_ns: int) -> datetime:
        """Return what the database's clock showed when CLOCK_BOOTTIME did."""
        return self.booted_at + timedelta(microseconds=boot_ns / 1000)
