"""The last minutes of one queue: a small ring of totals, from which rates and a sparkline follow.

In: totals at instants, as the reading finds them. Out: how many a second were admitted and ended, and the
depth over time. A point is kept only where something moved, so a quiet queue costs one point. Pure.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

BUCKET_SECONDS: Final = 5
BUCKETS: Final = 60
"""Points of a sparkline: five minutes."""
RATE_SECONDS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a queue's row says at one instant."""

    enqueued: int
    completed: int
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Per second, over the last minute or as much of it as was seen."""

    enqueued: float
    completed: float


class History:
    """Totals since somebody looks, at most one point a bucket: the last one in it."""

    __slots__ = ("_points",)

    def __init__(self, at: float, totals: Totals) -> None:
        self._points = deque([(at, totals)], maxlen=BUCKETS + 1)

    def note(self, at: float, totals: Totals) -> None:
        """Remember the totals at `at` (seconds of an epoch); instants never go back."""
        if self._points[-1][1] == totals:
            return
        # The first one stays as it is: what happened since then is reckoned from it.
        if len(self._points) > 1 and bucket_of(self._points[-1][0]) == bucket_of(at):
            self._points.pop()
        self._points.append((at, totals))

    def rates(self, now: float) -> Rates | None:
        """Return the rates up to `now`; None while too little was seen to say."""
        # A bucket's point stands near its end, so the minute begins where a bucket does.
        start = float(bucket_of(now - RATE_SECONDS) * BUCKET_SECONDS)
        began_at, first = self._points[0]
        for at, totals in self._points:
            if at > start:
                break
            first = totals
        seconds = now - max(start, began_at)
        if seconds < 1.0:
            return None
        last = self._points[-1][1]
        # A repair of the counters may lower a total.
        return Rates(
            enqueued=max(last.enqueued - first.enqueued, 0) / seconds,
            completed=max(last.completed - first.completed, 0) / seconds,
        )

    def depths(self, now: float) -> list[int | None]:
        """Return the depth at the end of each of the last buckets, oldest first; None before the first."""
        found: list[int | None] = []
        last, points, depth = bucket_of(now), iter(self._points), None
        following = next(points, None)
        for bucket in range(last - BUCKETS + 1, last + 1):
            while following is not None and bucket_of(following[0]) <= bucket:
                depth = following[1].depth
                following = next(points, None)
            found.append(depth)
        return found


def bucket_of(at: float) -> int:
    """Return the number of the bucket in which an instant falls."""
    return int(at // BUCKET_SECONDS)
