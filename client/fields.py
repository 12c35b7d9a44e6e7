"""The keyword arguments with which a client filters executions and changes actions, keys and resources.

Type checkers know their names and types. The executor checks the values, as docs/reference/actions.md and the
HTTP API describe them.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Required, TypedDict

from turnstile.common.domain.states import Status


class Filters(TypedDict, total=False):
    """Which executions: all conditions hold. Instants have a time zone."""

    action_ref: str
    status: Sequence[Status | str]
    """Any of these."""
    concurrency_key: str
    priority: int
    created_after: datetime
    created_before: datetime
    completed_after: datetime
    completed_before: datetime
    worker_id: str
    error: str
    """Text in the error."""
    metadata: Mapping[str, str]
    """Each of these keys has this value."""


class Listing(Filters, total=False):
    """Which executions to list."""

    idempotency_key: str
    """That of the submission: at most one execution has it."""


class KeyFields(TypedDict, total=False):
    """The settings of one concurrency key."""

    max_concurrent: int | None
    """None: no limit. Left out: that of the action."""
    weight: int
    """Its share of the total of an action with `order: fair`."""


class RetryFields(TypedDict, total=False):
    """How failures of an action are retried. What is left out gets its default."""

    max_attempts: int
    delay: str | float
    factor: float
    max_delay: str | float
    jitter: float


class RateFields(TypedDict):
    """At most `starts` starts in any time of the length `per`, like `1s`."""

    starts: int
    per: str | float


class UseFields(TypedDict, total=False):
    """What one execution takes of a resource."""

    resource: Required[str]
    units: int
    weight: int


class ActionFields(TypedDict, total=False):
    """The fields of an action. Durations are like `5m`, or seconds; None where there may be none."""

    runner: Literal["python", "command", "http"]
    entrypoint: str | Sequence[str] | None
    max_concurrent: int | None
    concurrency_key: str | None
    submitter_keys: bool
    max_concurrent_total: int | None
    order: Literal["arrival", "fair"]
    rate: RateFields | None
    uses: Sequence[str | UseFields]
    priority_min: int
    timeout: str | float | None
    ttl: str | float | None
    retry: RetryFields
    on_worker_lost: Literal["requeue", "abandon"]
    max_reclaims: int
    pool: str
    when_full: Literal["enqueue", "reject"]
    max_queued: int | None
    paused: bool
    callback_url: str | None
    keep_for: str | float | None
    keep_count: int | None
    parameters_schema: Mapping[str, Any] | None
    result_schema: Mapping[str, Any] | None


class ResourceFields(TypedDict, total=False):
    """The fields of a resource."""

    capacity: int | None
    """Units; None: no limit."""
    rank: int | None
    order: Literal["arrival", "fair"]
    rate: RateFields | None
    paused: bool
