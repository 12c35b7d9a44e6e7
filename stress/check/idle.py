"""A slot must not stay free while an execution waits, for longer than a watchdog tick.

The history shows a slot as held until the end of its attempt; in truth it is free only when that end has been
settled. That takes milliseconds, unless a message was lost: then the watchdog publishes the end again after
the settle timeout. So faults that lose messages excuse idle slots for longer than others. During an outage,
and until the system has settled, idle slots are excused.
"""

from collections.abc import Sequence
from typing import Final, assert_never

import numpy as np

from turnstile.stress.check.columns import Violations, finding, time_text
from turnstile.stress.check.intervals import Intervals, States, sweep
from turnstile.stress.check.timelines import UNLIMITED, limit_timeline, queue_entries
from turnstile.stress.check.verdict import Finding, Rule
from turnstile.stress.recording import NEVER, NONE, SECOND, InjectedFault, Instants, Recording
from turnstile.stress.scenario import FaultKind

_RECONNECTING_NS: Final = 6 * SECOND
"""The longest pause between two connection attempts, plus an attempt."""
_SETTLING_NS: Final = 13 * SECOND
"""The settle timeout (10 s), the next tick, and a margin."""


def no_idle_slot(recording: Recording) -> Finding:
    """Check each slot that is free while an execution waits: it is granted within the allowed time.

    Without a limit all may start at once, but one statement grants at most 1000; there, the time between two
    grants is checked. Before paused actions are resumed, no slot counts as idle.
    """
    entries, limits = queue_entries(recording), limit_timeline(recording)
    waits = Intervals(queues=entries.queues, starts=entries.since, ends=entries.granted_at)
    slots = Intervals(queues=entries.queues, starts=entries.granted_at, ends=entries.ended_at)
    states = sweep(waits, slots, limits.breakpoints(), recording.ended_at)
    begins, until = _idle_periods(
        states, slots, limits.lowest(states.queues, states.since), recording.ended_at
    )
    opened_at = recording.began_at if recording.opened_at == NEVER else recording.opened_at
    since = np.maximum(states.since[begins], opened_at)
    allowed_ns = round(recording.idle_allowed_seconds * SECOND)
    windows = fault_windows(recording.faults)
    long = np.flatnonzero(until - since > allowed_ns)
    left_ns = {int(row): longest_outside(int(since[row]), int(until[row]), windows) for row in long}

    def sentence(row: int) -> str:
        state = begins[row]
        return (
            f"in queue {states.queues[state]} a slot was free while an execution waited, for"
            f" {left_ns[row] / SECOND:.2f} s, from {time_text(recording, since[row])} on, when"
            f" {states.present[state]} slots were held and {states.waiting[state]} executions waited"
        )

    rows = _apart(
        [row for row, left in left_ns.items() if left > allowed_ns], states.queues[begins], since, until
    )
    return finding(Rule.NO_IDLE_SLOT, len(entries.queues), Violations(rows=rows, sentence=sentence))


def _idle_periods(
    states: States, slots: Intervals, limit: Instants, over_at: int
) -> tuple[Instants, Instants]:
    """Return the states in which a slot becomes idle, and for each when that ends.

    A grant takes the slot that has been free for longest. Where k slots are free, the last of them is taken
    by the k-th grant from then on, unless the queue is empty or the limit changes before.
    """
    unlimited = limit == UNLIMITED
    free = np.where(unlimited, 1, limit - states.present)
    waits, first = states.waiting > 0, np.append(True, np.diff(states.queues) != 0)[: len(limit)]
    begins = first | states.marked | ~waits | np.append(True, ~waits[:-1])[: len(limit)]
    more_granted = np.diff(states.begun, prepend=0) > 0
    more_freed = np.diff(states.begun - states.present, prepend=0) > 0
    idle = np.flatnonzero(waits & (free > 0) & (begins | more_freed | (unlimited & more_granted)))
    stretches = np.cumsum(begins)
    last = np.searchsorted(stretches, stretches[idle], side="right") - 1
    granted_at = np.minimum(slots.starts, over_at)
    order = np.lexsort((granted_at, slots.queues))
    takers = np.minimum(states.begun[idle] + free[idle] - 1, len(order) - 1)
    taken = order[takers]
    taken_at = np.where(slots.queues[taken] == states.queues[idle], granted_at[taken], over_at)
    return idle, np.minimum(states.until[last], taken_at)


def _apart(rows: Sequence[int], queues: Instants, since: Instants, until: Instants) -> Instants:
    """Return the periods that do not overlap an earlier one of their queue: two idle slots count once."""
    kept: list[int] = []
    queue, lasts_until = NONE, 0
    for row in rows:
        if queues[row] != queue or since[row] >= lasts_until:
            kept.append(row)
            queue, lasts_until = int(queues[row]), 0
        lasts_until = max(lasts_until, int(until[row]))
    return np.array(kept, np.int64)


def fault_windows(faults: Sequence[InjectedFault]) -> list[tuple[int, int]]:
    """Return the periods in which idle slots are excused, in the order of beginnings."""
    return sorted(
        (fault.began_at, min(fault.healed_at, NEVER - _SETTLING_NS) + settling_ns)
        for fault in faults
        if (settling_ns := _settling_ns(fault.kind)) is not None
    )


def _settling_ns(kind: FaultKind) -> int | None:
    match kind:
        case FaultKind.CHANGE_LIMIT:
            # Not an outage.
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
    """Return the longest part of a period outside all windows."""
    longest, at = 0, since
    for begins, ends in windows:
        longest = max(longest, min(begins, until) - at)
        at = max(at, ends)
    return max(longest, until - at)
