"""The definition of an action, the same in code, in `actions.yaml`, over HTTP and in the database.

In: fields as users write them. Out: a checked value, and its columns. P1: `max_concurrent` is the limit of
each of the action's queues.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from turnstile.common.fields import ActionRef, CallbackUrl, Duration, JsonPointer, Pool, pointer_path


class RetryDefinition(BaseModel):
    """How failures of the action are retried."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_attempts: int = Field(default=1, ge=1, le=1000, description="Attempts in all; 1 means no retry.")
    delay: Duration = Field(default=1.0, description="Wait before the second attempt.")
    factor: float = Field(
        default=2.0, ge=1, le=100, description="Each further wait is this many times longer."
    )
    max_delay: Duration = Field(default=300.0, description="No wait is longer.")
    jitter: float = Field(default=0.1, ge=0, le=1, description="Share by which a wait is spread at random.")


class ActionDefinition(BaseModel):
    """Everything that defines an action."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ref: ActionRef = Field(description="The action's name.")
    runner: Literal["python", "command", "http"] = Field(default="python", description="What executes it.")
    entrypoint: str | list[str] | None = Field(
        default=None,
        description="command: the argv as a list; http: the URL; python: `module:function`, or null where "
        "a worker registers it from code.",
    )
    max_concurrent: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Limit of each queue; null: no limit; 0: nothing starts.",
    )
    concurrency_key: JsonPointer | None = Field(
        default=None, description="JSON Pointer into the parameters: one FIFO queue per value."
    )
    submitter_keys: bool = Field(
        default=False,
        description="Requests may name their own concurrency key. Each key has a queue with the action's "
        "limit, so submitters decide how many run at once in all.",
    )
    timeout: Duration | None = Field(default=None, description="Longest run of one attempt.")
    ttl: Duration | None = Field(
        default=None, description="Longest wait for a start, from the first enqueue."
    )
    retry: RetryDefinition = Field(default_factory=RetryDefinition)
    on_worker_lost: Literal["requeue", "abandon"] = Field(default="requeue")
    max_reclaims: int = Field(default=5, ge=0, le=1000, description="Reclaims before it is abandoned.")
    pool: Pool = Field(default="default", description="The pool of workers that run it.")
    when_full: Literal["enqueue", "reject"] = Field(default="enqueue")
    max_queued: int | None = Field(
        default=None, ge=0, le=1_000_000_000, description="Reject new executions while this many wait."
    )
    paused: bool = Field(default=False, description="Admit executions but start none.")
    callback_url: CallbackUrl | None = Field(
        default=None,
        description="URL that receives a webhook for each finished execution, unless the request names one.",
    )
    keep_for: Duration | None = Field(
        default=None, description="Age at which finished executions are pruned; null: the service's setting."
    )
    keep_count: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000_000,
        description="Number of finished executions kept; null: the service's setting.",
    )

    @model_validator(mode="after")
    def _entrypoint_fits_runner(self) -> Self:
        if self.runner == "command" and not (isinstance(self.entrypoint, list) and self.entrypoint):
            raise ValueError("entrypoint: a command action needs its argv as a list, like ['wc', '-w']")
        if self.runner == "http" and not (
            isinstance(self.entrypoint, str) and self.entrypoint.startswith(("http://", "https://"))
        ):
            raise ValueError("entrypoint: an http action needs a URL, like 'https://example.org/hook'")
        if self.runner == "python" and isinstance(self.entrypoint, list):
            raise ValueError("entrypoint: a python action takes 'module:function', or null")
        return self


def action_columns(definition: ActionDefinition) -> dict[str, object]:
    """Return a definition as the columns of table `action`."""
    retry = definition.retry
    pointer = definition.concurrency_key
    return {
        **definition.model_dump(mode="json", exclude={"retry", "timeout", "ttl", "keep_for"}),
        "concurrency_key_path": pointer_path(pointer) if pointer is not None else None,
        "timeout_seconds": definition.timeout,
        "ttl_seconds": definition.ttl,
        "keep_for_seconds": definition.keep_for,
        "retry_max_attempts": retry.max_attempts,
        "retry_delay_seconds": retry.delay,
        "retry_factor": retry.factor,
        "retry_max_delay_seconds": retry.max_delay,
        "retry_jitter": retry.jitter,
    }
