"""When bounds of time count, and how long they are.

In: the faults that happened. Out: `Tolerances`: a window for each, from its beginning until things have
settled after its healing. What must hold at all times knows no windows.
"""

from datetime import timedelta
from typing import Final

from tests.chaos.ground import LEASE_SECONDS
from tests.chaos.run import Course
from tests.history.tolerances import Tolerances, Window

_SETTLING: Final = timedelta(seconds=5.0)
"""Connections that find back, what the broker delivers again, one settle timeout and its tick."""


def tolerances(course: Course, *, patience: float) -> Tolerances:
    """Return the bounds for a run, `patience` times as long as they should be."""
    return Tolerances(
        idle_seconds=patience * 1.0,
        leak_seconds=patience * 3.0,
        reclaim_seconds=patience * (LEASE_SECONDS + 2.0),
        overlap_seconds=patience * 1.0,
        windows=[
            Window(began_at=i.began_at, ended_at=i.healed_at + _SETTLING, what=i.fault.kind)
            for i in course.injected
        ],
    )
