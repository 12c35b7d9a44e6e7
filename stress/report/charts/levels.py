"""Counts over time for the pictures: concurrency in bins, the limit of a queue, the busiest queues."""

from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Self

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.recording import NEVER, SECOND, Instants, Recording
from turnstile.stress.scenario import Load
from turnstile.stress.trace import action_ref

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bins:
    """A period in equal bins."""

    edges_at: Instants

    @classmethod
    def over(cls, began_at: int, ended_at: int, count: int) -> Self:
        """Divide a period, which is at least 10 ms long, into this number of bins."""
        return cls(np.linspace(began_at, max(ended_at, began_at + SECOND // 100), count + 1).astype(np.int64))

    @classmethod
    def of_seconds(cls, began_at: int, ended_at: int, seconds: float) -> Self:
        """Divide a period into bins of this length; the last one may exceed its end."""
        width = int(seconds * SECOND)
        count = max(-(-(ended_at - began_at) // width), 1)
        return cls(began_at + width * np.arange(count + 1, dtype=np.int64))

    def seconds_since(self, instant: int) -> Floats:
        """Return the edges in seconds from an instant."""
        seconds: Floats = (self.edges_at - instant) / SECOND
        return seconds

    def counts(self, instants: Instants) -> NDArray[np.int64]:
        """Return the number of instants in each bin."""
        return np.diff(np.searchsorted(np.sort(instants), self.edges_at))


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Concurrency: the peak and the mean in each bin."""

    peak: Floats
    mean: Floats

    @classmethod
    def of(cls, starts_at: Instants, ends_at: Instants, bins: Bins) -> Self:
        """Count overlapping intervals; an interval holds its start and not its end, NEVER is open."""
        begun = starts_at != NEVER
        starts, ends = np.sort(starts_at[begun]), np.sort(ends_at[begun])
        ends = ends[: np.searchsorted(ends, NEVER)]
        instants = np.concatenate((ends, starts))
        order = np.argsort(instants)
        steps = np.ones(len(instants), np.int64)
        steps[: len(ends)] = -1
        instants, level = instants[order], np.cumsum(steps[order])
        # The level of an instant is that after all its events.
        last = np.append(instants[1:] != instants[:-1], True)[: len(instants)]
        return cls._of_steps(instants[last], level[last], bins)

    @classmethod
    def _of_steps(cls, instants: Instants, level: NDArray[np.int64], bins: Bins) -> Self:
        # One more value at each side: 0 before the first event, the last level after the last one.
        level = np.concatenate(([0], level, level[-1:] if len(level) else [0]))
        before = np.searchsorted(instants, bins.edges_at)
        peak = np.maximum.reduceat(level[1:], before)[:-1]
        peak = np.where(before[:-1] == before[1:], 0, peak)
        spans = np.diff(np.concatenate((instants[:1], instants))) / SECOND
        area = np.concatenate(([0.0], np.cumsum(level[:-2] * spans)))
        since = (bins.edges_at - np.concatenate((instants[:1], instants, bins.edges_at[:1]))[before]) / SECOND
        filled = area[before] + level[before] * since
        # An interval that ends exactly at the edge of a bin is not in it.
        at_edge = np.concatenate((instants, bins.edges_at[:1] - 1))[before[:-1]] == bins.edges_at[:-1]
        return cls(
            peak=np.maximum(peak, np.where(at_edge, 0, level[before[:-1]])).astype(np.float64),
            mean=np.diff(filled) / (np.diff(bins.edges_at) / SECOND),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSpan:
    """A period with one limit, in seconds from the beginning of the scenario."""

    began: float
    ended: float
    limit: int | None
    lowered: bool = False
    """The previous limit was higher: executions above this one may end, but are not replaced."""

    def excess(self, edges: Floats, peak: Floats) -> Floats:
        """Return for each bin the number above the limit; 0 in the bin of a change.

        Only for display: `check` decides whether a limit held, grant by grant.
        """
        over = np.zeros(len(peak))
        if self.limit is None:
            return over
        inside = np.flatnonzero((edges[:-1] >= self.began) & (edges[1:] <= self.ended))
        allowed = np.full(len(inside), float(self.limit))
        if self.lowered and len(inside):
            left = np.minimum.accumulate(peak[inside])
            allowed = np.maximum(allowed, np.concatenate((left[:1], left[:-1])))
        here = peak[inside]
        over[inside] = np.where(here > allowed, here - self.limit, 0)
        return over


def limit_spans(recording: Recording, queue: int) -> list[LimitSpan]:
    """Return the limits of a queue in order; a change counts from its response."""
    action = queue // max(recording.scenario.load.keys, 1)
    given: list[tuple[float, int | None]] = [(0.0, recording.scenario.limit)]
    if recording.scenario.all_wait_first and recording.opened_at != NEVER:
        given = [(0.0, 0), (_seconds(recording, recording.opened_at), recording.scenario.limit)]
    changes = sorted((c for c in recording.limit_changes if c.action == action), key=lambda c: c.answered_at)
    given += [(_seconds(recording, change.answered_at), change.limit) for change in changes]
    spans, before = [], given[0][1]
    for (began, limit), (ended, _) in pairwise([*given, (inf, None)]):
        lowered = limit is not None and (before is None or before > limit)
        spans.append(LimitSpan(began=began, ended=ended, limit=limit, lowered=lowered))
        before = limit
    return spans


def _seconds(recording: Recording, instant: int) -> float:
    return (instant - recording.began_at) / SECOND


def queue_name(queue: int, load: Load) -> str:
    """Return the display name of a queue."""
    action, key = divmod(queue, max(load.keys, 1))
    return action_ref(action) if load.keys == 0 else f"{action_ref(action)} key {key}"


def busiest_queues(recording: Recording, count: int) -> list[int]:
    """Return the queues with the most attempts, in ascending order."""
    queues = recording.attempts["queue"]
    total = np.bincount(queues[queues >= 0], minlength=1)
    most = np.argsort(-total, kind="stable")[:count]
    return sorted(int(queue) for queue in most if total[queue])
