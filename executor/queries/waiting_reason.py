"""Decides what an execution waits for, from facts of one snapshot (P10).

Pure; the statement `queue_stats` sorts whole queues by the same order of reasons, and a test keeps the two
equal. The nearest reason wins: paused, then the limit, then a pool's queue that cannot be used, then no
worker, then a server that is unreachable. So an execution that waits for the limit names the slot holders,
and a holder that no worker claims names that in turn. `queue_stats` counts what only an unreachable server
holds up with what waits for its dispatch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from turnstile.common.domain.states import Status
from turnstile.executor.queries.schemas import (
    HandingOver,
    NotDue,
    OutOfReach,
    WaitingOn,
    WaitingOnLimit,
    WaitingOnPause,
    WaitingOnWorker,
)


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


def first_trouble(health: Health, pool: str) -> Trouble | None:
    """Return why nothing can be offered to this pool."""
    if (reason := health.degraded().get(f"pool {pool}")) is not None:
        return Trouble(f"pool {pool}", reason)
    parts = health.readiness().items()
    return next((Trouble(part, message) for part, message in parts if message is not None), None)


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
    assert facts.position is not None
    if facts.paused:
        return WaitingOnPause()
    if facts.max_concurrent is not None and facts.position > facts.max_concurrent - facts.active_count:
        return WaitingOnLimit(
            max_concurrent=facts.max_concurrent,
            active_count=facts.active_count,
            holders=list(facts.holders),
        )
    return _startable(facts)


def _startable(facts: Facts) -> WaitingOn:
    trouble = facts.trouble
    # Workers do not help a pool whose queue cannot be used.
    if trouble is not None and trouble.part == f"pool {facts.pool}":
        return OutOfReach(part=trouble.part, message=trouble.message)
    if not facts.served:
        return WaitingOnWorker(pool=facts.pool)
    if trouble is not None:
        return OutOfReach(part=trouble.part, message=trouble.message)
    return HandingOver(pool=facts.pool)
