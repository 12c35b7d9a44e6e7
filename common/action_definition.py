"""The definition of an action, the same in code, in `actions.yaml`, over HTTP and in the database.

In: fields as people write them. Out: a checked value, and its columns. P1: `max_concurrent` is the limit of
each of the action's queues. Next: `worker.actions` collects it from decorated functions, the executor's
queue manager stores it.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from turnstile.common.callback_url import CallbackUrl
from turnstile.common.domain.durations import SECONDS_MAX, parse_duration

_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
_POOL = re.compile(r"[A-Za-z0-9_\-]{1,64}")
_POINTER = re.compile(r"(?:/(?:[^~/]|~0|~1)*)+")

_Written = Annotated[str, Field(pattern=r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$|^[0-9]+(\.[0-9]+)?$")]
_Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX)]

Duration = Annotated[
    float,
    BeforeValidator(
        parse_duration, json_schema_input_type=Annotated[_Seconds | _Written, Field(examples=["5m", 90])]
    ),
]
"""Seconds, read from `250ms`, `30s`, `1h30m` or a number."""


def check_ref(ref: str) -> str:
    """Return `ref` if it can name an action; raises ValueError with the rule otherwise."""
    if not _REF.fullmatch(ref):
        raise ValueError(
            f"{ref[:60]!r} cannot name an action: "
            "letters, digits, '_', '-' and '.', at most 200, like 'reports.render'"
        )
    return ref


def is_pool(name: str) -> bool:
    """Tell whether a pool can be called so."""
    # `worker.retry` is the workers' delay queue.
    return bool(_POOL.fullmatch(name)) and name != "retry"


def _check_pool(pool: str) -> str:
    if not is_pool(pool):
        raise ValueError(
            f"{pool[:60]!r} cannot name a pool: letters, digits, '_' and '-', at most 64, like 'gpu'"
        )
    return pool


def _check_pointer(pointer: str) -> str:
    if not _POINTER.fullmatch(pointer):
        raise ValueError(
            f"{pointer[:60]!r} is not a JSON Pointer (RFC 6901) into the parameters, like '/customer/id'"
        )
    return pointer


ActionRef = Annotated[str, AfterValidator(check_ref)]
Pool = Annotated[str, AfterValidator(_check_pool)]
JsonPointer = Annotated[str, AfterValidator(_check_pointer)]


def pointer_path(pointer: str) -> list[str]:
    """Split a JSON Pointer into its unescaped steps (RFC 6901, section 4)."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


class RetryDefinition(BaseModel):
    """How failures of the action are tried again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_attempts: int = Field(default=1, ge=1, le=1000, description="Attempts in all; 1 means no retry.")
    delay: Duration = Field(default=1.0, description="Wait before the second attempt.")
    factor: float = Field(
        default=2.0, ge=1, le=100, description="Each further wait is this many times longer."
    )
    max_delay: Duration = Field(default=300.0, description="No wait is longer.")
    jitter: float = Field(default=0.1, ge=0, le=1, description="Share by which a wait is spread.")


class ActionDefinition(BaseModel):
    """Everything that can be said about an action."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ref: ActionRef = Field(description="The action's name.")
    runner: Literal["python", "command", "http"] = Field(default="python", description="What runs it.")
    entrypoint: str | list[str] | None = Field(
        default=None,
        description="command: the argv, a list; http: the URL; python: `module:function`, or nothing where "
        "a worker registers it from code.",
    )
    max_concurrent: int | None = Field(
        default=None, ge=0, le=1_000_000, description="Limit of each queue; null: none; 0: nothing starts."
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
    pool: Pool = Field(default="default", description="The workers that serve it.")
    when_full: Literal["enqueue", "reject"] = Field(default="enqueue")
    max_queued: int | None = Field(
        default=None, ge=0, le=1_000_000_000, description="Refuse new ones when so many wait."
    )
    paused: bool = Field(default=False, description="Admit but grant nothing.")
    callback_url: CallbackUrl | None = Field(
        default=None, description="Where ends are POSTed to, unless the request says where."
    )
    keep_for: Duration | None = Field(
        default=None, description="Age at which ended executions are pruned; null: as the service is set."
    )
    keep_count: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000_000,
        description="Ended executions kept; null: as the service is set.",
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
            raise ValueError("entrypoint: a python action takes 'module:function', or nothing")
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
