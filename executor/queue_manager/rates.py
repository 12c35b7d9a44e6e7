"""Rates: at most `starts` grants in any span of `per_seconds` (P13).

The window slides exactly: it consists of the instants of the latest grants. A start can be kept for an
execution that holds units and waits for something else; otherwise its neighbours would take each start while
it waits for another one.
"""

from collections import deque
from math import inf

from turnstile.executor.queue_manager.definitions import Rate


class RateWindow:
    """The latest grants through one rate. Instants in seconds, ascending."""

    __slots__ = ("instants", "kept", "name", "rate", "timer_at")

    def __init__(self, name: str, rate: Rate) -> None:
        self.name = name
        """`action <ref>` or `resource <name>`."""
        self.rate = rate
        self.instants: deque[float] = deque()
        self.kept = 0
        """Starts that are kept for executions that hold units."""
        self.timer_at = inf
        """The instant of the timer that looks for the next start."""

    def has_start(self, now: float) -> bool:
        """Return whether one more grant is allowed now, beside the kept starts."""
        return self.left(now) > 0

    def left(self, now: float) -> int:
        """Return how many grants are allowed now, beside the kept starts."""
        self._forget(now)
        return self.rate.starts - len(self.instants) - self.kept

    def next_start_at(self, now: float) -> float:
        """Return when the next grant is allowed; inf: not before a kept start is used or given up."""
        self._forget(now)
        missing = len(self.instants) + self.kept - self.rate.starts
        if missing < 0:
            return now
        return self._over_at(self.instants[missing]) if missing < len(self.instants) else inf

    def count(self, now: float) -> None:
        """Record a grant, for which a start was kept."""
        self.kept -= 1
        self.instants.append(now)

    def _forget(self, now: float) -> None:
        while self.instants and now >= self._over_at(self.instants[0]):
            self.instants.popleft()

    def _over_at(self, instant: float) -> float:
        """Return when a grant leaves the window, in whole microseconds as all instants are."""
        return round(instant + self.rate.per_seconds, 6)
