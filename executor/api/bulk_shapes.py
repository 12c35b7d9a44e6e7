"""What a call for many executions takes and gives: a filter and bounds in, what became of each out."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from turnstile.common.domain.states import Status
from turnstile.common.instant import Instant
from turnstile.executor.api.problems import Problem

BULK_MAX: Final = 1000
"""Most executions in one call."""
_Text = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class BulkFilter(BaseModel):
    """Which executions are meant: all of these must hold, and one must be named at least."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action_ref: _Text | None = Field(default=None, examples=["reports.render"])
    status: Annotated[list[Status], Field(min_length=1)] | None = Field(
        default=None,
        description="Any of these. Without it, cancel means what has not ended, and retry what failed, timed "
        "out, expired or was abandoned.",
    )
    concurrency_key: _Text | None = None
    created_after: Instant | None = Field(default=None, description="This instant or later.")
    created_before: Instant | None = Field(default=None, description="Earlier than this instant.")
    worker_id: _Text | None = Field(default=None, description="The worker of its latest attempt.")
    metadata: dict[str, str | bool | int | float] = Field(
        default_factory=dict, description="Each of these keys has this value.", examples=[{"tenant": "acme"}]
    )


class _BulkBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    filter: BulkFilter
    dry_run: bool = Field(default=False, description="Only say which ones are meant; change nothing.")
    limit: int = Field(default=BULK_MAX, ge=1, le=BULK_MAX, description="Most executions in this call.")
    cursor: Annotated[str, Field(max_length=1000)] | None = Field(
        default=None, description="`next_cursor` of the call before, with the same filter."
    )


class BulkCancelBody(_BulkBody):
    """Which executions are to stop, and why."""

    reason: Annotated[str, StringConstraints(max_length=1000)] | None = Field(
        default=None, examples=["no longer needed"]
    )


class BulkRetryBody(_BulkBody):
    """Which ended executions are to be done again."""


class BulkItem(BaseModel):
    """One execution that was meant."""

    id: int = Field(examples=[4711])
    status: Status = Field(
        description="As it stands now; running after a cancel: its worker was asked to stop it."
    )
    retry_id: int | None = Field(default=None, description="The new execution that does it again.")
    problem: Problem | None = Field(default=None, description="Why there is no new execution.")


class BulkOutcome(BaseModel):
    """What became of a call."""

    dry_run: bool
    matched: int = Field(description="Executions that were meant, in this call.", examples=[1])
    changed: int = Field(
        description="Those that were ended, asked to stop, or asked for again by this call.", examples=[1]
    )
    items: list[BulkItem]
    next_cursor: str | None = Field(
        description="There may be more, even if this call found none: send it with the same filter. Null: "
        "that was all."
    )
