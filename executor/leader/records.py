"""What a turn writes and what a load finds, as values. Instants are seconds since 1970, durations seconds.

Every row is written by its key. What an execution that lives for less than a second needs is one row,
inserted with its admission and updated once at its end, and one row per worker and turn for its grant.
Everything else is written when it differs from that: a `WaitingRow` for what has waited for longer, a
`LiveRow` for what has a past, is delayed, runs long, or holds units. Small values that many turns change
(totals, tags, starts of rates) travel in the row of the turn and are gathered by a checkpoint, so no row is
updated by every turn (P15).
"""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

import msgspec

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager.decisions import Passage, Waited


class AdmittedRow(msgspec.Struct, frozen=True, kw_only=True):
    """Inserted at admission: the whole request. JSON is text."""

    id: int
    action_ref: str
    key: str
    priority: int
    status: Literal[Status.QUEUED, Status.DELAYED]
    created_at: float
    run_at: float | None
    expires_at: float | None
    timeout_seconds: float | None
    parameters: bytes
    request_hash: UUID
    delivery_key: UUID | None
    """Of the message that brought it; None: it came in another way."""
    idempotency_key: str | None = None
    callback_url: str | None = None
    metadata: bytes | None = None
    traceparent: str | None = None
    retry_of: int | None = None
    body_id: UUID | None = None
    """The row of `large_body` that has its parameters and metadata."""


