"""A free slot beside somebody waiting: for longer than a watchdog tick it must not stand there.

In: a recording. Out: one finding. Next: `counters`.

The record shows a slot until the end of its attempt, and in truth it is free only when that end has come
round. That takes milliseconds, unless a message was lost: then the watchdog tells the end again after the
settle timeout. So faults that lose messages have longer windows here than others. While something is broken,
and until it has settled, an idle slot is nobody's fault.
"""

from collections.abc import Sequence
from typing import Final, assert_never

import numpy as np

from turnstile.stress.check.breach import Breach, finding
from turnstile.stress.check.columns import moment
from turnstile.stress.check.in_force import UNLIMITED, limits_in_force
from turnstile.stress.check.line import stays
from turnstile.stress.check.sweep import Spans, States, sweep
from turnstile.stress.check.verdict import Finding, Rule
from turnstile.stress.recording import InjectedFault, Recording
from turnstile.stress.stage import FaultKind
from turnstile.stress.tables import NEVER, NONE, SECOND, Instants

_RECONNECTING_NS: Final = 6 * SECOND
"""The longest pause between two tries to connect, and a try."""
_SETTLING_NS: Final = 13 * SECOND
"""The settle timeout (10 s), the tick after it, and a margin."""


def no_idle_slot(recording: Recording) -> Finding:
    """Judge each slot that is free while somebody waits: it is granted within the time allowed.

    Without a limit everybody may start at once, but one statement grants no more than a thousand: so there
    the time between two grants is judged. Nothing is idle before what was held back is let go.
    """
    line, limits = stays(recording), limits_in_force(recording)
    waits = Spans(queues=line.queues, starts=line.since, ends=line.granted_at)
    slots = Spans(queues=line.queues, starts=line.granted_at, ends=line.ended_at)
    states = sweep(waits, slots, limits.breakpoints(), recording.ended_at)
    places, until = _spells(states, slots, limits.least(states.queues, states.since), recording.ended_at)
    opened_at = recording.began_at if recording.opened_at == NEVER else recording.opened_at
    since = np.maximum(states.since[places], opened_at)
    allowed_ns = round(recording.idle_allowed_seconds * SECOND)
    windows = fault_windows(recording.faults)
    long = np.flatnonzero(until - since > allowed_ns)
    left_ns = {int(row): longest_outside(int(since[row]), int(until[row]), windows) for row in long}

    def sentence(row: int) -> str:
        state = places[row]
        return (
            f"in queue {states.queues[state]} a slot was free beside somebody waiting for"
            f" {left_ns[row] / SECOND:.2f} s, from {moment(recording, since[row])} on, when"
            f" {states.present[state]} were held and {states.waiting[state]} waited"
        )

    rows = _apart(
        [row for row, left in left_ns.items() if left > allowed_ns], states.queues[places], since, until
    )
    return finding(Rule.NO_IDLE_SLOT, len(line.queues), Breach(rows=rows, sentence=sentence))


def _spells(states: States, slots: Spans, limit: Instants, over_at: int) -> tuple[Instants, Instants]:
    """Return the states in which a slot begins to be idle, and for each of them when it no longer is.

    Whoever is granted takes the slot that has been free for longest. So where k are free, the last of them is
    taken by the k-th grant from there on, unless before that nobody waits any more or the limit changes.
    """
    unlimited = limit == UNLIMITED
    free = np.where(unlimited, 1, limit - states.present)
    waits, first = states.waiting > 0, np.append(True, np.diff(states.queues) != 0)[: len(limit)]
    begins = first | states.marked | ~waits | np.append(True, ~waits[:-1])[: len(limit)]
    more_granted = np.diff(states.begun, prepend=0) > 0
    more_freed = np.diff(states.begun - states.present, prepend=0) > 0
    places = np.flatnonzero(waits & (free > 0) & (begins | more_freed | (unlimited & more_granted)))
    stretches = np.cumsum(begins)
    last = np.searchsorted(stretches, stretches[places], side="right") - 1
    granted_at = np.minimum(slots.starts, over_at)
    order = np.lexsort((granted_at, slots.queues))
    takers = np.minimum(states.begun[places] + free[places] - 1, len(order) - 1)
    taken = order[takers]
    taken_at = np.where(slots.queues[taken] == states.queues[places], granted_at[taken], over_at)
    return places, np.minimum(states.until[last], taken_at)


def _apart(rows: Sequence[int], queues: Instants, since: Instants, until: Instants) -> Instants:
    """Return the spells that begin when no other of their queue lasts: two slots at once are one of them."""
    kept: list[int] = []
    queue, lasts_until = NONE, 0
    for row in rows:
        if queues[row] != queue or since[row] >= lasts_until:
            kept.append(row)
            queue, lasts_until = int(queues[row]), 0
        lasts_until = max(lasts_until, int(until[row]))
    return np.array(kept, np.int64)


def fault_windows(faults: Sequence[InjectedFault]) -> list[tuple[int, int]]:
    """Return when idle slots are not held against the system, in the order of beginnings."""
    return sorted(
        (fault.began_at, min(fault.healed_at, NEVER - _SETTLING_NS) + settling_ns)
        for fault in faults
        if (settling_ns := _settling_ns(fault.kind)) is not None
    )


def _settling_ns(kind: FaultKind) -> int | None:
    match kind:
        case FaultKind.CHANGE_LIMIT:
            # Nothing is broken: which limit is in force is known.
            return None
        case FaultKind.KILL_EXECUTOR | FaultKind.PAUSE_EXECUTOR | FaultKind.RESTART_DATABASE:
            return _RECONNECTING_NS
        case (
            FaultKind.KILL_WORKER | FaultKind.PAUSE_WORKER | FaultKind.RESTART_BROKER | FaultKind.PURGE_QUEUES
        ):
            return _SETTLING_NS
        case _:
            assert_never(kind)


def longest_outside(since: int, until: int, windows: Sequence[tuple[int, int]]) -> int:
    """Return the longest piece of a spell that lies in no window."""
    longest, at = 0, since
    for begins, ends in windows:
        longest = max(longest, min(begins, until) - at)
        at = max(at, ends)
    return max(longest, until - at)
