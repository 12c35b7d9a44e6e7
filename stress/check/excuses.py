"""Periods of a recording in which bounds on durations do not count.

A commit takes milliseconds, unless a report was lost: then the worker sends it again some seconds later. So
faults that lose messages excuse what is late for longer than others.
"""

from collections.abc import Iterable, Sequence
from typing import Final, assert_never

from turnstile.stress.recording import NEVER, SECOND, Recording
from turnstile.stress.scenario import FaultKind

_RECONNECTING_NS: Final = 6 * SECOND
"""The longest pause between two connection attempts, plus an attempt."""
_SETTLING_NS: Final = 13 * SECOND
"""The longest time until a lost report is sent again and committed, and a margin."""


def disturbed(recording: Recording) -> list[tuple[int, int]]:
    """Return the periods before paused actions were resumed and of faults, until the system has settled."""
    opened_at = [] if recording.opened_at == NEVER else [(-NEVER, recording.opened_at)]
    faults = [
        (fault.began_at, min(fault.healed_at, NEVER - _SETTLING_NS) + settling_ns)
        for fault in recording.faults
        if (settling_ns := _settling_ns(fault.kind)) is not None
    ]
    return merged(opened_at + faults)


def merged(periods: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the periods as such that do not overlap, in their order."""
    found: list[tuple[int, int]] = []
    for since, until in sorted(periods):
        if found and since <= found[-1][1]:
            found[-1] = (found[-1][0], max(until, found[-1][1]))
        else:
            found.append((since, until))
    return found


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


def back_by(at: int, span_ns: int, excused: Sequence[tuple[int, int]]) -> int:
    """Return the instant that is so long before another one, where excused periods take no time."""
    for since, until in reversed(excused):
        if since < at:
            counted_ns = max(at - until, 0)
            if counted_ns >= span_ns:
                break
            at, span_ns = since, span_ns - counted_ns
    return at - span_ns


def forward_by(at: int, span_ns: int, excused: Sequence[tuple[int, int]]) -> int:
    """Return the instant that is so long after another one, where excused periods take no time."""
    for since, until in excused:
        if until > at:
            counted_ns = max(since - at, 0)
            if counted_ns >= span_ns:
                break
            at, span_ns = until, span_ns - counted_ns
    return at + span_ns
