"""A sweep over the intervals of all queues: waiting and running at each moment, concurrency at each start.

In: intervals of waiting, and of holding a slot or running. Out: columns, for metrics and the limit of runs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.recording import Instants


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Intervals of queues; columns of the same length."""

    queues: Instants
    starts: Instants
    ends: Instants


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """The states of each queue in the order of queues and instants; columns of the same length."""

    queues: Instants
    since: Instants
    until: Instants
    waiting: NDArray[np.int32]
    present: NDArray[np.int32]
    """Slots held, or runs in progress."""


def sweep(
    waits: Intervals, presences: Intervals, breakpoints: tuple[Instants, Instants], until: int
) -> States:
    """Return the states of all queues up to an instant, each queue from its first event.

    A new state begins at each breakpoint; breakpoints are queues and instants.
    """
    events = [
        (waits.queues, waits.starts),
        (waits.queues, waits.ends),
        (presences.queues, presences.starts),
        (presences.queues, presences.ends),
        breakpoints,
    ]
    queues = np.concatenate([queues for queues, _ in events])
    at = np.minimum(np.concatenate([instants for _, instants in events]), until)
    order = np.lexsort((at, queues))
    queues, at = queues[order], at[order]
    kinds = np.repeat(np.arange(len(events), dtype=np.int8), [len(instants) for _, instants in events])[order]
    # Events of one instant are one change. Every interval ends in its queue, so the next queue begins with 0.
    last = np.flatnonzero(np.append((queues[1:] != queues[:-1]) | (at[1:] != at[:-1]), True)[: len(at)])
    waiting, present = (
        np.cumsum(np.array(steps, np.int8)[kinds], dtype=np.int32)[last]
        for steps in ([1, -1, 0, 0, 0], [0, 0, 1, -1, 0])
    )
    queues, at = queues[last], at[last]
    same = queues[1:] == queues[:-1]
    ends = np.full(len(at), until, np.int64)
    ends[:-1][same] = at[1:][same]
    return States(
        queues=queues,
        since=at,
        until=ends,
        waiting=waiting,
        present=present,
    )


def concurrency_at_starts(queues: Instants, starts: Instants, ends: Instants) -> Instants:
    """Return for each interval the number of its queue's intervals at its start, itself included.

    An interval holds its start and not its end. One that ends before its start counts only for itself.
    """
    count = len(starts)
    lasting = (ends > starts).astype(np.int32)
    is_start = np.repeat(np.array([1, 0], np.int8), count)
    order = np.lexsort((is_start, np.concatenate([starts, ends]), np.concatenate([queues, queues])))
    # Each interval adds one and subtracts one, so every queue begins with 0.
    now = np.cumsum(np.concatenate([lasting, -lasting])[order])
    found = np.empty(count, np.int64)
    of_start = order < count
    found[order[of_start]] = now[of_start]
    return found + (1 - lasting)
