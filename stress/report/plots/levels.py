"""Counts how many of something there were at each moment: the most and the mean in each bin of time.

In: instants at which each began and ended, `NEVER` for what has not. Out: two columns, one value for each
bin. Pure. A span holds its first instant and not its last, so a place that is handed on is never counted
twice.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.tables import NEVER, SECOND, Instants

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bins:
    """A span of time in equal parts."""

    edges_at: Instants

    @classmethod
    def over(cls, began_at: int, ended_at: int, count: int) -> Self:
        """Cut a span; one without length gets a little."""
        return cls(np.linspace(began_at, max(ended_at, began_at + SECOND // 100), count + 1).astype(np.int64))

    @classmethod
    def of_seconds(cls, began_at: int, ended_at: int, seconds: float) -> Self:
        """Cut a span into parts of so many seconds; the last reaches over its end."""
        width = int(seconds * SECOND)
        count = max(-(-(ended_at - began_at) // width), 1)
        return cls(began_at + width * np.arange(count + 1, dtype=np.int64))

    def seconds_since(self, instant: int) -> Floats:
        """Return the edges, counted from an instant."""
        seconds: Floats = (self.edges_at - instant) / SECOND
        return seconds

    def counts(self, instants: Instants) -> NDArray[np.int64]:
        """Return how many fall into each part."""
        return np.diff(np.searchsorted(np.sort(instants), self.edges_at))


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """How many there were at once; one value for each bin."""

    most: Floats
    mean: Floats

    @classmethod
    def of(cls, starts_at: Instants, ends_at: Instants, bins: Bins) -> Self:
        """Count what overlaps."""
        begun = starts_at != NEVER
        starts, ends = np.sort(starts_at[begun]), np.sort(ends_at[begun])
        ends = ends[: np.searchsorted(ends, NEVER)]
        instants = np.concatenate((ends, starts))
        order = np.argsort(instants)
        steps = np.ones(len(instants), np.int64)
        steps[: len(ends)] = -1
        instants, level = instants[order], np.cumsum(steps[order])
        # At one instant there are as many as after all that happens in it.
        last = np.append(instants[1:] != instants[:-1], True)[: len(instants)]
        return cls._of_steps(instants[last], level[last], bins)

    @classmethod
    def _of_steps(cls, instants: Instants, level: NDArray[np.int64], bins: Bins) -> Self:
        # One more at each side: nothing before the first step, the last level for ever.
        level = np.concatenate(([0], level, level[-1:] if len(level) else [0]))
        before = np.searchsorted(instants, bins.edges_at)
        most = np.maximum.reduceat(level[1:], before)[:-1]
        most = np.where(before[:-1] == before[1:], 0, most)
        spans = np.diff(np.concatenate((instants[:1], instants))) / SECOND
        area = np.concatenate(([0.0], np.cumsum(level[:-2] * spans)))
        since = (bins.edges_at - np.concatenate((instants[:1], instants, bins.edges_at[:1]))[before]) / SECOND
        filled = area[before] + level[before] * since
        # What ends at the very edge of a bin is not in it any more.
        at_edge = np.concatenate((instants, bins.edges_at[:1] - 1))[before[:-1]] == bins.edges_at[:-1]
        return cls(
            most=np.maximum(most, np.where(at_edge, 0, level[before[:-1]])).astype(np.float64),
            mean=np.diff(filled) / (np.diff(bins.edges_at) / SECOND),
        )
