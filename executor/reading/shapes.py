"""How queues, actions and workers are shown."""

from typing import Literal

from pydantic import AwareDatetime, Field, JsonValue

from turnstile.common.action_definition import ActionDefinition
from turnstile.executor.reading.execution_shapes import HOLDERS_MAX, Shape


class WaitingCounts(Shape):
    """What the waiting executions wait for; adds up to `queue_length`."""

    limit: int = Field(description="All slots are held, or will be by those before them.")
    paused: int = Field(description="The action is paused.")
    no_worker: int = Field(description="A slot is free, but no live worker of the action's pool serves it.")
    rate: int = Field(description="A slot is free: they wait only for the next hand-over.")


class KeyStats(Shape):
    """The queue of one concurrency key."""

    concurrency_key: str
    queue_length: int
    active_count: int


class QueueStats(Shape):
    """How the queues of an action stand, at one instant."""

    action_id: int
    action_ref: str
    queue_length: int = Field(description="Executions in line.")
    active_count: int = Field(description="Slots held, over all keys.")
    max_concurrent: int | None = Field(description="Limit of each queue; null: none.")
    oldest_enqueued_at: AwareDatetime | None = Field(
        description="Since when the head of the line waits; null when nobody does."
    )
    total_enqueued: int = Field(description="Executions ever admitted.")
    total_completed: int = Field(description="Executions that have ended, in whatever way, and been settled.")
    last_updated: AwareDatetime
    paused: bool
    waiting: WaitingCounts
    by_key: list[KeyStats] = Field(description="The longest queues of an action with a concurrency key.")


class WaitingShape(Shape):
    """One place in a line."""

    id: int
    position: int = Field(description="Place in the line of its key, from 1.")
    concurrency_key: str | None
    created_at: AwareDatetime
    queued_at: AwareDatetime


class HolderShape(Shape):
    """One held slot."""

    id: int = Field(description="The execution that holds it.")
    concurrency_key: str | None
    attempt: int
    status: str = Field(description="An execution that has ended holds its slot until that is settled.")
    worker_id: str | None
    granted_at: AwareDatetime
    claimed_at: AwareDatetime | None
    finished_at: AwareDatetime | None


class LineShape(Shape):
    """The line of an action: who waits, in order, and behind whom."""

    action_ref: str
    items: list[WaitingShape]
    holders: list[HolderShape] = Field(description=f"Oldest ticket first, at most {HOLDERS_MAX}.")
    next_cursor: str | None


class ActionShape(ActionDefinition):
    """An action as it is stored. Durations are seconds."""

    id: int
    callback_url: str | None = Field(
        default=None, description="Where ends are POSTed to, unless the request says where."
    )
    """As it stands: it is checked when something is POSTed to it."""
    created_at: AwareDatetime
    updated_at: AwareDatetime


Change = Literal["created", "changed", "limit_changed", "paused", "resumed", "deleted"]


class ActionChangeShape(Shape):
    """What was done to an action, by whom and when."""

    id: int
    changed_at: AwareDatetime
    changed_by: str | None = Field(
        description="The name of the token that asked; local: none was asked for; worker: it was registered.",
        examples=["alice"],
    )
    change: Change
    old: dict[str, JsonValue] = Field(
        description="The fields that differ, as they were; durations in seconds. Empty where it was created.",
        examples=[{"max_concurrent": 2}],
    )
    new: dict[str, JsonValue] = Field(
        description="The same fields as they are since. Empty where it was deleted.",
        examples=[{"max_concurrent": 5}],
    )


WorkerState = Literal["live", "draining", "overdue", "lost", "stopped"]


class WorkerShape(Shape):
    """One start of one worker process."""

    id: str
    name: str
    host: str
    pid: int
    pools: list[str]
    concurrency: int = Field(description="Most attempts at once.")
    running: int = Field(description="Attempts that it has claimed and not finished.")
    state: WorkerState = Field(
        description="overdue: its lease is over, and its work is about to be taken back; lost: it was."
    )
    started_at: AwareDatetime
    renewed_at: AwareDatetime
    lease_expires_at: AwareDatetime
    draining_at: AwareDatetime | None
    stopped_at: AwareDatetime | None
    lost_at: AwareDatetime | None
