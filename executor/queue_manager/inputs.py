"""What may happen to the scheduler. Time is no input: every decision has its own `now`.

All of them may come twice or late: `transitions` says for each what a repetition does.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager.definitions import Action, KeySettings, Pool, Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """A request that was checked and is no duplicate. Durations in seconds, instants since 1970."""

    action_ref: str
    key: str = ""
    priority: int = 3
    run_at: float | None = None
    ttl_seconds: float | None = None
    """Replaces the action's."""
    timeout_seconds: float | None = None
    """Replaces the action's."""
    source: Any = None
    """What the leader needs to answer it; it comes back unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A worker reports the end of an attempt."""

    execution_id: int
    grant: Grant
    status: Literal[Status.COMPLETED, Status.FAILED, Status.TIMEOUT, Status.CANCELLED, Status.EXPIRED]
    is_retryable: bool = False
    delay_seconds: float | None = None
    """The delay that the action asked for; None: by its retry policy."""
    started_at: float | None = None
    completed_at: float | None = None
    source: Any = None
    """The report with result, error and log; it comes back unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A worker reports that it runs an attempt."""

    execution_id: int
    grant: Grant
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A worker returns an attempt: recalled, refused, or unfinished at the end of a drain."""

    execution_id: int
    grant: Grant
    had_started: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End what has not been granted, and ask the worker to stop the rest.

    `action_ref`, `key` and `priority` are those of the execution: they find it among what waits.
    """

    execution_id: int
    reason: str
    action_ref: str
    key: str = ""
    priority: int = 3
    source: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DefineAction:
    """Create an action, or replace its definition."""

    action: Action


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAction:
    """Refused while executions run, or while more than `cancel_max` wait; those that wait are cancelled."""

    ref: str
    reason: str
    cancel_max: int = 0
    source: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetKey:
    """Set what applies to one key of an action; None: nothing of its own."""

    action_ref: str
    key: str
    settings: KeySettings | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DefineResource:
    """Create a resource, or replace its definition."""

    resource: Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResource:
    """The leader has checked that no action uses it."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinePool:
    """Create a pool, or replace its definition."""

    pool: Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePool:
    """The leader has checked that no action and no live worker names it."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChanged:
    """A worker process joined, or what it offers changed. Repeating it changes nothing."""

    worker_id: str
    pools: frozenset[str]
    concurrency: int
    actions: frozenset[str] | None = None
    """The actions that it has code for; None: all."""
    is_taking: bool = True
    """It accepts offers: it does not drain, and is ready."""
    is_answer: bool = False
    """It has said what it has, in a new session or epoch: it may have missed what it was told before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone:
    """A worker was lost, or left: what it holds begins again, or is abandoned."""

    worker_id: str
    is_counted: bool = True
    """The loss counts against `max_reclaims`: it was not part of an outage that the leader shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """The leader ends an attempt that neither ended nor answered long after its timeout or cancel."""

    execution_id: int
    grant: Grant


Input: TypeAlias = (
    Admit | Ended | Started | Returned | Cancel | DefineAction | DeleteAction | SetKey | DefineResource
    | DeleteResource | DefinePool | DeletePool | WorkerChanged | WorkerGone | Overdue
)  # fmt: skip
