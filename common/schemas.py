"""Schemas of the HTTP API that the executor writes and the Python client reads (P10).

The client ignores fields that it does not know: a newer executor may add some.
"""

from typing import Literal, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field


class Schema(BaseModel):
    """Base of all schemas."""

    model_config = ConfigDict(frozen=True, defer_build=True)


class EstimatedStart(Schema):
    """When it will start, in at least eight of ten cases while the load stays the same."""

    earliest: AwareDatetime
    latest: AwareDatetime
    overdue: bool = Field(
        default=False,
        description="Whether what is ahead has run longer than all known runs: the earlier estimate has "
        "passed, and this one is a guess.",
    )


class WaitingCounts(Schema):
    """What the queued executions wait for; adds up to `queue_length`."""

    limit: int = Field(description="All slots are held, or will be by executions ahead.")
    total: int = Field(default=0, description="The total over all keys is in use, or is 0.")
    resource: int = Field(
        default=0, description="Units of a resource are in use, or the resource is paused or too small."
    )
    rate: int = Field(description="A rate of the action or of a resource allows no start now.")
    pool: int = Field(default=0, description="A slot is free: it waits for a worker slot of its pool.")
    paused: int = Field(description="The action is paused.")
    no_worker: int = Field(description="A slot is free, but no live worker serves the action.")


class WaitingFor(Schema):
    """What some queued executions wait for."""

    count: int = Field(description="How many wait for it.", examples=[39])
    reason: str = Field(
        description="limit, total, resource, rate, pool, paused or no_worker, as in `waiting`.",
        examples=["resource"],
    )
    name: str = Field(
        description="Of the resource or pool; of a rate: action REF or resource NAME; else empty.",
        examples=["autocad"],
    )
    closed: str | None = Field(
        description="Why nothing passes, whatever others release: paused, capacity_zero, capacity_too_low."
    )


class GateUse(Schema):
    """What is in use of a gate."""

    gate: str = Field(
        description="total, resource NAME, rate of OWNER, or pool NAME.", examples=["resource autocad"]
    )
    units: int = Field(description="What one execution needs.")
    held: int = Field(description="Units, slots or starts in use, by all actions.")
    capacity: int | None = Field(description="null: no limit.")


class KeyStats(Schema):
    """The queue of one concurrency key."""

    concurrency_key: str
    queue_length: int
    active_count: int
    held_waiting: int = 0
    max_concurrent: int | None = Field(description="Its own limit, or that of the action; null: none.")


class QueueStats(Schema):
    """The state of the queues of an action at one instant."""

    action_id: int
    action_ref: str
    queue_length: int = Field(description="Executions that are queued, those at later gates included.")
    active_count: int = Field(description="Slots of granted executions, over all keys.")
    held_waiting: int = Field(
        default=0, description="Slots that are held by executions which wait at later gates."
    )
    max_concurrent: int | None = Field(
        description="Limit of each queue without a limit of its own; null: none."
    )
    oldest_enqueued_at: AwareDatetime | None = Field(
        description="When the head of the queue was enqueued; null if the queue is empty."
    )
    total_enqueued: int = Field(description="Executions ever admitted.")
    total_completed: int = Field(description="Executions that have ended, with any status.")
    last_updated: AwareDatetime
    paused: bool
    waiting: WaitingCounts
    why: tuple[WaitingFor, ...] = Field(
        default=(),
        description="What they wait for in the end, what most wait for first: an execution waits for what "
        "those ahead of it wait for, unless these have all slots and run. Adds up to `queue_length`.",
    )
    gates: tuple[GateUse, ...] = Field(
        default=(), description="The gates behind its queues, in order, and what is in use of each."
    )
    by_key: tuple[KeyStats, ...] = Field(
        description="The longest queues of an action with a concurrency key."
    )


HistoryWindow: TypeAlias = Literal["1h", "24h", "7d"]
"""In points of a minute, of ten minutes and of an hour."""


class HistoryCounts(Schema):
    """What executions did during a time. A percentile is within 10 % of the exact one; null: none."""

    admitted: int
    started: int = Field(description="Attempts that began to run: a retry is one more.")
    completed: int
    failed: int
    timeout: int
    cancelled: int
    expired: int
    abandoned: int
    waiting_p50_seconds: float | None = Field(
        description="From entering its queue to its first start, of what started: the median."
    )
    waiting_p95_seconds: float | None
    running_p50_seconds: float | None = Field(description="Of the last attempt of what ended: the median.")
    running_p95_seconds: float | None
    slots_used: float = Field(description="Mean of the slots in use, over all keys.")


class HistoryPoint(HistoryCounts):
    """One point: what happened from `at` on, for `resolution_seconds`."""

    at: AwareDatetime


class ActionHistory(HistoryCounts):
    """What one action did in the whole window."""

    action_ref: str


class History(Schema):
    """What executions did in a window. It ends with the last whole minute."""

    window: HistoryWindow
    resolution_seconds: int = Field(description="Duration of a point.")
    from_: AwareDatetime = Field(alias="from")
    until: AwareDatetime
    points: list[HistoryPoint] = Field(description="All of the window, oldest first.")
    totals: HistoryCounts
    actions: list[ActionHistory] | None = Field(
        description="The 100 actions with most starts, the busiest first; null: one action was requested."
    )
