"""Plays a full line forward, to say when its n-th execution from now starts.

In: who holds the slots since when, and how long runs take. Out: an interval of seconds that holds the start
in nine of ten cases. Pure, and the same for the same input: it plays a fixed set of chances instead of
throwing dice, so that later positions never start earlier. Each play stretches all lengths by one factor,
which is what the sample does not know about the rate: few runs, or irregular ones, make the interval wide.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heappop, heapreplace
from math import ceil, exp, floor, sqrt
from random import Random
from statistics import NormalDist
from typing import Final

from turnstile.executor.reading.estimate_runs import RunLengths

SLOTS_MAX: Final = 64
"""Most slots that are played; of a wider queue a part is, with as much of its line."""
_PLAYS: Final = 64
_STARTS_MAX: Final = 64
"""Starts that are played one by one; what lies behind them follows the mean."""
_LEFT_OUT: Final = 2
"""Plays at either end that the interval leaves out."""
_PRIOR_VARIANCE: Final = 0.5
_DRIFT: Final = 0.12
"""No rate stays what it was by less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Who holds the slots of a queue."""

    limit: int
    active_count: int
    ages: Sequence[float | None]
    """Seconds since the grants of some holders, at most `SLOTS_MAX`; None: ended, and not settled yet."""


def seconds_to_start(slots: Slots, lengths: RunLengths, position: int) -> tuple[float, float]:
    """Return the earliest and the latest start of the execution at this position, in seconds from now."""
    share = min(1.0, SLOTS_MAX / max(slots.limit, slots.active_count))
    play = _play(slots, lengths, share)
    place = position * share
    late = play.seconds_to(place, ceil)
    if place < 1:
        return 0.0, late[-1 - _LEFT_OUT]
    early = late if place == position <= _STARTS_MAX else play.seconds_to(place, floor)
    return early[_LEFT_OUT], late[-1 - _LEFT_OUT]


def _play(slots: Slots, lengths: RunLengths, share: float) -> "_Play":
    granted_on = max(1, round(slots.limit * share))
    # A limit that was lowered: the first slots that are freed are not granted on.
    excess = max(0, round((slots.active_count - slots.limit) * share))
    variation = lengths.deviation / lengths.mean if lengths.mean else 0.0
    return _Play(
        ages=tuple(slots.ages)[: granted_on + excess],
        granted_on=granted_on,
        excess=excess,
        lengths=lengths,
        uncertainty=sqrt((variation**2 + _PRIOR_VARIANCE) / lengths.ended + _DRIFT**2 + lengths.unrest**2),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Play:
    ages: Sequence[float | None]
    granted_on: int
    excess: int
    lengths: RunLengths
    uncertainty: float

    def seconds_to(self, place: float, rounded: Callable[[float], int]) -> list[float]:
        """Return, ascending, when the start at this place comes in each play.

        Where slots began together they end together: behind what is played, whole rounds are counted.
        """
        starts = rounded(place)
        played = min(starts, _STARTS_MAX)
        behind = rounded((starts - played) / self.granted_on) * self.granted_on
        return sorted(self._seconds_to(played, behind, chances) for chances in _all_chances())

    def _seconds_to(self, played: int, behind: int, chances: Sequence[float]) -> float:
        about_rate, about_rest, *others = chances
        stretch = exp(self.uncertainty * about_rate)
        chance = iter(others)
        rest, length = self.lengths.rest, self.lengths.length
        freed_at = [0.0 if age is None else stretch * rest(age, next(chance)) for age in self.ages]
        # A slot that nobody holds is free at once.
        freed_at.extend([0.0] * (self.granted_on + self.excess - len(freed_at)))
        heapify(freed_at)
        for _ in range(self.excess):
            heappop(freed_at)
        for _ in range(played - 1):
            heapreplace(freed_at, freed_at[0] + stretch * length(next(chance)))
        return freed_at[0] + stretch / self.granted_on * self._seconds_behind(behind, about_rest)

    def _seconds_behind(self, starts: int, deviate: float) -> float:
        return max(0.0, self.lengths.mean * starts + deviate * self.lengths.deviation * sqrt(starts))


@cache
def _all_chances() -> tuple[tuple[float, ...], ...]:
    """Return the chances of each play: two normal deviates, then shares; evenly spread over the plays."""
    shares = [(play + 0.5) / _PLAYS for play in range(_PLAYS)]
    deviates = [NormalDist().inv_cdf(share) for share in shares]
    dice = Random(1)
    columns = [dice.sample(deviates, _PLAYS) for _ in range(2)]
    columns += [dice.sample(shares, _PLAYS) for _ in range(3 * SLOTS_MAX)]
    return tuple(zip(*columns, strict=True))
