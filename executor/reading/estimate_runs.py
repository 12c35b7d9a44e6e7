"""How long attempts of an action hold their slots, learned from its latest grants.

In: the latest grants, ended or not. Out: a distribution to draw lengths from. Pure. What still runs has told
something too: that it takes longer than it has so far. The estimator is that of Kaplan and Meier (1958), so
that a sample full of unfinished long runs does not pass for one of short ones. Next: `estimate_line` plays a
line with it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, fsum, sqrt
from statistics import fmean, median
from typing import Final

_OVERHEAD_MAX_SECONDS: Final = 1.0
"""A slot is settled and granted on in less; a longer silence was a pause or a change of the limit."""
_OUTLAST: Final = 2.0
"""What outlasts all that ended is taken to need as long again (Lindy's law)."""
_LONGEST_TAIL: Final = 0.95
"""Bounds the draw for a run that is older than any in the sample: twenty times its age."""
_STRETCH_MIN: Final = 8
_STRETCHES_MIN: Final = 5
_DEVIATION: Final = 1.4826
"""From the median of absolute differences to a standard deviation, for normal ones."""
_CHANCE: Final = 2.0
"""Stretches of a steady load differ by so much more than expected, by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One recent grant. All times are seconds before the moment of the look, but for the last two."""

    queued_ago: float
    granted_ago: float
    claimed_after: float | None
    """Seconds from the grant to the claim; None: not claimed."""
    lasted: float | None
    """Seconds from the grant to the end; None: it has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLengths:
    """A distribution of seconds, as weighted points."""

    points: tuple[float, ...]
    """Ascending."""
    cumulative: tuple[float, ...]
    """The weight of each point and those before it; the last is 1."""
    ended: int
    """How many ended runs it stands on."""
    mean: float
    deviation: float
    unrest: float = 0.0
    """By how much the pace has wandered beyond what the runs explain, as a share of it."""

    def length(self, chance: float) -> float:
        """Return the length that a share `chance` (0 to 1) of runs does not exceed."""
        return self.points[min(bisect_left(self.cumulative, chance), len(self.points) - 1)]

    def rest(self, age: float, chance: float) -> float:
        """Return how long a run of this age still takes, in a share `chance` of the cases at most."""
        index = bisect_right(self.points, age)
        if index == len(self.points):
            chance = min(chance, _LONGEST_TAIL)
            return age * chance / (1 - chance)
        before = self.cumulative[index - 1] if index else 0.0
        return max(self.length(before + chance * (1 - before)), self.points[index]) - age


def run_lengths(grants: Sequence[Grant], *, limit: int | None) -> RunLengths | None:
    """Return how long a slot is taken by one run, hand-over included; None where nothing has ended.

    `limit` is that of the queue of `grants`; None: they are of several queues, or it has none.
    """
    seen = sorted(
        (grant.granted_ago if grant.lasted is None else grant.lasted, grant.lasted is None)
        for grant in grants
    )
    points, weights, left = list[float](), list[float](), 1.0
    for index, (seconds, runs_still) in enumerate(seen):
        if not runs_still:
            weight = left / (len(seen) - index)
            points.append(seconds)
            weights.append(weight)
            left -= weight
    ended = len(points)
    if not ended:
        return None
    overhead, stretches = 0.0, list[float]()
    size = limit * ceil(_STRETCH_MIN / limit) if limit else _STRETCH_MIN
    if seen[-1][1]:
        points.append(seen[-1][0] * _OUTLAST)
        weights.append(left)
    elif limit:
        # The longest has ended, so the mean is no guess.
        stretches = _stretches(grants, size)
        overhead = _overhead(stretches, size, limit, fmean(points, weights))
    lengths = _distribution([point + overhead for point in points], weights, ended=ended)
    return replace(lengths, unrest=_unrest(stretches, size, lengths))


def claim_waits(grants: Iterable[Grant]) -> RunLengths | None:
    """Return how long granted attempts wait for a worker to claim them; None where none was claimed."""
    waits = sorted(grant.claimed_after for grant in grants if grant.claimed_after is not None)
    return _distribution(waits, [1 / len(waits)] * len(waits), ended=len(waits)) if waits else None


def _distribution(points: Sequence[float], weights: Sequence[float], *, ended: int) -> RunLengths:
    cumulative, total = list[float](), 0.0
    for weight in weights:
        total += weight
        cumulative.append(total)
    mean = fmean(points, weights)
    return RunLengths(
        points=tuple(points),
        cumulative=tuple(each / total for each in cumulative),
        ended=ended,
        mean=mean,
        deviation=sqrt(fmean([(point - mean) ** 2 for point in points], weights)),
    )


def _overhead(stretches: Sequence[float], size: int, limit: int, run_mean: float) -> float:
    """Return what a slot takes beyond its run: telling, settling, granting on.

    In a full queue a slot is granted on every `limit` gaps between grants. A moment's stall is no pace.
    """
    if not stretches:
        return 0.0
    return min(max(limit * median(stretches) / size - run_mean, 0.0), _OVERHEAD_MAX_SECONDS)


def _unrest(stretches: Sequence[float], size: int, lengths: RunLengths) -> float:
    """Compare the pace of one stretch with that of the next: on a steady load only the runs differ."""
    middle = median(stretches) if len(stretches) >= _STRETCHES_MIN else 0.0
    if not middle or not lengths.mean:
        return 0.0
    wandered = _DEVIATION * median(abs(each - middle) for each in stretches) / middle
    explained = _CHANCE * (lengths.deviation / lengths.mean) ** 2 / size
    return sqrt(max(wandered**2 - explained, 0.0))


def _stretches(grants: Sequence[Grant], size: int) -> list[float]:
    """Return how long each `size` hand-overs in a row took."""
    gaps = _hand_over_gaps(grants)
    return [fsum(gaps[at : at + size]) for at in range(0, len(gaps) - size + 1, size)]


def _hand_over_gaps(grants: Sequence[Grant]) -> list[float]:
    """Return the gaps before those grants that had to wait in line for a slot to be freed."""
    ordered = sorted(grants, key=lambda grant: -grant.granted_ago)
    ends = sorted(grant.lasted - grant.granted_ago for grant in grants if grant.lasted is not None)
    return [
        before.granted_ago - grant.granted_ago
        for before, grant in pairwise(ordered)
        if bisect_right(ends, -grant.granted_ago) > bisect_left(ends, -grant.queued_ago)
    ]
