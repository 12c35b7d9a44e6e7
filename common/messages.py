"""The bodies on the wire, and how they travel (DESIGN: names on the wire).

What comes from outside (`ExecutionRequested`, `CancelRequested`) is read strictly: an unknown field is
refused, so that a misspelt option is not silently dropped. What passes between our own services is read
leniently: a newer version may add fields. Next: `common.requests` reads
requests; `common.envelopes` addresses messages; `common.broker` carries them.
"""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints

from turnstile.common.action_definition import ActionRef, Duration
from turnstile.common.callback_url import CallbackUrl
from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import Status
from turnstile.common.instant import Instant

SCHEMA_VERSION: Final = 1

AppId = Literal["client", "executor", "worker"]
Key = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class _FromOutside(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class _BetweenServices(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class ExecutionRequested(_FromOutside):
    """Somebody asks for a run of an action: `execution.requested`, and the body of `POST /executions`."""

    action_ref: ActionRef = Field(description="The action to run.", examples=["reports.render"])
    parameters: dict[str, JsonValue] = Field(
        default_factory=dict, description="Passed to the action by name."
    )
    idempotency_key: Key | None = Field(default=None, description="The same key is the same execution.")
    concurrency_key: Key | None = Field(
        default=None,
        description="Names the queue, where the action has `submitter_keys`; else the action's pointer does.",
    )
    run_at: Instant | None = Field(default=None, description="Not before this instant (RFC 3339).")
    timeout: Duration | None = Field(default=None, description="Longest run of one attempt, like '5m'.")
    ttl: Duration | None = Field(default=None, description="Longest wait for a start, like '1h'.")
    callback_url: CallbackUrl | None = Field(default=None, description="Where the end is POSTed to.")
    metadata: dict[str, JsonValue] = Field(
        default_factory=dict, description="Kept beside the execution, never read."
    )


class CancelRequested(_FromOutside):
    """Somebody asks for an execution to stop: `execution.cancel_requested`."""

    execution_id: int | None = Field(default=None, ge=1, le=2**63 - 1)
    idempotency_key: Key | None = None
    reason: Annotated[str, StringConstraints(max_length=1000)] | None = None


class ExecutionScheduled(_BetweenServices):
    """A slot was granted: any worker of the pool may claim this attempt."""

    execution_id: int
    attempt: int
    action_ref: str


class ExecutionCancel(_BetweenServices):
    """To one worker: stop this attempt."""

    execution_id: int
    attempt: int


class StatusChanged(_BetweenServices):
    """Advisory: an execution moved. May be lost."""

    execution_id: int
    action_ref: str
    status: Status
    previous_status: Status | None
    attempt: int
    changed_at: datetime


class Error(_BetweenServices):
    """What went wrong, in a word and in a sentence."""

    type: str
    message: str


class ExecutionCompleted(_BetweenServices):
    """An execution reached its end. Sent at least once for each (P4)."""

    execution_id: int
    action_id: int
    action_ref: str
    status: Status
    result: Any = None
    error: Error | None = None
    attempt: int
    completed_at: datetime


class ExecutionAccepted(_BetweenServices):
    """The answer to a request that was taken."""

    execution_id: int
    status: Status
    position: int | None
    duplicate: bool


class ExecutionRejected(_BetweenServices):
    """The answer to a request that was not."""

    code: Code
    message: str


REQUESTED: Final = "execution.requested"
CANCEL_REQUESTED: Final = "execution.cancel_requested"
SCHEDULED: Final = "execution.scheduled"
CANCEL: Final = "execution.cancel"
STATUS_CHANGED: Final = "execution.status_changed"
COMPLETED: Final = "execution.completed"
ACCEPTED: Final = "execution.accepted"
REJECTED: Final = "execution.rejected"
