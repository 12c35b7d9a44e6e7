"""Counts over plain numbers and intervals, without numpy, for the benchmarks and the tests of other systems.

`rules` applies its rules to whole columns of a recorded scenario.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, TypeVar


class _Comparable(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


InstantT = TypeVar("InstantT", bound=_Comparable)
"""An instant on any scale: a datetime, nanoseconds, seconds."""


class OrderViolation(NamedTuple):
    """A number that comes after a larger one."""

    larger: int
    number: int


def peak_concurrency(intervals: Iterable[tuple[InstantT, InstantT | None]]) -> int:
    """Return the largest number of intervals that contain one instant.

    An interval holds its start and not its end; None: it is open. An interval that is empty or ends before
    its start counts nothing.
    """
    starts: list[Any] = []
    ends: list[Any] = []
    for start, end in intervals:
        if end is None:
            starts.append(start)
        elif start < end:
            starts.append(start)
            ends.append(end)
    starts.sort()
    ends.sort()
    peak = ended = 0
    for started, start in enumerate(starts, 1):
        while ended < len(ends) and not start < ends[ended]:
            ended += 1
        peak = max(peak, started - ended)
    return peak


def out_of_order(numbers: Iterable[int]) -> list[OrderViolation]:
    """Return each number that comes after a larger one, as (the largest before it, the number itself)."""
    found: list[OrderViolation] = []
    largest: int | None = None
    for number in numbers:
        if largest is not None and number < largest:
            found.append(OrderViolation(largest, number))
        else:
            largest = number
    return found


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of the values do not exceed (nearest rank)."""
    in_order = sorted(values)
    return in_order[max(math.ceil(share * len(in_order)), 1) - 1] if in_order else None
