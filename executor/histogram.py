"""Histograms of durations as numbers: adding two numbers adds the histograms, also as `sum` of the database.

In: seconds. Out: a number with twelve digits for each bucket, and percentiles of it. Buckets grow by a
quarter of an octave, from 1 ms to 42 days, so a percentile is within 10 % of the exact one.
"""

from bisect import bisect_left
from typing import Final

_BUCKET: Final = 10**12
"""Counts of one bucket stay below it."""
_BOUNDS: Final = tuple(0.001 * 2 ** (step / 4) for step in range(127))
"""The upper bound of each bucket but the last, in seconds."""
_ONES: Final[tuple[int, ...]] = tuple(_BUCKET**bucket for bucket in range(len(_BOUNDS) + 1))


def histogram_of(seconds: float) -> int:
    """Return the histogram of one duration."""
    return _ONES[bisect_left(_BOUNDS, seconds)]


def percentile(histogram: int, share: float) -> float | None:
    """Return the duration, in seconds, that a share of all do not exceed; None: there is none."""
    counts = []
    while histogram:
        histogram, count = divmod(histogram, _BUCKET)
        counts.append(count)
    left = sum(counts) * share
    for bucket, count in enumerate(counts):
        if count and left <= count:
            return _within(bucket, left / count)
        left -= count
    return None


def _within(bucket: int, share: float) -> float:
    """Return the duration below which a share of a bucket lies, if its logarithms are spread evenly."""
    if not bucket:
        return _BOUNDS[0] * share
    lower = _BOUNDS[bucket - 1]
    return lower * 2 ** (share / 4)