class EndedRow(msgspec.Struct, frozen=True, kw_only=True):
    """Updated once, at the end."""

    id: int
    status: Status
    attempt: int
    failures: int
    reclaims: int
    worker_id: str | None
    queued_at: float
    scheduled_at: float | None
    started_at: float | None
    completed_at: float
    result: bytes | None
    error: tuple[str, str] | None
    passages: tuple[Passage | Waited, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """An attempt that was not the last one."""

    execution_id: int
    attempt: int
    outcome: str
    worker_id: str
    scheduled_at: float
    started_at: float | None
    ended_at: float
    error: tuple[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """The last piece of the log of an attempt, which came with its end."""

    execution_id: int
    attempt: int
    start: int
    """How many characters precede it."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRow:
    """The last progress of an attempt, which came with its end."""

    execution_id: int
    attempt: int
    at: float
    done: float
    total: float | None
    message: str | None


class WaitingRow(msgspec.Struct, frozen=True, kw_only=True):
    """An execution that has not ended, and is older than the low id."""

    id: int
    action_ref: str
    key: str
    priority: int
    queued_at: float
    expires_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWaiting:
    """Many executions of one queue that wait plainly, in the order of their ids: three parallel arrays."""

    action_ref: str
    key: str
    priority: int
    ids: "array[int]"
    queued_at: "array[float]"
    expires_at: "array[float]"
    """inf: it does not expire."""


class GrantRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker was granted in one turn. Its key is the epoch and the first counter."""

    epoch: int
    counter: int
    worker_id: str
    granted_at: float
    execution_ids: tuple[int, ...]
    counters: tuple[int, ...]
    """The counter of each grant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    """All about an execution that does more than wait or run after its first grant."""

    id: int
    action_ref: str
    key: str
    priority: int
    status: Status
    attempt: int
    failures: int
    reclaims: int
    queued_at: float
    expires_at: float | None
    due_at: float | None
    ttl_seconds: float | None
    timeout_seconds: float | None
    cancel_reason: str | None
    cancel_requested_at: float | None = None
    grant: Grant | None
    worker_id: str | None
    scheduled_at: float | None
    started_at: float | None
    held: tuple[tuple[str, int], ...]
    """Resources and units that it holds, also where its action uses others by now."""
    is_holding: bool
    """It holds them and still waits."""
    is_impatient: bool
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A worker that may hold something, or one that is gone."""

    worker_id: str
    session: int
    secret_hash: bytes
    name: str
    pools: tuple[str, ...]
    actions: tuple[str, ...] | None
    concurrency: int
    lease_seconds: float
    is_taking: bool
    is_draining: bool = False
    """An operator asked for it."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """As in its hello; `schemas` has the hashes of its versions of the code of actions."""
    not_ready: str | None = None
    """Why it takes nothing, other than that it drains."""
    draining_at: float | None = None
    draining_count: int | None = None
    """What it held when it was asked to drain."""
    registered_at: float = 0.0
    heard_at: float = 0.0
    """Its last heartbeat, as of when the row was written."""
    gone_at: float | None = None
    """No load finds it any more."""
    gone_why: Literal["stopped", "lost"] | None = None
    held_ids: tuple[int, ...] | None = None
    """What it held when it was gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionRow:
    """An action, key, resource, pool or schedule from this turn on. `body` is its JSON; None: it was deleted.

    `code` has the schemas that workers derived from the code of an action.
    """

    kind: Literal["action", "key", "resource", "pool", "schedule", "code"]
    name: str
    body: Mapping[str, Any] | None
    changed_by: Mapping[str, Any] | None = None
    """Who changed it."""


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided of a schedule. Instants are seconds since 1970."""

    name: str
    decided_at: int
    """No occurrence up to this instant is decided again."""
    wake_at: float | None = None
    """When the next one is due; None: never."""
    execution_id: int | None = None
    """That of the last occurrence that was admitted."""
    admitted: int = 0
    skipped: int = 0
    """Because the one before had not ended."""
    refused: int = 0
    missed_at: int | None = None
    """The last occurrence that came while no executor led, and that `catch_up` left out."""
    problem: str | None = None
    """Why the last occurrence was refused, or why there is none any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """What an operator did to one subject, for the audit log: written in the transaction of the change."""

    verb: str
    subject_kind: str
    subject: str
    action_ref: str | None
    changed_by: Mapping[str, Any] | None
    before: Mapping[str, Any]
    after: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class MinuteRow:
    """What executions of an action did in one minute, as one leader counted it: it grows until then."""

    at: float
    """When the minute began."""
    action_ref: str
    epoch: int
    admitted: int = 0
    started: int = 0
    ended: Counter[Status] = field(default_factory=Counter)
    slot_seconds: float = 0.0
    """The time during which slots were in use, added up."""
    waiting: int = 0
    """Histogram of the times from the first enqueue to the first start."""
    running: int = 0
    """Histogram of the durations of the last attempts of what ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """A message that must be published although its input is acknowledged: kept until it is confirmed."""

    id: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyCancelRow:
    """A cancel of something that is not known yet."""

    id: int
    execution_id: int | None
    idempotency_key: str | None
    reason: str
    kept_until: float
    properties: str | None = None
    """Of its message, for its dead letter: JSON; None: it came in another way."""


class SingletonRow(msgspec.Struct, frozen=True, kw_only=True):
    """A living execution that was admitted as a singleton."""

    execution_id: int
    action_ref: str
    singleton: str
    key: str
    """Of its queue, as the rest."""
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockChange:
    """The virtual time of a gate and priority, and finish tags of flows that passed; None: forgotten."""

    gate: str
    priority: int
    virtual: int
    finish: Mapping[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Small changes of one turn, in its row until the next checkpoint."""

    totals: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By action: how many were enqueued and completed."""
    clocks: tuple[ClockChange, ...] = ()
    starts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By rate: instants of grants."""
    ended: tuple[int, ...] = ()
    """What workers ended: the events of the newest turn may not be published yet, and those of earlier ones
    are published or stored."""

    def __bool__(self) -> bool:
        return bool(self.totals or self.clocks or self.starts or self.ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All of what journals change, as it is after this turn. Earlier journals mean nothing any more."""

    totals: Mapping[str, tuple[int, int]]
    """By action: since it was first defined."""
    clocks: tuple[ClockChange, ...]
    starts: Mapping[str, tuple[float, ...]]
    ended: tuple[int, ...] = ()
    """As in `Journal`, of the turn that wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One transaction. It writes nothing unless this executor leads under this epoch."""

    epoch: int
    number: int
    """Counted within the epoch, without gaps."""
    at: float
    admitted: Sequence[AdmittedRow] = ()
    ended: Sequence[EndedRow] = ()
    attempts: Sequence[AttemptRow] = ()
    logs: Sequence[LogRow] = ()
    progress: Sequence[ProgressRow] = ()
    granted: Sequence[GrantRow] = ()
    grants_over: Sequence[tuple[int, int]] = ()
    """Epoch and counter of grant rows whose executions have all ended or been granted anew."""
    live: Sequence[LiveRow] = ()
    live_over: Sequence[int] = ()
    waiting: Sequence[WaitingRow] = ()
    waiting_over: Sequence[int] = ()
    low_id: int | None = None
    """From now on what has not ended and has a smaller id has a `WaitingRow` or a `LiveRow`."""
    reserved_id: int | None = None
    """Ids below this one may be given to executions."""
    workers: Sequence[WorkerRow] = ()
    definitions: Sequence[DefinitionRow] = ()
    schedules: Sequence[ScheduleRow] = ()
    schedules_over: Sequence[str] = ()
    action_ids: Sequence[tuple[str, int]] = ()
    """Names of new actions and their ids, which stay, also when an action is deleted."""
    audit: Sequence[AuditRow] = ()
    events: Sequence[EventRow] = ()
    events_over: Sequence[int] = ()
    early_cancels: Sequence[EarlyCancelRow] = ()
    early_cancels_over: Sequence[int] = ()
    singletons: Sequence[SingletonRow] = ()
    singletons_over: Sequence[int] = ()
    inbox_begun: Sequence[tuple[UUID, int]] = ()
    """Deletions that later turns go on with, and how many executions they have cancelled by now."""
    bodies_over: Sequence[UUID] = ()
    """Large bodies that this turn has used, or has no use for: their rows are deleted."""
    inbox_over: Sequence[int] = ()
    """Commands that were decided: their rows are deleted."""
    answers: Sequence[tuple[UUID, bytes]] = ()
    """Command ids and answers, kept for a while: the repetition of a command finds the answer."""
    outcomes: Sequence[tuple[UUID, bytes]] = ()
    """Answers to submissions that no other row shows; kept for a week."""
    minutes: Sequence[MinuteRow] = ()
    """Minutes that are over."""
    journal: Journal = field(default_factory=Journal)
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Everything that the last commit left, read in one snapshot after the epoch was raised."""

    epoch: int
    now: float
    """The database's clock."""
    reserved_id: int
    low_id: int
    definitions: Sequence[DefinitionRow]
    waiting: Sequence[WaitingRow]
    """What has not ended, also what is granted, without what is `packed`."""
    grants: Sequence[GrantRow]
    live: Sequence[LiveRow]
    workers: Sequence[WorkerRow]
    events: Sequence[EventRow]
    early_cancels: Sequence[EarlyCancelRow]
    singletons: Sequence[SingletonRow] = ()
    checkpoint: Checkpoint | None
    journals: Sequence[Journal]
    """Of the turns after the checkpoint, in order."""
    schedules: Sequence[ScheduleRow] = ()
    newest_event_id: int = 0
    """`events` has the first ones up to this one, as many as memory keeps."""
    action_ids: Mapping[str, int] = field(default_factory=dict)
    """Also of deleted actions."""
    packed: Sequence[PackedWaiting] = ()
    """What waits plainly below the low id; `waiting` has the rest: what has a grant or a `LiveRow`, and
    what is not below the low id. Of one queue there may be several; ids ascend from one to the next."""
    instant_max: float
    """The newest instant that the turns wrote: `now` of the next turn is not below it."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """An execution that was admitted under a key."""

    execution_id: int
    request_hash: UUID
    status: Status
    action_ref: str
    key: str
    priority: int
