"""What is read over HTTP. Fields that this version does not know are passed over: executors may add some.

Durations are seconds, instants know their time zone.
"""

from datetime import datetime

from pydantic import BaseModel, ConfigDict, JsonValue

from turnstile.common.domain.states import Status
from turnstile.common.messages import Error

__all__ = [
    "Attempt",
    "Error",
    "EstimatedStart",
    "Execution",
    "ExecutionPage",
    "KeyStats",
    "QueueStats",
    "WaitingCounts",
    "WaitingOn",
]


class _Shown(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Attempt(_Shown):
    """One claimed grant."""

    attempt: int
    worker_id: str
    outcome: str | None = None
    """The terminal status it earned, or retried, reclaimed, handed_back; None while it runs."""
    error: Error | None = None
    granted_at: datetime
    started_at: datetime
    ended_at: datetime | None = None


class WaitingOn(BaseModel):
    """Why an execution has not started; what belongs to the reason is there by name (P10)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    reason: str
    """`limit`, `paused`, `no_worker`, `not_due`, `unavailable` or `handing_over`."""


class EstimatedStart(_Shown):
    """When a waiting execution will be claimed, in at least eight of ten cases while the load stays."""

    earliest: datetime
    latest: datetime


class Execution(_Shown):
    """An execution as the record has it. In lists, place, reason and attempts are left out."""

    id: int
    action_ref: str
    concurrency_key: str | None = None
    idempotency_key: str | None = None
    status: Status
    attempt: int
    """Number of its latest grant; 0 before the first."""
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
    position: int | None = None
    queue_length: int | None = None
    waiting_on: WaitingOn | None = None
    estimated_start: EstimatedStart | None = None
    attempts: tuple[Attempt, ...] = ()


class ExecutionPage(_Shown):
    """Some of a list, newest first; `next_cursor` leads to the rest and is None at the end."""

    items: tuple[Execution, ...]
    next_cursor: str | None = None


class WaitingCounts(_Shown):
    """What the waiting executions wait for; adds up to `queue_length`."""

    limit: int
    paused: int
    no_worker: int
    rate: int


class KeyStats(_Shown):
    """The queue of one concurrency key."""

    concurrency_key: str
    queue_length: int
    active_count: int


class QueueStats(_Shown):
    """How the queues of an action stood, at one instant."""

    action_id: int
    action_ref: str
    queue_length: int
    """Executions in line."""
    active_count: int
    """Slots held, over all keys."""
    max_concurrent: int | None
    """Limit of each queue; None: no limit."""
    oldest_enqueued_at: datetime | None
    total_enqueued: int
    total_completed: int
    last_updated: datetime
    paused: bool
    waiting: WaitingCounts
    by_key: tuple[KeyStats, ...] = ()
