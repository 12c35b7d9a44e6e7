"""One walk over everything that happened in each queue: how many wait, how many are there, for how long.

In: spans of waiting, and spans of holding a slot or of running. Out: states, each from one instant to the
next. Next: `idle` looks for those that should not last, `figures` adds them up.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stress.tables import Instants


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """When something of a queue began and when it was over."""

    queues: Instants
    starts: Instants
    ends: Instants


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Each state of each queue, in the order of queues and instants; columns of the same length."""

    queues: Instants
    since: Instants
    until: Instants
    waiting: NDArray[np.int32]
    present: NDArray[np.int32]
    """Slots held, or runs running."""
    joined: NDArray[np.bool_]
    """Another one was there when the state began."""


def sweep(waits: Spans, presences: Spans, breakpoints: tuple[Instants, Instants], until: int) -> States:
    """Return the states of all queues up to an instant, from the first thing that happens in each.

    States begin anew at breakpoints, which are queues and instants.
    """
    marks = [
        (waits.queues, waits.starts, (1, 0)),
        (waits.queues, waits.ends, (-1, 0)),
        (presences.queues, presences.starts, (0, 1)),
        (presences.queues, presences.ends, (0, -1)),
        (*breakpoints, (0, 0)),
    ]
    queues = np.concatenate([mark[0] for mark in marks])
    at = np.minimum(np.concatenate([mark[1] for mark in marks]), until)
    order = np.lexsort((at, queues))
    queues, at = queues[order], at[order]
    kinds = np.repeat(np.arange(len(marks), dtype=np.int8), [len(mark[0]) for mark in marks])[order]
    waiting, present, joined = (
        np.cumsum(np.array(steps, np.int8)[kinds], dtype=np.int32)
        for steps in ([1, -1, 0, 0, 0], [0, 0, 1, -1, 0], [0, 0, 1, 0, 0])
    )
    # What happens at one instant is one change. Every span ends in its queue, so the next begins with none.
    last = np.flatnonzero(np.append((queues[1:] != queues[:-1]) | (at[1:] != at[:-1]), True)[: len(at)])
    queues, at, joined = queues[last], at[last], joined[last]
    same = queues[1:] == queues[:-1]
    ends = np.full(len(at), until, np.int64)
    ends[:-1][same] = at[1:][same]
    more = np.diff(joined, prepend=0) > 0
    return States(
        queues=queues, since=at, until=ends, waiting=waiting[last], present=present[last], joined=more
    )
