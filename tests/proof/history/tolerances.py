"""What a verdict needs beside the recording, and what it consists of: bounds, fault windows, violations."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """While something was broken on purpose, and a settling time after it: bounds do not count there."""

    began_at: datetime
    ended_at: datetime
    what: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """How long what may take, outside all windows."""

    idle_seconds: float
    """A free slot beside a runnable waiting execution (P7)."""
    leak_seconds: float
    """From the end of an attempt until its slot is free (P4)."""
    reclaim_seconds: float
    """From the last sign of life of a worker that is lost until its work is taken back (P7)."""
    overlap_seconds: float
    """How long a run may go on after its attempt was taken away: the window of a cut-off worker."""
    windows: Sequence[Window] = ()

    def seconds_outside(self, began_at: datetime, ended_at: datetime) -> float:
        """Return how long this lasted, without what falls into a window."""
        left = max(timedelta(), ended_at - began_at)
        cursor = began_at
        for window in sorted(self.windows, key=lambda w: w.began_at):
            start, end = max(cursor, window.began_at), min(ended_at, window.ended_at)
            if end > start:
                left -= end - start
                cursor = end
        return left.total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A promise that was broken, and where to look."""

    promise: str
    """`P1` to `P7`."""
    what: str
    at: datetime | None = None
    queue_id: int | None = None
    execution_id: int | None = None

    def __str__(self) -> str:
        where = [
            f"{name} {value}"
            for name, value in (("queue", self.queue_id), ("execution", self.execution_id))
            if value is not None
        ]
        when = [] if self.at is None else [f"at {self.at:%H:%M:%S.%f}"]
        return f"{self.promise}: {self.what} ({', '.join(where + when)})"
