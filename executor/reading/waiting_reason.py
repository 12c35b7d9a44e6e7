"""Decides what an execution waits for, from facts of one snapshot (P10).

Pure; `queue_stats.sql` sorts whole queues by the same order of reasons, and a test keeps the two equal.
The nearest reason wins: paused, then the limit, then the lack of a worker. So one that waits for the limit
names the holders of the slots, and a holder that no worker claims names that in turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from common.domain.states import Status
from executor.reading.execution_shapes import (
    HandingOver,
    NotDue,
    WaitingOn,
    WaitingOnLimit,
    WaitingOnPause,
    WaitingOnWorker,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What bears on why an execution waits."""

    status: Status
    run_at: datetime | None
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
    return HandingOver(pool=facts.pool) if facts.served else WaitingOnWorker(pool=facts.pool)
