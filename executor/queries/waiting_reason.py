"""Decides what an execution waits for, from facts of one snapshot (P10).

Pure; the statement `queue_stats` sorts whole queues by the same order of reasons, and a test keeps the two
equal. The nearest reason wins: paused, then a closed gate, then the limit, then, if a worker serves the
action, the gate where it waits, then a pool's queue that cannot be used, then no worker, then a server that
is unreachable. So an execution that waits for the limit, a total or a resource names the holders, and the
root cause: what holders that do not run yet wait for themselves. `queue_stats` counts what only an
unreachable server holds up with what waits for its dispatch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from turnstile.common.domain.states import Status
from turnstile.executor.queries.schemas import (
    HandingOver,
    NotDue,
    OutOfReach,
    RootCause,
    Stopping,
    UnitHolder,
    WaitingOn,
    WaitingOnLimit,
    WaitingOnPause,
    WaitingOnPool,
    WaitingOnRate,
    WaitingOnResource,
    WaitingOnTotal,
    WaitingOnWorker,
)

if TYPE_CHECKING:
    import asyncpg

    Row: TypeAlias = asyncpg.Record | Mapping[str, Any]


class Health(Protocol):
    """What the service knows about its servers; `/readyz` shows it."""

    def readiness(self) -> Mapping[str, str | None]:
        """Name each server, with None or why it is unreachable."""

    def degraded(self) -> Mapping[str, str]:
        """Name what does not work though the servers are reachable, like `pool gpu`, and why."""


class Trouble(NamedTuple):
    """A server that is unreachable, or a pool that cannot be offered to, and why."""

    part: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RateFacts:
    """A rate that an execution needs a start of."""

    rate_of: str
    starts: int
    per_seconds: float
    starts_left: int
    next_start_at: datetime | None
    """When a used-up rate has its next start; None: it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFacts:
    """The gate after the queue where an execution waits, or the closed one that keeps it in its queue."""

    id: int
    kind: Literal["action", "resource", "pool"]
    name: str
    closed: Literal["paused", "capacity_zero", "capacity_too_low"] | None
    capacity: int | None
    held: int
    units: int
    """Units that it needs."""
    position: int | None
    waiting: int | None
    holders: Sequence[UnitHolder]
    rates: Sequence[RateFacts]
    """Those of a `pool`, in the order in which starts are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that decide why an execution waits."""

    status: Status
    run_at: datetime | None
    scheduled_at: datetime | None
    """When its latest slot was granted."""
    position: int | None
    """Position in the queue, from 1; None if it is not queued."""
    paused: bool
    max_concurrent: int | None
    active_count: int
    """Held slots of its queue."""
    holders: Sequence[int]
    pool: str
    served: bool
    """A live worker serves the action."""
    trouble: Trouble | None
    """None while all servers are reachable and the pool's queue can be used."""
    has_gates: bool = False
    """Its action has gates after the queue, or it waits at one."""
    gate: GateFacts | None = None
    unclaimed: Sequence[int] = ()
    """Those of `holders` that no worker has claimed."""
    idle_holders: Sequence[int] = ()
    """What holds units of the gate where it waits and does not run yet; in a queue: what holds its slots and
    waits at a later gate. The first, and those that wait for the same."""
    cause: WaitingOn | None = None
    """What the first of `idle_holders` waits for; None: not read."""
    pool_capacity: int | None = None
    """Worker slots of its pool; None while some are free and it is not paused, or while the workers are not
    counted."""
    pool_held: int = 0
    pool_paused: bool = False
    pool_slots: int | None = None
    """Most executions that its pool may hold now: its worker slots and the lead."""
    pool_position: int | None = None
    """Among all that wait only for a worker of the pool; None: not read, or too far behind."""
    pool_waiting: int | None = None
    pool_holders: Sequence[int] = ()
    pools_with_it: Sequence[str] = ()
    """Pools with a live worker that names the action, whatever its own pool is."""


def first_trouble(health: Health, pool: str) -> Trouble | None:
    """Return why nothing can be offered to this pool."""
    if (reason := health.degraded().get(f"pool {pool}")) is not None:
        return Trouble(f"pool {pool}", reason)
    parts = health.readiness().items()
    unreachable = next((Trouble(part, message) for part, message in parts if message is not None), None)
    if unreachable is None and (reason := health.degraded().get("broker")) is not None:
        return Trouble("broker", reason)
    return unreachable


def waiting_on(facts: Facts) -> WaitingOn | None:
    """Return what the execution waits for; None when it runs or has ended."""
    match facts.status:
        case Status.DELAYED:
            return NotDue(run_at=facts.run_at)
        case Status.QUEUED:
            return _in_queue(facts)
        case Status.SCHEDULED:
            return _startable(facts)
        case _:
            return None


def _in_queue(facts: Facts) -> WaitingOn:
    if facts.paused:
        return WaitingOnPause()
    if facts.gate is not None and facts.gate.closed is not None:
        return _at_gate(facts, facts.gate, position=facts.position)
    if facts.max_concurrent is not None and (
        facts.max_concurrent == 0
        if facts.position is None
        else facts.position > facts.max_concurrent - facts.active_count
    ):
        return WaitingOnLimit(
            max_concurrent=facts.max_concurrent,
            active_count=facts.active_count,
            holders=list(facts.holders),
            root_cause=_root_cause(facts),
        )
    if facts.served and facts.gate is not None and not _has_starts(facts.gate):
        return _at_gate(facts, facts.gate, position=facts.gate.position)
    return _startable(facts)


