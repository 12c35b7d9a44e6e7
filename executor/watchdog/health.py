"""How long the database has been well without a break, on its own clock: the judge of who may be reclaimed.

In: the database's time at each look. Out: for how long there was no gap. An outage keeps living workers from
renewing, so only after a whole healthy lease is a lease that is over the sign of a dead worker (P6). A server
that merely stood still for a while raises no error anywhere: its answers come late, and the gap shows that.
"""

from datetime import datetime, timedelta
from typing import Final

_GAP_SHARE: Final = 3
"""A gap of a third of a lease is an outage: who renews each half lease still has a sixth of it left."""
_LOOKS_IN_A_GAP: Final = 3
"""One look that comes late, or takes long, is no gap yet."""
_JUMP_SECONDS: Final = 0.5


class Health:
    """Fed by one watchdog with what `clock_timestamp()` said."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease = timedelta(seconds=lease_seconds)
        self._well_since: datetime | None = None
        self._seen_at: datetime | None = None

    @property
    def look_seconds(self) -> float:
        """How often it must be fed, or looks themselves would seem to be gaps."""
        return self._lease.total_seconds() / _GAP_SHARE / _LOOKS_IN_A_GAP

    def seen(self, at: datetime) -> None:
        """Note that the database answered when its clock said `at`."""
        if self._seen_at is None or at - self._seen_at > self._lease / _GAP_SHARE or at < self._seen_at:
            self._well_since = at
        self._seen_at = at

    def lost(self) -> None:
        """Note that it did not answer."""
        self._seen_at = None

    def well_for_a_lease(self) -> datetime | None:
        """Return the last moment at which a whole healthy lease lay behind, or None if there is none."""
        if self._seen_at is None or self._well_since is None:
            return None
        return self._seen_at if self._seen_at - self._well_since >= self._lease else None


class Clock:
    """Compares the database's clock with this process's own, which only ever goes on."""

    def __init__(self) -> None:
        self._seen: tuple[float, datetime, float] | None = None

    def seen(self, asked: float, at: datetime, answered: float) -> float:
        """Return by how many seconds it has jumped since it was last seen; negative: it was set back.

        `asked` and `answered` are instants of the own clock, before and after the database said `at`. What
        they leave open is no jump, nor is what nobody would notice.
        """
        before, self._seen = self._seen, (asked, at, answered)
        if before is None:
            return 0.0
        asked_before, at_before, answered_before = before
        passed_seconds = (at - at_before).total_seconds()
        back_seconds = passed_seconds - (asked - answered_before)
        ahead_seconds = passed_seconds - (answered - asked_before)
        if back_seconds < -_JUMP_SECONDS:
            return back_seconds
        return ahead_seconds if ahead_seconds > _JUMP_SECONDS else 0.0
