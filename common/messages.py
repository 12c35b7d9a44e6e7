"""The bodies of the messages.

Messages from outside (`ExecutionRequested`, `CancelRequested`) are read strictly: an unknown field is
rejected, so that a misspelt option is not ignored. Messages between our own services are read leniently: a
newer version may add fields. `requests` reads requests, `envelopes` addresses and wraps messages.
"""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, model_validator

from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import Status
from turnstile.common.fields import (
    PRIORITY_DEFAULT,
    ActionRef,
    CallbackUrl,
    Duration,
    Instant,
    Key,
    NewKey,
    Priority,
)

SCHEMA_VERSION: Final = 1

AppId = Literal["client", "executor", "worker"]


class _FromOutside(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)


class _BetweenServices(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


def _or_text(schema: dict[str, Any]) -> None:
    """Say in a JSON Schema that a text is accepted too."""
    described = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": "string", "minLength": 1, "maxLength": 512}, described]


class Singleton(_FromOutside):
    """A name that one execution of the action has at a time, and what becomes of a second request with it."""

    model_config = ConfigDict(json_schema_extra=_or_text)

    key: Key = Field(description="The name; of one action.", examples=["nightly"])
    when: Literal["waiting", "waiting_or_running"] = Field(
        default="waiting_or_running",
        description="Which execution counts: one that no worker has yet, or any that has not ended.",
    )
    then: Literal["return_existing", "refuse", "cancel_running"] = Field(
        default="return_existing",
        description="Answer with the existing execution, refuse with `singleton_exists`, or cancel the "
        "existing one and admit the new one.",
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: object) -> object:
        """Read a text as the key."""
        return {"key": given} if isinstance(given, str) else given


class ExecutionRequested(_FromOutside):
    """A request to run an action: `execution.requested`, and the body of `POST /executions`."""

    action_ref: ActionRef = Field(description="The action to run.", examples=["reports.render"])
    parameters: dict[str, JsonValue] = Field(
        default_factory=dict, description="Passed to the action by name."
    )
    idempotency_key: NewKey | None = Field(
        default=None, description="Requests with the same key are one execution."
    )
    concurrency_key: Key | None = Field(
        default=None,
        description="Names the queue if the action has `submitter_keys`; else the action's pointer does.",
    )
    singleton: Singleton | None = Field(
        default=None,
        description="At most one execution of the action with this key at a time; a text is the key.",
        examples=["nightly"],
    )
    priority: Priority = Field(
        default=PRIORITY_DEFAULT,
        description="1 (first) to 5 (last); strict. Default: 3, or the action's `priority_min` if larger.",
        examples=[2],
    )
    run_at: Instant | None = Field(default=None, description="Not before this instant (RFC 3339).")
    delay: Duration | None = Field(
        default=None,
        description="Not before this time has passed since its admission, like '5m'. Not with `run_at`.",
    )
    timeout: Duration | None = Field(default=None, description="Longest run of one attempt, like '5m'.")
    ttl: Duration | None = Field(default=None, description="Longest wait for a start, like '1h'.")
    callback_url: CallbackUrl | None = Field(
        default=None, description="URL that receives a webhook when the execution finished."
    )
    metadata: dict[str, JsonValue] = Field(
        default_factory=dict, description="Stored with the execution, never interpreted."
    )


class CancelRequested(_FromOutside):
    """A request to cancel an execution: `execution.cancel_requested`."""

    execution_id: int | None = Field(default=None, ge=1, le=2**63 - 1)
    idempotency_key: Key | None = None
    reason: Annotated[str, StringConstraints(max_length=1000)] | None = None


class Error(_BetweenServices):
    """A failure: a short type and a sentence."""

    type: str
    message: str


class ExecutionCompleted(_BetweenServices):
    """An execution reached a terminal state. Sent at least once for each (P4)."""

    execution_id: int
    action_id: int
    action_ref: str
    status: Status
    result: Any = None
    error: Error | None = None
    attempt: int
    completed_at: datetime


class ExecutionAccepted(_BetweenServices):
    """The reply to an accepted request."""

    execution_id: int
    status: Status
    position: int | None
    duplicate: bool


class ExecutionRejected(_BetweenServices):
    """The reply to a rejected request."""

    code: Code
    message: str