def holder_to_explain(facts: Facts) -> int | None:
    """Return the execution whose reason is needed as `cause`; None: none is, or the cause is known."""
    on = waiting_on(facts)
    if not isinstance(on, WaitingOnLimit | WaitingOnTotal | WaitingOnResource) or on.root_cause is not None:
        return None
    if isinstance(on, WaitingOnTotal | WaitingOnResource) and on.closed is not None:
        return None
    return next(iter(facts.idle_holders), None)


def _root_cause(facts: Facts) -> RootCause | None:
    """Return what the holders, or those ahead in the queue, wait for: the same action needs the same."""
    cause: WaitingOn | None = None
    if facts.unclaimed:
        cause = _startable(replace(facts, status=Status.SCHEDULED))
    elif facts.active_count < (facts.max_concurrent or 0):
        cause = _startable(facts)
    if isinstance(cause, WaitingOnWorker | WaitingOnPool | OutOfReach):
        return RootCause(ids=list(facts.unclaimed), on=cause)
    return _cause_of_holders(facts)


def _cause_of_holders(facts: Facts) -> RootCause | None:
    if facts.cause is None or isinstance(facts.cause, HandingOver | NotDue):
        return None
    return RootCause(ids=list(facts.idle_holders), on=facts.cause)


def _has_starts(gate: GateFacts) -> bool:
    """Return whether all rates of this gate have a start: then the execution waits only for the pool."""
    return gate.kind == "pool" and all(rate.next_start_at is None for rate in gate.rates)


def _at_gate(facts: Facts, gate: GateFacts, *, position: int | None) -> WaitingOn:
    if gate.kind == "pool":
        return _for_a_start(gate)
    shown = WaitingOnTotal if gate.kind == "action" else WaitingOnResource
    return shown(
        gate="total" if gate.kind == "action" else f"resource {gate.name}",
        closed=gate.closed,
        units=gate.units,
        free=None if gate.capacity is None else max(gate.capacity - gate.held, 0),
        capacity=gate.capacity,
        position=position,
        position_of="gate" if gate.closed is None else "queue",
        waiting=gate.waiting,
        holders=list(gate.holders),
        root_cause=None if gate.closed is not None else _cause_of_holders(facts),
    )


def _for_a_start(gate: GateFacts) -> WaitingOn:
    # All rates are taken together, so the one that is free last decides; `max` returns the first of equals.
    rate = max((rate for rate in gate.rates if rate.next_start_at is not None), key=_next_start)
    return WaitingOnRate(
        rate_of=rate.rate_of,
        starts=rate.starts,
        per_seconds=rate.per_seconds,
        next_start_at=rate.next_start_at,
        position=gate.position,
        waiting=gate.waiting,
    )


def _next_start(rate: RateFacts) -> datetime:
    assert rate.next_start_at is not None
    return rate.next_start_at


def _startable(facts: Facts) -> WaitingOn:
    trouble = facts.trouble
    # Workers do not help a pool whose queue cannot be used.
    if trouble is not None and trouble.part == f"pool {facts.pool}":
        return OutOfReach(part=trouble.part, message=trouble.message)
    if not facts.served:
        return WaitingOnWorker(pool=facts.pool, other_pools=list(facts.pools_with_it))
    if trouble is not None:
        return OutOfReach(part=trouble.part, message=trouble.message)
    if facts.status is Status.QUEUED and facts.pool_capacity is not None:
        return WaitingOnPool(
            pool=facts.pool,
            closed="paused" if facts.pool_paused else None,
            capacity=facts.pool_capacity,
            held=facts.pool_held,
            position=facts.pool_position,
            waiting=facts.pool_waiting,
            holders=list(facts.pool_holders),
        )
    return HandingOver(
        pool=facts.pool, granted_at=facts.scheduled_at if facts.status is Status.SCHEDULED else None
    )


def stopping_of(row: "Row", enforced_seconds: float) -> Stopping | None:
    """Return how a running execution is being stopped; None: it has not been asked to, or does not run.

    `row` has `started_at`, `completed_at`, `timeout_seconds`, `cancel_requested_at`, `cancel_reason`,
    `stop_grace_seconds` of its worker (None: unknown) and the time of reading, `read_at`. After
    `enforced_seconds` the executor ends it.
    """
    started_at, cancelled_at = row["started_at"], row["cancel_requested_at"]
    if started_at is None or row["completed_at"] is not None:
        return None
    timed_out_at = None
    if row["timeout_seconds"] is not None:
        timed_out_at = started_at + timedelta(seconds=row["timeout_seconds"])
        if timed_out_at > row["read_at"]:
            timed_out_at = None
    asked = [at for at in (cancelled_at, timed_out_at) if at is not None]
    if not asked:
        return None
    since, grace_seconds = min(asked), row["stop_grace_seconds"]
    seconds = enforced_seconds if grace_seconds is None else min(grace_seconds, enforced_seconds)
    return Stopping(
        reason="cancel" if since == cancelled_at else "timeout",
        since=since,
        kill_at=since + timedelta(seconds=seconds),
        cancel_reason=row["cancel_reason"],
    )
