"""What users define, as far as the scheduler reads it: actions, keys, resources, pools, rates.

A change replaces a whole value. The gates of an execution follow from these: its queue, the total of its
action, its resources by rank and name, its pool with the rates (docs/gates.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from turnstile.executor.queue_manager.retries import RetryPolicy

Order: TypeAlias = Literal["arrival", "fair"]

PATIENCE_SECONDS: Final = 30.0
"""How long others may pass an execution at a resource because no worker can take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """At most `starts` grants in any span of `per_seconds`."""

    starts: int
    per_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What one execution holds of a resource; `weight` is the action's share where the order is fair."""

    resource: str
    units: int = 1
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An action. Limits of None do not exist; 0 lets nothing start."""

    ref: str
    pool: str = "default"
    max_concurrent: int | None = None
    """Limit of each of its queues."""
    max_concurrent_total: int | None = None
    """Limit over all its queues."""
    order: Order = "arrival"
    """Between its queues, at the total."""
    uses: tuple[Use, ...] = ()
    rate: Rate | None = None
    paused: bool = False
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_seconds: float | None = None
    ttl_seconds: float | None = None
    on_worker_lost: Literal["requeue", "abandon"] = "requeue"
    max_reclaims: int = 5
    when_full: Literal["enqueue", "reject"] = "enqueue"
    max_queued: int | None = None
    needs_code: bool = True
    """Only workers that name the action can run it: not all of its pool have its entrypoint."""
    runs: bool = True
    """While its executions are short, a worker may have more of them than may run at once (`runs`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySettings:
    """What an operator set for one key: `max_concurrent` replaces the action's limit where `has_limit`."""

    has_limit: bool = False
    max_concurrent: int | None = None
    weight: int = 1


UNBOUNDED: Final = 2**62
"""The capacity of a resource without a limit; the rank of one without a rank: after all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A capacity in units that several actions share."""

    name: str
    capacity: int
    rank: int = 1
    order: Order = "arrival"
    rate: Rate | None = None
    paused: bool = False
    patience_seconds: float = PATIENCE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Workers that serve the same actions; `weights` are those of actions."""

    name: str
    order: Order = "fair"
    weights: Mapping[str, int] = field(default_factory=dict)
    paused: bool = False
