"""Decides what an execution waits for, from facts of one snapshot (P10).

Pure; `queue_stats.sql` sorts whole queues by the same order of reasons, and a test keeps the two equal.
The nearest reason wins: paused, then the limit, then a pool's queue that cannot be used, then the lack of a
worker, then a server out of reach. So
one that waits for the limit names the holders of the slots, and a holder that no worker claims names that in
turn. `queue_stats` counts what only a server out of reach holds up with what waits for its hand-over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from turnstile.common.domain.states import Status
from turnstile.executor.reading.execution_shapes import (
    HandingOver,
    NotDue,
    OutOfReach,
    WaitingOn,
    WaitingOnLimit,
    WaitingOnPause,
    WaitingOnWorker,
)


class Trouble(NamedTuple):
    """A server that the executor cannot reach, or a pool that it cannot offer to, and why."""

    part: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What bears on why an execution waits."""

    status: Status
    run_at: datetime | None
    scheduled_at: datetime | None
    """When its latest slot was granted."""
    position: int | None
    """Place in line, from 1; None when it is not in line."""
    paused: bool
    max_concurrent: int | None
    active_count: int
    """Slots of its queue that are held."""
    holders: Sequence[int]
    pool: str
    served: bool
    """A live worker serves the pool."""
    trouble: Trouble | None
    """None while all servers can be reached and the pool's queue can be used."""


def first_trouble(parts: Mapping[str, str | None], degraded: Mapping[str, str], pool: str) -> Trouble | None:
    """Return why nothing can be offered to this pool; `parts` and `degraded` as /readyz shows them."""
    if (reason := degraded.get(f"pool {pool}")) is not None:
        return Trouble(f"pool {pool}", reason)
    return next((Trouble(part, message) for part, message in parts.items() if message is not None), None)


def waiting_on(facts: Facts) -> WaitingOn | None:
    """Return what the execution waits for; None when it runs or has ended."""
    match facts.status:
        case Status.DELAYED:
            return NotDue(run_at=facts.run_at)
        case Status.QUEUED:
            return _in_line(facts)
        case Status.SCHEDULED:
            return _startable(facts)
        case _:
            return None


def _in_line(facts: Facts) -> WaitingOn:
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
    # Of a pool whose queue cannot be used, workers would not help.
    if trouble is not None and trouble.part == f"pool {facts.pool}":
        return OutOfReach(part=trouble.part, message=trouble.message)
    if not facts.served:
        return WaitingOnWorker(pool=facts.pool)
    if trouble is not None:
        return OutOfReach(part=trouble.part, message=trouble.message)
    return HandingOver(pool=facts.pool)
