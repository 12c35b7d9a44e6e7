"""Spaces the batches of a dense flow a few milliseconds apart while processors are the bound; otherwise not.

In: how many items are in hand, how large the last batch was and when it began, and how long this thread has
waited for a processor. Out: a duration to gather for. A batch has a fixed cost, so fewer and larger ones
leave more processor time to all; where processors are idle, waiting only costs time. So the interval is
proportional to the share of time in which this thread could have run and had no processor, and a batch that
comes later than the interval begins at once. A lone item never waits. Nothing runs while there are no
items (P8).
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

INTERVAL_SECONDS_MAX: Final = 0.006
"""Longest interval from the start of one batch to that of the next."""
_SHARE_IGNORED: Final = 0.05
"""Share of time without a processor that an almost idle machine has too."""
_SHARE_FULL: Final = 0.25
"""Share of time without a processor from which the interval is longest."""
_SCHEDULER_STATISTICS: Final = Path("/proc/thread-self/schedstat")
_SAMPLE_SECONDS: Final = 0.02
_MEMORY_SECONDS: Final = 0.1
"""Over how long the share is averaged; after a longer pause only the pause counts."""


def _scheduler_wait_seconds() -> float:
    """Return how long this thread has waited in a run queue since its start; 0 where Linux does not say."""
    try:
        # Nanoseconds on a processor, nanoseconds in a run queue, time slices.
        return int(_SCHEDULER_STATISTICS.read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class ProcessorWait:
    """The recent share of time, 0 to 1, in which this thread could have run but waited for a processor."""

    def __init__(
        self,
        waited_seconds: Callable[[], float] = _scheduler_wait_seconds,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`waited_seconds` returns the total so far. Use the object in the thread that creates it."""
        self._waited_seconds = waited_seconds
        self._clock = clock
        self._share = 0.0
        self._read_at = clock()
        self._read_seconds = self._waited_seconds()

    def share(self) -> float:
        """Return the share up to now; 0 where the system does not report it."""
        now = self._clock()
        elapsed_seconds = now - self._read_at
        if elapsed_seconds >= _SAMPLE_SECONDS:
            total_seconds = self._waited_seconds()
            sample = (total_seconds - self._read_seconds) / elapsed_seconds
            self._share += (sample - self._share) * min(1.0, elapsed_seconds / _MEMORY_SECONDS)
            self._read_at, self._read_seconds = now, total_seconds
        return self._share


class GatherWindow:
    """How long the batches of one consumer gather. One batch is handled at a time."""

    def __init__(self, processor_wait: ProcessorWait, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._processor_wait = processor_wait
        self._clock = clock
        self._began_at = clock()
        self._last_count = 0

    def seconds(self, count: int) -> float:
        """Return how long to wait for more before a batch of `count` items begins."""
        if count <= 1 and self._last_count <= 1:
            return 0.0
        left_seconds = self._began_at + self._interval_seconds() - self._clock()
        return max(0.0, left_seconds)

    def begin(self, count: int) -> None:
        """Note that a batch of `count` items begins now."""
        self._began_at, self._last_count = self._clock(), count

    def _interval_seconds(self) -> float:
        excess = self._processor_wait.share() - _SHARE_IGNORED
        return INTERVAL_SECONDS_MAX * min(1.0, max(0.0, excess / (_SHARE_FULL - _SHARE_IGNORED)))
