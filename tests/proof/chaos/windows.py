"""When bounds of time count, and how long they are.

In: the faults that happened. Out: `Tolerances`: a window for each, from its beginning until things have
settled after its healing. What must hold at all times knows no windows.
"""

from datetime import timedelta
from typing import Final

from tests.proof.chaos.ground import LEASE_SECONDS
from tests.proof.chaos.run import Course
from tests.proof.chaos.schedule import Kind
from tests.proof.history.tolerances import Tolerances, Window

_SETTLING: Final = timedelta(seconds=5.0)
"""Connections that find back, what the broker delivers again, one settle timeout and its tick."""


_OVERLAP_SECONDS: Final = LEASE_SECONDS / 2 + 1.0
"""How long an answer of the broker counts for a worker that is in doubt, and its margin for killing."""
_WAKING: Final = timedelta(seconds=1.0)
_PAUSES: Final = frozenset({Kind.WORKER_PAUSED, Kind.WORKER_PAUSED_LONG})


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


def overlap_tolerances(course: Course, *, patience: float) -> Tolerances:
    """Return how long a run may outlive its attempt whatever else is broken.

    Only a worker that stands still has more time: it can do nothing about a coroutine before it wakes.
    """
    return Tolerances(
        idle_seconds=0.0,
        leak_seconds=0.0,
        reclaim_seconds=0.0,
        overlap_seconds=patience * _OVERLAP_SECONDS,
        windows=[
            Window(began_at=i.began_at, ended_at=i.healed_at + _WAKING, what=i.fault.kind)
            for i in course.injected
            if i.fault.kind in _PAUSES
        ],
    )
