"""What the marks of one load come to: order, limits and hand-overs, by one rule for every system.

In: the files that jobs wrote. Out: shares, counts and gaps. Pure: the tests feed it by hand.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.marks import RECORD, START, STOP

Marks = NDArray[np.void]
"""What `job` writes, by time."""

MARK: Final = np.dtype(
    [("at", "<i8"), ("number", "<i8"), ("load", "<i8"), ("action", "<i4"), ("kind", "<i4")]
)
assert MARK.itemsize == RECORD.size

_NS_PER_MS: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One load on one contestant, once."""

    jobs: int
    seconds: float
    """From the first submit to the last stop."""
    submit_seconds: float
    """Until the system had taken the last job."""
    out_of_order: float
    most_at_once: int
    hand_over_ms: tuple[float, ...]
    """Empty where the load is not one at a time."""

    @property
    def per_second(self) -> float:
        """How many jobs went in and came out."""
        return self.jobs / self.seconds


def marks_in(folder: Path, load: int) -> Marks:
    """Return what all processes wrote of one load, by time; a stop before a start at the same instant."""
    files = [_whole_marks(path) for path in folder.glob("*.marks")]
    marks: NDArray[Any] = np.concatenate(files) if files else np.empty(0, MARK)
    marks = marks[marks["load"] == load]
    return marks[np.lexsort((-marks["kind"], marks["at"]))]


def _whole_marks(path: Path) -> Marks:
    written = path.read_bytes()
    return np.frombuffer(written, MARK, len(written) // MARK.itemsize)


def stopped(marks: Marks) -> int:
    """Return how many different jobs have stopped."""
    return len(np.unique(marks["number"][marks["kind"] == STOP]))


def out_of_order_share(marks: Marks) -> float:
    """Return the share of starts before which a later job of the same action had started."""
    starts = marks[marks["kind"] == START]
    late = 0
    for action in np.unique(starts["action"]):
        numbers = starts["number"][starts["action"] == action]
        late += int(np.count_nonzero(np.maximum.accumulate(numbers) > numbers))
    return late / len(starts) if len(starts) else 0.0


def most_at_once(marks: Marks) -> int:
    """Return the most jobs of one action that were between start and stop at one instant."""
    most = 0
    for action in np.unique(marks["action"]):
        kinds = marks["kind"][marks["action"] == action]
        most = max(most, int(np.cumsum(np.where(kinds == START, 1, -1)).max(initial=0)))
    return most


def hand_overs_ms(marks: Marks) -> tuple[float, ...]:
    """Return, for each start but the first, the time since the last stop before it."""
    gaps, last_stop = [], None
    for at, kind in zip(marks["at"], marks["kind"], strict=True):
        if kind == STOP:
            last_stop = at
        elif last_stop is not None:
            gaps.append(float(at - last_stop) / _NS_PER_MS)
    return tuple(gaps)
