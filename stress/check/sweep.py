"""One walk over everything that happened in each queue: how many wait, how many are there, for how long.

In: spans of waiting, and spans of holding a slot or of running. Out: states, each from one instant to the
next. Next: `idle` looks for those that should not last, `figures` adds them up.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.tables import Instants


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
    begun: Instants
    """So many had begun, in this queue up to this state and in all queues before it."""
    marked: NDArray[np.bool_]
    """A breakpoint lies at its beginning."""


def sweep(waits: Spans, presences: Spans, breakpoints: tuple[Instants, Instants], until: int) -> States:
    """Return the states of all queues up to an instant, from the first thing that happens in each.

    States begin anew at breakpoints, which are queues and instants.
    """
    marks = [
        (waits.queues, waits.starts),
        (waits.queues, waits.ends),
        (presences.queues, presences.starts),
        (presences.queues, presences.ends),
        breakpoints,
    ]
    queues = np.concatenate([queues for queues, _ in marks])
    at = np.minimum(np.concatenate([instants for _, instants in marks]), until)
    order = np.lexsort((at, queues))
    queues, at = queues[order], at[order]
    kinds = np.repeat(np.arange(len(marks), dtype=np.int8), [len(instants) for _, instants in marks])[order]
    # What happens at one instant is one change. Every span ends in its queue, so the next begins with none.
    last = np.flatnonzero(np.append((queues[1:] != queues[:-1]) | (at[1:] != at[:-1]), True)[: len(at)])
    waiting, present, begun, marks_so_far = (
        np.cumsum(np.array(steps, np.int8)[kinds], dtype=np.int32)[last]
        for steps in ([1, -1, 0, 0, 0], [0, 0, 1, -1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 1])
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
        begun=begun.astype(np.int64),
        marked=np.diff(marks_so_far, prepend=0) > 0,
    )
