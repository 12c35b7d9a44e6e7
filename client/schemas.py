"""What the HTTP API returns, as the client reads it.

Fields that this version does not know are ignored, since newer executors may add some. Durations are seconds,
instants have a time zone.
"""

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, JsonValue

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.domain.states import Status
from turnstile.common.fields import PRIORITY_DEFAULT
from turnstile.common.messages import Error
from turnstile.common.schemas import EstimatedStart, Schema


class Submission(Schema):
    """What became of a request that was submitted in a database transaction."""

    request_id: UUID
    status: Literal["pending", "admitted", "rejected"]
    execution_id: int | None = None
    """The execution, once it is admitted."""
    code: str | None = None
    """Why it was rejected, with `message`."""
    message: str | None = None


class Progress(Schema):
    """How far an attempt says that it has come: `done` of `total`, in units of the action's own."""

    done: float
    total: float | None = None
    message: str | None = None
    updated_at: datetime


class Attempt(Schema):
    """One attempt that a worker started."""

    attempt: int
    worker_id: str
    outcome: str | None = None
    """The terminal status, or retried, reclaimed, returned; None while it runs."""
    error: Error | None = None
    granted_at: datetime
    started_at: datetime
    ended_at: datetime | None = None
    progress: Progress | None = None
    """The last that it has reported."""


class WaitingOn(BaseModel):
    """Why an execution has not started; further fields depend on the reason (P10)."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    reason: str
    """`limit`, `total`, `resource`, `rate`, `paused`, `no_worker`, `pool`, `not_due`, `unavailable` or
    `handing_over`."""


class GateStep(Schema):
    """One gate that an execution has passed, or where it waits: then `passed_at` is None."""

    gate: str
    """`queue`, `total`, `resource NAME` or `rate`."""
    units: int
    arrived_at: datetime | None = None
    passed_at: datetime | None = None


class Execution(Schema):
    """A stored execution. Lists leave out position, reason and attempts."""

    id: int
    action_ref: str
    concurrency_key: str | None = None
    idempotency_key: str | None = None
    priority: int = PRIORITY_DEFAULT
    """1 is first, 5 is last."""
    status: Status
    attempt: int
    """Number of the latest grant; 0 before the first."""
    parameters: dict[str, JsonValue]
    result: JsonValue = None
    error: Error | None = None
    metadata: dict[str, JsonValue]
    worker_id: str | None = None
    created_at: datetime
    queued_at: datetime | None = None
    scheduled_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    run_at: datetime | None = None
    expires_at: datetime | None = None
    retry_of: int | None = None
    """The ended execution that it retries."""
    position: int | None = None
    queue_length: int | None = None
    waiting_on: WaitingOn | None = None
    estimated_start: EstimatedStart | None = None
    progress: Progress | None = None
    """The last that its latest attempt has reported; lists leave it out."""
    attempts: tuple[Attempt, ...] = ()
    gates: tuple[GateStep, ...] = ()
    """Those of the latest attempt; empty if it has no gate after its queue."""


class ExecutionPage(Schema):
    """One page of a list, newest first; `next_cursor` is None at the end."""

    items: tuple[Execution, ...]
    next_cursor: str | None = None
    searched_until: datetime | None = None
    """The page was cut here because too many executions were read; `next_cursor` continues."""


class LogEntry(Schema):
    """A piece of the logs of one attempt; all pieces, concatenated, are the log."""

    attempt: int
    at: datetime
    text: str


class LogPage(Schema):
    """Pieces of logs in order; `next_cursor` leads to what follows, and is None once the logs `ended`."""

    items: tuple[LogEntry, ...]
    next_cursor: str | None = None
    ended: bool


class Problem(Schema):
    """Why one item of a list was refused."""

    code: str
    detail: str


class BulkItem(Schema):
    """One matching execution."""

    id: int
    status: Status
    retry_id: int | None = None
    """The new execution of a retry."""
    problem: Problem | None = None
    """Why there is no new execution."""


class LeftOut(Schema):
    """Executions that match, and are not changed because of their status; None: they do not exist."""

    status: Status | None
    count: int
    reason: str


class BulkOutcome(Schema):
    """The result of `cancel_many` or `retry_many`."""

    dry_run: bool
    matched: int
    changed: int
    items: tuple[BulkItem, ...]
    left_out: tuple[LeftOut, ...] = ()
    next_cursor: str | None = None
    """There may be more: pass it as `cursor` with the same filter."""


class StoredAction(ActionDefinition):
    """An action as it is stored."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    id: int
    # The executor has checked them; what checks them is not part of a client's installation.
    parameters_schema: dict[str, JsonValue] | None = None
    result_schema: dict[str, JsonValue] | None = None
    created_at: datetime
    updated_at: datetime


class StoredKey(Schema):
    """The settings of one concurrency key of an action."""

    concurrency_key: str
    max_concurrent: int | None = None
    """The limit of its queue; None: no limit."""
    has_limit: bool
    """Whether the limit is its own; otherwise it is that of the action."""
    weight: int


class StoredResource(Schema):
    """A resource, which several actions share."""

    name: str
    capacity: int | None = None
    """Units; None: no limit."""
    paused: bool
    users: int
    """Number of actions that use it."""


class Worker(Schema):
    """One worker process."""

    id: str
    name: str
    host: str
    pid: int
    pools: tuple[str, ...]
    concurrency: int
    """Most concurrent attempts."""
    running: int
    """Attempts that it has started and not finished."""
    state: str
    """`live`, `draining`, `overdue`, `lost` or `stopped`."""
    started_at: datetime
    renewed_at: datetime
    lease_expires_at: datetime
    not_ready: str | None = None
    """Why it could run nothing at its last heartbeat; None: it could."""


class WorkerPage(Schema):
    """One page of workers, newest first; `next_cursor` is None at the end."""

    items: tuple[Worker, ...]
    next_cursor: str | None = None


class Acceptance(Schema):
    """A stored request."""

    id: int
    status: Status
    position: int | None
    duplicate: bool
