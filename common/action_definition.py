"""The definition of an action, the same in code, in `actions.yaml`, over HTTP and in the database.

In: fields as users write them. Out: a checked value. P1: `max_concurrent` is the limit of
each of the action's queues.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self, TypedDict

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

from turnstile.common.fields import (
    STARTS_MAX,
    UNITS_MAX,
    WEIGHT_MAX,
    ActionRef,
    CallbackUrl,
    Duration,
    JsonPointer,
    Period,
    Pool,
    ResourceName,
)
from turnstile.common.json_schema import check_parameters_schema, check_schema

_USES_MAX: Final = 20


class RetryDefinition(BaseModel):
    """How failures of the action are retried."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    max_attempts: int = Field(default=1, ge=1, le=1000, description="Attempts in all; 1 means no retry.")
    delay: Duration = Field(default=1.0, description="Wait before the second attempt.")
    factor: float = Field(
        default=2.0, ge=1, le=100, description="Each further wait is this many times longer."
    )
    max_delay: Duration = Field(
        default=300.0, description="No wait is longer. Without it: 5 minutes, or `delay` if that is longer."
    )
    jitter: float = Field(default=0.1, ge=0, le=1, description="Share by which a wait is spread at random.")

    @model_validator(mode="after")
    def _default_of_max_delay(self) -> Self:
        if "max_delay" not in self.model_fields_set:
            object.__setattr__(self, "max_delay", max(self.max_delay, self.delay))
        return self


class RateDefinition(BaseModel):
    """At most `starts` starts in any time of the length `per`."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    starts: int = Field(ge=1, le=STARTS_MAX, description="Starts that are allowed in any `per`.")
    per: Period = Field(description="From 1ms to 1d. The window slides.")


class UseDefinition(BaseModel):
    """What one execution takes of a shared resource while it runs."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    resource: ResourceName = Field(description="The name of the resource, which must exist.")
    units: int = Field(default=1, ge=1, le=UNITS_MAX, description="Units that each execution holds.")
    weight: int = Field(
        default=1, ge=1, le=WEIGHT_MAX, description="The action's share of a resource with `order: fair`."
    )


def _use_of(written: object) -> object:
    return {"resource": written} if isinstance(written, str) else written


Use = Annotated[UseDefinition, BeforeValidator(_use_of, json_schema_input_type=UseDefinition | ResourceName)]
"""A use; the name alone means one unit of the resource."""


def _usable(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    check_schema(schema)
    return schema


def _usable_for_parameters(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    check_parameters_schema(schema)
    return schema


ResultSchema = Annotated[dict[str, JsonValue], AfterValidator(_usable)]
"""A JSON Schema."""
ParametersSchema = Annotated[dict[str, JsonValue], AfterValidator(_usable_for_parameters)]
"""A JSON Schema of an object."""


class ActionDefinition(BaseModel):
    """Everything that defines an action."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

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
    max_concurrent_total: int | None = Field(
        default=None,
        ge=0,
        le=UNITS_MAX,
        description="Limit over all concurrency keys together; null: no such limit; 0: nothing starts.",
    )
    order: Literal["arrival", "fair"] = Field(
        default="arrival",
        description="Order between the keys at `max_concurrent_total`. fair: they take turns by weight.",
    )
    rate: RateDefinition | None = Field(
        default=None, description="Limit of starts in any time of a given length."
    )
    uses: tuple[Use, ...] = Field(
        default=(),
        max_length=_USES_MAX,
        description="Shared resources that each execution holds while it runs: names, or `resource`, "
        "`units` and `weight`.",
    )
    priority_min: int = Field(
        default=1,
        ge=1,
        le=5,
        description="Most urgent priority (1 first, 5 last) that a token with the role `submit` may request.",
    )
    timeout: Duration | None = Field(default=None, description="Longest run of one attempt.")
    ttl: Duration | None = Field(
        default=None, description="Longest wait for a start, from the first enqueue."
    )
    retry: RetryDefinition = Field(default_factory=RetryDefinition)
    on_worker_lost: Literal["requeue", "abandon"] = Field(default="requeue")
    max_reclaims: int = Field(default=5, ge=0, le=1000, description="Reclaims before it is abandoned.")
    runs: bool = Field(
        default=True,
        description="While its executions are short, a worker may have the next ones before a slot is free, "
        "and starts them itself. false: each is sent to a worker when it can start.",
    )
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

    parameters_schema: ParametersSchema | None = Field(
        default=None,
        description="JSON Schema (2020-12) of the parameters: requests that do not fit are refused. null: "
        "the schemas that the workers derive from their code.",
        examples=[{"type": "object", "properties": {"customer_id": {"type": "integer"}}}],
    )
    result_schema: ResultSchema | None = Field(
        default=None, description="JSON Schema of the result, for readers. Results are not checked."
    )

    @field_validator("uses")
    @classmethod
    def _each_resource_once(cls, uses: tuple[UseDefinition, ...]) -> tuple[UseDefinition, ...]:
        in_order = tuple(sorted(uses, key=lambda use: use.resource))
        for first, second in pairwise(in_order):
            if first.resource == second.resource:
                raise ValueError(f"{first.resource!r} is given twice; give its units once")
        return in_order

    @model_validator(mode="after")
    def _total_has_keys(self) -> Self:
        if self.max_concurrent_total is not None and not has_keys(self):
            raise ValueError(
                "max_concurrent_total: an action without concurrency keys has one queue, which "
                "max_concurrent limits; set concurrency_key, or set max_concurrent instead"
            )
        if self.order == "fair" and self.max_concurrent_total is None:
            raise ValueError(
                "order: fair is an order between the keys at max_concurrent_total; set "
                "max_concurrent_total, or omit order"
            )
        return self

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


class DeclaredFields(TypedDict, total=False):
    """The fields of a definition that code may set, as it writes them; `ActionDefinition` describes each."""

    max_concurrent: int | None
    concurrency_key: str | None
    submitter_keys: bool
    max_concurrent_total: int | None
    order: Literal["arrival", "fair"]
    rate: Mapping[str, Any] | None
    """What `rate` returns: `{"starts": 10, "per": "1s"}`."""
    uses: Sequence[str | Mapping[str, Any]]
    """Names of resources, or what `use` returns. The resources must exist when the worker registers."""
    priority_min: int
    timeout: str | float | None
    ttl: str | float | None
    retry: RetryDefinition | Mapping[str, str | float]
    on_worker_lost: Literal["requeue", "abandon"]
    max_reclaims: int
    runs: bool
    pool: str
    when_full: Literal["enqueue", "reject"]
    max_queued: int | None
    paused: bool
    callback_url: str | None
    keep_for: str | float | None
    keep_count: int | None


def has_keys(definition: ActionDefinition) -> bool:
    """Return whether executions of the action may have concurrency keys."""
    return definition.concurrency_key is not None or definition.submitter_keys
