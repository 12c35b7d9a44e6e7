"""The keyword arguments with which a client filters executions and changes actions, keys and resources.

Type checkers know their names and types. The executor checks the values, as docs/reference/actions.md and the
HTTP API describe them.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

from turnstile.common.action_definition import DeclaredFields
from turnstile.common.domain.states import Status


class Filters(TypedDict, total=False):
    """Which executions: all conditions hold. Instants have a time zone."""

    action_ref: str
    status: Status | str | Sequence[Status | str]
    """This one, or any of these."""
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


class ActionFields(DeclaredFields, total=False):
    """The fields of an action. Durations are like `5m`, or seconds."""

    runner: Literal["python", "command", "http"]
    entrypoint: str | Sequence[str] | None
    parameters_schema: Mapping[str, Any] | None
    result_schema: Mapping[str, Any] | None


class ResourceFields(TypedDict, total=False):
    """The fields of a resource."""

    capacity: int | None
    """Units; None: no limit."""
    rank: int | None
    order: Literal["arrival", "fair"]
    rate: Mapping[str, Any] | None
    """`{"starts": 10, "per": "1s"}`; None: no limit."""
    paused: bool
