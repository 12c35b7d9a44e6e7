"""Decides whether the database has been healthy for a whole lease, on its own clock. Pure.

In: the database's time at each check. Out: since when there was no gap. During an outage live workers cannot
renew, so an expired lease proves a dead worker only after a whole healthy lease (P6). A server that was only
frozen raises no error anywhere: its responses are late, which appears as a gap.
"""

from datetime import datetime, timedelta
from typing import Final

_GAP_SHARE: Final = 3
"""A gap of a third of a lease is an outage: a worker that renews each half lease has a sixth of it left."""
_CHECKS_PER_GAP: Final = 3
"""One late or slow check is no gap."""
_JUMP_SECONDS: Final = 0.5


class DatabaseHealth:
    """Takes the results of `clock_timestamp()` from one watchdog."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease = timedelta(seconds=lease_seconds)
        self._healthy_since: datetime | None = None
        self._seen_at: datetime | None = None

    @property
    def check_seconds(self) -> float:
        """Longest interval between calls of `seen` that leaves no gap."""
        return self._lease.total_seconds() / _GAP_SHARE / _CHECKS_PER_GAP

    def seen(self, at: datetime) -> None:
        """Note that the database answered at `at` on its clock."""
        if self._seen_at is None or at - self._seen_at > self._lease / _GAP_SHARE or at < self._seen_at:
            self._healthy_since = at
        self._seen_at = at

    def lost(self) -> None:
        """Note that the database did not answer."""
        self._seen_at = None

    def healthy_for_a_lease(self) -> datetime | None:
        """Return the last moment that a whole healthy lease preceded, or None if there is none."""
        if self._seen_at is None or self._healthy_since is None:
            return None
        return self._seen_at if self._seen_at - self._healthy_since >= self._lease else None


class DatabaseClock:
    """Compares the database's clock with the monotonic clock of this process."""

    def __init__(self) -> None:
        self._seen: tuple[float, datetime, float] | None = None

    def seen(self, sent: float, at: datetime, answered: float) -> float:
        """Return the jump since the last call in seconds; negative: the clock was set back.

        `sent` and `answered` are monotonic instants before and after the database returned `at`. A difference
        within that interval is no jump, nor is one below half a second.
        """
        before, self._seen = self._seen, (sent, at, answered)
        if before is None:
            return 0.0
        sent_before, at_before, answered_before = before
        passed_seconds = (at - at_before).total_seconds()
        back_seconds = passed_seconds - (sent - answered_before)
        ahead_seconds = passed_seconds - (answered - sent_before)
        if back_seconds < -_JUMP_SECONDS:
            return back_seconds
        return ahead_seconds if ahead_seconds > _JUMP_SECONDS else 0.0
