"""The messages between the leader and the session of a worker, as values (docs/architecture.md, Workers).

A worker process has an id that is never used again and a random secret. Its session is one life of its
queue: it begins with a hello, and again after each reconnection. Both directions are numbered. The leader
numbers what it sends to a session within its epoch, from 1; a worker refuses lower epochs. A worker numbers
its reports, from 1 over all its sessions, and keeps each until the leader has committed it. Instants are
seconds since 1970 on the sender's clock, durations are seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who sends: the leader accepts a message only with the secret of that worker process."""

    worker_id: str
    session: int
    secret: str = field(repr=False)


# From a worker, to the queue of heartbeats.


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A session begins. It counts once the worker has answered the welcome of this epoch."""

    sender: Sender
    name: str
    pools: tuple[str, ...]
    actions: tuple[str, ...] | None
    """Refs of the actions whose code it has; None: all."""
    concurrency: int
    lease_seconds: float
    epoch_seen: int
    """The highest epoch that it has heard of."""
    is_taking: bool = True
    definitions: tuple[Mapping[str, Any], ...] = ()
    """Actions that the installation gets if it lacks them, also while the worker cannot take offers yet."""
    schedules: tuple[Mapping[str, Any], ...] = ()
    """The same of schedules of these actions."""
    not_ready: str | None = None
    """Why it takes nothing now, other than that it drains."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What is shown of it and decides nothing: host, pid, version, durations, notes, schemas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The worker lives, and has received messages of this epoch up to a number."""

    sender: Sender
    number: int
    epoch_seen: int
    received: int
    """All messages of the leader of `epoch_seen` up to this number have been received."""
    is_taking: bool = True
    not_ready: str | None = None
    """Why it takes nothing now, other than that it drains."""


# From a worker, to the queue of completions: in order, kept until committed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The answer to a welcome: all that the worker holds. The rest was never received."""

    epoch: int
    """Of the welcome."""
    grants: tuple[tuple[int, Grant], ...]
    """Execution ids and grants of all that waits or runs at the worker, or whose end is kept."""


EndStatus: TypeAlias = Literal[
    Status.COMPLETED, Status.FAILED, Status.TIMEOUT, Status.CANCELLED, Status.EXPIRED
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastProgress:
    """The last progress that an attempt reported, at an instant of the worker's clock."""

    at: float
    done: float
    total: float | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """An attempt ended."""

    execution_id: int
    grant: Grant
    status: EndStatus
    result: bytes | None = None
    """JSON text: the leader stores it without parsing it."""
    error: tuple[str, str] | None = None
    """Type and message."""
    is_retryable: bool = False
    delay_seconds: float | None = None
    started_at: float | None = None
    completed_at: float | None = None
    log: str | None = None
    log_start: int = 0
    """How many characters of the log precede `log`; they were published before (`report_wire`)."""
    progress: LastProgress | None = None
    """It may have been published before, and be on another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """An attempt has been running for long enough to be worth a report."""

    execution_id: int
    grant: Grant
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReturned:
    """The worker returns an attempt: it has not started, or was stopped by a drain."""

    execution_id: int
    grant: Grant
    had_started: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """The worker takes no more offers and holds nothing any more. It waits for its earlier reports."""


ReportBody: TypeAlias = Held | AttemptEnded | AttemptStarted | AttemptReturned | Leaving


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One numbered report. `kept_from` is the lowest number that the worker still keeps."""

    sender: Sender
    number: int
    kept_from: int
    epoch_seen: int
    body: ReportBody


# From the leader, to the queue of a session.


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One granted execution, with all that its attempt needs."""

    execution_id: int
    grant: Grant
    attempt: int
    action_ref: str
    parameters: bytes
    """JSON text."""
    priority: int = 3
    expires_in_seconds: float | None = None
    """The rest of its time to live; None: it has none."""
    timeout_seconds: float | None = None
    extra: Mapping[str, Any] | None = None
    """What else the attempt needs, each where there is something to say: `runner`, `entrypoint`, `metadata`,
    `traceparent`, `concurrency_key`, `idempotency_key`, `waited` (seconds since the enqueue) and
    `retries_left`. A document is JSON text at its sender, and parsed at its receiver.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The leader of an epoch knows this session. The worker answers with `Held`."""

    stored: tuple[Mapping[str, Any], ...] = ()
    """Definitions of the actions in its hello that the installation has otherwise: these take precedence."""
    refused: tuple[str, ...] = ()
    """Why definitions in its hello were not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """`execution.scheduled`: offers of one queue, in order, and how many of it may run at once here."""

    queue: str
    at_once: int | None
    """None: no limit."""
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAttempt:
    """`execution.cancel`: stop this attempt, or do not start it."""

    execution_id: int
    grant: Grant
    reason: str
    status: Literal[Status.CANCELLED, Status.TIMEOUT] = Status.CANCELLED
    """What the attempt ends as: `timeout` where the leader enforces what the worker should have done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """`execution.recall`: of this queue nothing up to the barrier starts any more; it comes back."""

    queue: str
    barrier: Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The answer to a heartbeat, sent only while the leadership is certain."""

    heartbeat: int
    committed: int
    """All reports of the worker up to this number are committed; it forgets them."""
    is_draining: bool = False
    """An operator drains this worker: it takes nothing more, and leaves when what runs has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismissed:
    """The answer to a heartbeat of a worker that was lost: it kills what it runs, and registers anew."""


LeaderBody: TypeAlias = Welcome | Offers | CancelAttempt | Recall | Heard | Dismissed


@dataclass(frozen=True, slots=True, kw_only=True)
class ToSession:
    """One numbered message to a session."""

    epoch: int
    number: int
    body: LeaderBody


FromWorker: TypeAlias = Hello | Heartbeat | Report
