"""Says when an execution that waits will start: an interval, or nothing where nothing is known (P10).

In: why it waits, its place, and the recent pace of its queue. Out: an interval that holds the start in at
least eight of ten cases while the load stays what it was. Pure. A start is the claim by a worker, not the
grant. There is none for what is paused, has no worker or a limit of 0, or waits while a server is out of
reach; nor for an action of which nothing has ended yet. What is not due starts after its `run_at`: by its
ticket it stands before all that came later. Next: `estimate_line` plays the line, `estimate_runs` learns the
lengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from turnstile.common.domain.states import Status
from turnstile.executor.reading.estimate_line import Slots, seconds_to_start
from turnstile.executor.reading.estimate_runs import Grant, RunLengths, claim_waits, run_lengths
from turnstile.executor.reading.execution_shapes import EstimatedStart
from turnstile.executor.reading.waiting_reason import Facts

_OWN_MIN: Final = 8
"""With so many grants a queue speaks for itself; with fewer, the action's other keys do."""
_LOW: Final = 0.05
_HIGH: Final = 0.95
_SLACK_SECONDS: Final = 0.1
"""What messages and commits may take more than they did."""
_TICK_SECONDS: Final = 1.0
"""What is due, or was left beside a free slot, may wait for a look of the watchdog."""
_AHEAD_MAX_SECONDS: Final = 10 * 366 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the record tells of the recent pace of a queue."""

    looked_at: datetime
    own: Sequence[Grant]
    """Latest grants of the queue itself."""
    others: Sequence[Grant]
    """Latest grants of the action's other keys."""
    ages: Sequence[float | None]
    """Seconds since the grants of some holders of slots; None: it has ended and is not settled."""
    ahead: int | None
    """How many waiting ones it will stand behind when it is due; None: it is in line, or was."""


def may_be_estimated(facts: Facts) -> bool:
    """Tell whether there is a start to expect, so that the pace is worth a look."""
    waits = facts.status in (Status.DELAYED, Status.QUEUED, Status.SCHEDULED)
    return waits and facts.served and facts.trouble is None and not facts.paused and facts.max_concurrent != 0


def estimated_start(facts: Facts, pace: Pace) -> EstimatedStart | None:
    """Return when it starts, seen from `pace.looked_at`; None where that cannot be told."""
    waits = claim_waits([*pace.own, *pace.others])
    if waits is None or not may_be_estimated(facts):
        return None
    match facts.status:
        case Status.SCHEDULED:
            return _interval(pace, *_to_claim(facts, pace, waits))
        case Status.DELAYED:
            granted = _when_due(facts, pace)
        case _:
            granted = _in_line(facts, pace, facts.position or 1)
    if granted is None:
        return None
    return _interval(pace, granted[0] + waits.length(_LOW), granted[1] + waits.length(_HIGH) + _SLACK_SECONDS)


def _in_line(facts: Facts, pace: Pace, position: int) -> tuple[float, float] | None:
    limit = facts.max_concurrent
    if limit is None or position <= limit - facts.active_count:
        return 0.0, _TICK_SECONDS
    lengths = _lengths(facts, pace)
    if lengths is None:
        return None
    slots = Slots(limit=limit, active_count=facts.active_count, ages=pace.ages)
    return seconds_to_start(slots, lengths, position)


def _when_due(facts: Facts, pace: Pace) -> tuple[float, float] | None:
    # By its ticket it will stand behind those of today's line that have not started by then.
    if facts.run_at is None:
        return None
    from_now = _in_line(facts, pace, (pace.ahead or 0) + 1)
    as_the_head = _in_line(facts, pace, 1)
    if from_now is None or as_the_head is None:
        return None
    due = max((facts.run_at - pace.looked_at).total_seconds(), 0.0)
    return max(from_now[0], due), max(from_now[1], due + as_the_head[1] + _TICK_SECONDS)


def _to_claim(facts: Facts, pace: Pace, waits: RunLengths) -> tuple[float, float]:
    age = 0.0
    if facts.scheduled_at is not None:
        age = max((pace.looked_at - facts.scheduled_at).total_seconds(), 0.0)
    return waits.rest(age, _LOW), waits.rest(age, _HIGH) + _SLACK_SECONDS


def _lengths(facts: Facts, pace: Pace) -> RunLengths | None:
    if sum(grant.lasted is not None for grant in pace.own) >= _OWN_MIN:
        return run_lengths(pace.own, limit=facts.max_concurrent)
    return run_lengths([*pace.own, *pace.others], limit=None)


def _interval(pace: Pace, earliest: float, latest: float) -> EstimatedStart:
    return EstimatedStart(
        earliest=pace.looked_at + timedelta(seconds=min(earliest, _AHEAD_MAX_SECONDS)),
        latest=pace.looked_at + timedelta(seconds=min(max(earliest, latest), _AHEAD_MAX_SECONDS)),
    )
