"""Holds the worst that may befall a worker against what was done to it.

In: a recording and the faults that happened. Out: a sentence for each worker that was given up though nothing
was done to it: an outage of a server alone reclaims no live worker's work (P6), and nothing else does.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from tests.proof.chaos.faults import Injected
from tests.proof.chaos.run import Course
from tests.proof.history.recording import Recording, WorkerEvent, WorkerMove

_AFTERMATH: Final = timedelta(seconds=2.0)
"""From the healing of a link until a renewal has gone through."""


def given_up_without_cause(recording: Recording, course: Course, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the live workers that lost their lease; `names` are those of the worker ids."""
    for move in recording.moves:
        if isinstance(move, WorkerMove) and move.event is WorkerEvent.LOST:
            name = names[move.worker_id]
            if not any(_explains(i, name, move.renewed_at, move.stamp.at) for i in course.injected):
                yield (
                    f"{name} ({move.worker_id}) was given up at {move.stamp.at:%H:%M:%S.%f}, last renewed "
                    f"at {move.renewed_at:%H:%M:%S.%f}, though nothing was done to it"
                )


def _explains(injected: Injected, name: str, renewed_at: datetime, lost_at: datetime) -> bool:
    """Tell whether this fault hit that worker while it was silent."""
    is_its_own = injected.fault.target.partition(" ")[0] == name
    return is_its_own and injected.began_at <= lost_at and renewed_at <= injected.healed_at + _AFTERMATH
