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

from stress.check.breach import Breach, finding
from stress.check.columns import moment
from stress.check.in_force import UNLIMITED, LimitsInForce, limits_in_force
from stress.check.line import stays
from stress.check.sweep import Spans, States, sweep
from stress.check.verdict import Finding, Rule
from stress.recording import InjectedFault, Recording
from stress.stage import FaultKind
from stress.tables import NEVER, SECOND, Instants

_RECONNECTING_NS: Final = 6 * SECOND
"""The longest pause between two tries to connect, and a try."""
_SETTLING_NS: Final = 13 * SECOND
"""The settle timeout (10 s), the tick after it, and a margin."""


def no_idle_slot(recording: Recording) -> Finding:
    """Judge each queue: no spell of somebody waiting beside a free slot is longer than allowed.

    Without a limit everybody may start at once, but one statement grants no more than a thousand: so there a
    spell is one without any grant. Nothing is idle before what was held back is let go.
    """
    line, limits = stays(recording), limits_in_force(recording)
    waits = Spans(queues=line.queues, starts=line.since, ends=line.granted_at)
    slots = Spans(queues=line.queues, starts=line.granted_at, ends=line.ended_at)
    states = sweep(waits, slots, limits.breakpoints(), recording.ended_at)
    spells = _spells(states, limits)
    allowed_ns = round(recording.idle_allowed_seconds * SECOND)
    opened_at = recording.began_at if recording.opened_at == NEVER else recording.opened_at
    since = np.maximum(states.since[spells[:, 0]], opened_at)
    until = states.until[spells[:, 1]]
    windows = fault_windows(recording.faults)
    long = np.flatnonzero(until - since > allowed_ns)
    left_ns = {int(row): longest_outside(int(since[row]), int(until[row]), windows) for row in long}

    def sentence(row: int) -> str:
        state = spells[row, 0]
        return (
            f"in queue {states.queues[state]} a slot was free beside {states.waiting[state]} waiting for"
            f" {left_ns[row] / SECOND:.2f} s, from {moment(recording, since[row])} on:"
            f" {states.present[state]} were held"
        )

    rows = np.array([row for row, left in left_ns.items() if left > allowed_ns], np.int64)
    return finding(Rule.NO_IDLE_SLOT, len(line.queues), Breach(rows=rows, sentence=sentence))


def _spells(states: States, limits: LimitsInForce) -> Instants:
    """Return the first and the last state of each idle spell."""
    limit = limits.least(states.queues, states.since)
    idle = (states.waiting > 0) & (states.present < limit)
    goes_on = np.zeros(len(idle), np.bool_)
    goes_on[1:] = idle[:-1] & (states.queues[1:] == states.queues[:-1])
    goes_on &= ~(states.joined & (limit == UNLIMITED))
    first = np.flatnonzero(idle & ~goes_on)
    last = np.flatnonzero(idle & ~np.append(idle[1:] & goes_on[1:], False)[: len(idle)])
    return np.stack([first, last], axis=1).astype(np.int64)


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
