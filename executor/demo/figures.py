"""The arithmetic of a history: how many at once, in which order, how long.

In: attempts of one queue. Out: counts and seconds. Pure; `report` turns them into a verdict.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from turnstile.executor.demo.history import AttemptHistory

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class Span(NamedTuple):
    """From an instant up to, and without, another; or open."""

    start: datetime
    end: datetime | None


class Overtaking(NamedTuple):
    """The later execution was granted a slot while the earlier one stood in line."""

    execution_id: int
    overtaken_id: int


def held(attempts: Iterable[AttemptHistory]) -> list[Span]:
    """Return for how long each slot was held, as the record can tell: from the grant to the end."""
    return [Span(a.granted_at, a.ended_at) for a in attempts]


def running(attempts: Iterable[AttemptHistory]) -> list[Span]:
    """Return for how long each attempt ran on a worker."""
    return [Span(a.started_at, a.ended_at) for a in attempts if a.started_at is not None]


def most_at_once(spans: Iterable[Span]) -> int:
    """Return the most spans that share one instant."""
    edges: list[tuple[datetime, int]] = []
    for start, end in spans:
        edges += [(start, 1), (end or _NEVER, -1)]
    most = now = 0
    # At one instant ends sort before starts: a span does not hold its last instant.
    for _, step in sorted(edges):
        now += step
        most = max(most, now)
    return most


def overtakings(attempts: Iterable[AttemptHistory]) -> list[Overtaking]:
    """Return each grant that went past somebody in line, with the first one that it went past (P2)."""
    found: list[Overtaking] = []
    # Grants of one moment are one decision; within it the tickets say who was first.
    in_order = sorted(attempts, key=lambda a: (a.granted_at, a.execution_id))
    for index, granted in enumerate(in_order):
        passed = [
            later.execution_id
            for later in in_order[index + 1 :]
            if later.execution_id < granted.execution_id and later.waiting_since <= granted.granted_at
        ]
        if passed:
            found.append(Overtaking(granted.execution_id, min(passed)))
    return found


def waits(attempts: Iterable[AttemptHistory]) -> list[float]:
    """Return the seconds between standing in line and starting."""
    return [(a.started_at - a.waiting_since).total_seconds() for a in attempts if a.started_at is not None]


def hand_overs(attempts: Sequence[AttemptHistory], max_concurrent: int | None) -> list[float]:
    """Return the seconds from the end of one attempt to the start of the next on a full queue (P8).

    Each grant takes the slot that has been free for longest. It counts when whoever got the slot was in
    line before it came free.
    """
    if max_concurrent is None:
        return []
    ends = deque(sorted(a.ended_at for a in attempts if a.ended_at is not None))
    free: deque[datetime | None] = deque([None] * max_concurrent)
    found: list[float] = []
    for attempt in sorted(attempts, key=lambda a: (a.granted_at, a.execution_id)):
        while ends and ends[0] <= attempt.granted_at:
            free.append(ends.popleft())
        free_since = free.popleft() if free else None
        if free_since and attempt.started_at and attempt.waiting_since <= free_since:
            found.append((attempt.started_at - free_since).total_seconds())
    return found


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of the values do not exceed (nearest rank)."""
    in_order = sorted(values)
    return in_order[max(math.ceil(share * len(in_order)), 1) - 1] if in_order else None
