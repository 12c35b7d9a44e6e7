"""Brings what the leader's process has counted to the `/metrics` of its executor.

In its own process: all counts since its start, as JSON. In the HTTP process: what has been added since the
last scrape is added to the same instruments, so that counters go on when the leader's process starts again.
"""

import secrets
from collections.abc import Iterable
from typing import Final

import msgspec

from turnstile.common.telemetry.metrics import Counter, Gauge, Histogram, Labels
from turnstile.executor.metrics import LEADER_EPOCH, LEADER_LOOP_LAG, LEADING, METER

_PROCESS: Final = secrets.token_hex(8)
"""Another process counts from zero."""
_OF_LEADER: Final = (LEADING, LEADER_EPOCH, LEADER_LOOP_LAG)
"""Unknown while that process does not answer; other gauges keep their value."""


class Distribution(msgspec.Struct, frozen=True, array_like=True):
    """A histogram under one set of labels."""

    labels: Labels
    counts: list[int]
    sum: float


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The instruments of one process, by name."""

    process: str = ""
    counters: dict[str, list[tuple[Labels, int]]] = {}
    histograms: dict[str, list[Distribution]] = {}
    gauges: dict[str, list[tuple[Labels, float]]] = {}


def counted() -> bytes:
    """Return what this process has counted."""
    counters, histograms, gauges = {}, {}, {}
    for each in METER.instruments:
        match each:
            case Counter():
                counters[each.name] = list(each.values.items())
            case Histogram():
                histograms[each.name] = [
                    Distribution(labels, counts, each.sums[labels]) for labels, counts in each.counts.items()
                ]
            case Gauge():
                gauges[each.name] = list(each.now().items())
    return msgspec.json.encode(
        Counts(process=_PROCESS, counters=counters, histograms=histograms, gauges=gauges)
    )


class LeaderCounts:
    """Adds the counts of the leader's process to those of this one."""

    def __init__(self) -> None:
        self._last = Counts()

    def take(self, data: bytes | None) -> None:
        """Add what was counted since the last call; None: there is no answer."""
        for gauge in _OF_LEADER:
            gauge.values = {}
        if data is None:
            return
        now = msgspec.json.decode(data, type=Counts)
        before = self._last if self._last.process == now.process else Counts()
        self._last = now
        for each in METER.instruments:
            match each:
                case Counter():
                    _add_counts(each, now.counters.get(each.name, ()), before.counters.get(each.name, ()))
                case Histogram():
                    _add_times(each, now.histograms.get(each.name, ()), before.histograms.get(each.name, ()))
                case Gauge() if values := now.gauges.get(each.name):
                    each.values = {**each.values, **dict(values)}
                case _:
                    pass


def _add_counts(
    counter: Counter, now: Iterable[tuple[Labels, int]], before: Iterable[tuple[Labels, int]]
) -> None:
    known = dict(before)
    for labels, count in now:
        counter.add(*labels, count=count - known.get(labels, 0))


def _add_times(histogram: Histogram, now: Iterable[Distribution], before: Iterable[Distribution]) -> None:
    known = {each.labels: each for each in before}
    for each in now:
        last = known.get(each.labels)
        added = (
            each.counts if last is None else [a - b for a, b in zip(each.counts, last.counts, strict=True)]
        )
        mine = histogram.counts.get(each.labels, [0] * len(added))
        histogram.counts[each.labels] = [a + b for a, b in zip(mine, added, strict=True)]
        histogram.sums[each.labels] = (
            histogram.sums.get(each.labels, 0.0) + each.sum - (0.0 if last is None else last.sum)
        )
