"""One clock for a stage: the monotonic one, shown as wall time.

The offset between the two is taken once for each stage, so that differences are exact even where somebody
sets the wall clock meanwhile, and what actions of this host marked is on the very same scale.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from turnstile.stress.tables import NEVER

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LOOKS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Instants of this host, in nanoseconds since 1970."""

    offset_ns: int

    @classmethod
    def start(cls) -> Self:
        """Take the offset, at the least disturbed of a few looks."""
        looks = []
        for _ in range(_LOOKS):
            before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
            looks.append((after - before, wall - (before + after) // 2))
        return cls(offset_ns=min(looks)[1])

    def now(self) -> int:
        """Return this instant."""
        return time.monotonic_ns() + self.offset_ns


def instant(text: str | None) -> int:
    """Read an RFC 3339 instant as nanoseconds since 1970; None: NEVER."""
    if text is None:
        return NEVER
    return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND * 1000
