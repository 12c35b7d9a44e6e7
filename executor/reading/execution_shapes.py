"""How an execution is shown: the record, and on top of it what it waits for and what was tried (P10)."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue

from turnstile.common.domain.states import Status

HOLDERS_MAX = 100
"""Most holders of slots that one answer lists."""


class Shape(BaseModel):
    """Anything that is shown."""

    model_config = ConfigDict(frozen=True)


class ErrorShape(Shape):
    """What went wrong, in a word and in a sentence."""

    type: str
    message: str


class AttemptShape(Shape):
    """One claimed grant."""

    attempt: int = Field(description="Number of the grant, from 1.")
    worker_id: str
    outcome: str | None = Field(
        description="The terminal status it earned, or retried, reclaimed, handed_back; null while it runs."
    )
    error: ErrorShape | None
    granted_at: AwareDatetime
    started_at: AwareDatetime
    ended_at: AwareDatetime | None


class WaitingOnLimit(Shape):
    """Every slot of its queue is held, or will be by those before it."""

    reason: Literal["limit"] = "limit"
    max_concurrent: int
    active_count: int = Field(description="Slots of its queue that are held.")
    holders: list[int] = Field(description=f"Executions that hold them, at most {HOLDERS_MAX}.")


class WaitingOnPause(Shape):
    """Its action is paused."""

    reason: Literal["paused"] = "paused"


class WaitingOnWorker(Shape):
    """No live worker of its pool serves its action."""

    reason: Literal["no_worker"] = "no_worker"
    pool: str


class NotDue(Shape):
    """Not before an instant: `run_at`, or the wait before a retry."""

    reason: Literal["not_due"] = "not_due"
    run_at: AwareDatetime | None


class HandingOver(Shape):
    """Nothing but the next hand-over: a slot is free or given, and workers serve the pool."""

    reason: Literal["handing_over"] = "handing_over"
    pool: str


class OutOfReach(Shape):
    """The next hand-over, and that needs a server, or a pool's queue, that the executor cannot use."""

    reason: Literal["unavailable"] = "unavailable"
    part: str = Field(description="database, broker or pool NAME, as in /readyz.", examples=["broker"])
    message: str = Field(examples=["not connected"])


WaitingOn = Annotated[
    WaitingOnLimit | WaitingOnPause | WaitingOnWorker | NotDue | HandingOver | OutOfReach,
    Field(discriminator="reason"),
]


class EstimatedStart(Shape):
    """When it will be claimed by a worker, in at least eight of ten cases while the load stays what it is."""

    earliest: AwareDatetime
    latest: AwareDatetime


class ExecutionRecord(Shape):
    """An execution as the record has it."""

    id: int = Field(description="Its ticket: smaller was admitted earlier.")
    action_ref: str
    concurrency_key: str | None
    idempotency_key: str | None
    status: Status
    attempt: int = Field(description="Number of its latest grant; 0 before the first.")
    parameters: dict[str, JsonValue]
    result: JsonValue
    error: ErrorShape | None
    metadata: dict[str, JsonValue]
    worker_id: str | None
    created_at: AwareDatetime
    queued_at: AwareDatetime | None = Field(description="When it last took its place in the line.")
    scheduled_at: AwareDatetime | None = Field(description="When its latest slot was granted.")
    started_at: AwareDatetime | None
    completed_at: AwareDatetime | None
    run_at: AwareDatetime | None
    expires_at: AwareDatetime | None
    retry_of: int | None = Field(description="The ended execution that somebody asked to do again.")


class ExecutionShape(ExecutionRecord):
    """An execution, where it stands, why it waits and what was tried."""

    position: int | None = Field(description="Place in its line, from 1; null when it is not in line.")
    queue_length: int | None = Field(description="How many are in its line; null when it is not in line.")
    waiting_on: WaitingOn | None = Field(description="Why it has not started; null when it does not wait.")
    estimated_start: EstimatedStart | None = Field(
        description="From the recent pace of its queue; null where that says nothing: no run of the action "
        "has ended yet, or it is paused, has no worker or a limit of 0, or a server is out of reach."
    )
    attempts: list[AttemptShape] = Field(description="Claimed grants, oldest first.")
