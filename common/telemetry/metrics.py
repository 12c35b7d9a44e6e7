"""Metrics: counters, histograms and gauges, and the text format in which `/metrics` shows them.

In: what happened, counted in the event loop with a look-up and an addition, without a lock. Out: values by
label at each scrape, in Prometheus' text format or in OpenMetrics, with the metrics of the process
(`process_...`). Labels have few values: statuses, codes, and action refs up to a bound; never an id or a key.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import ClassVar, Final, NoReturn, TypeAlias, TypeVar, assert_never

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

Labels: TypeAlias = tuple[str, ...]

OTHER: Final = "other"
ACTION_REFS_MAX: Final = 100
"""Actions with their own label value in one process; all further ones share "other"."""
BUCKETS_SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0),
)

_BUCKET_NAMES: Final = [*(str(bound) for bound in BUCKETS_SECONDS), "+Inf"]
_LAG_INTERVAL_SECONDS: Final = 0.5
_LAGS_KEPT: Final = 60
"""Half a minute: longer than the interval between two scrapes."""


class LabelValues:
    """The first `values_max` names are label values; each further name becomes "other"."""

    def __init__(self, values_max: int) -> None:
        self._values_max = values_max
        self._known: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """Return the label value of a name."""
        known = self._known.get(name)
        if known is not None:
            return known
        if len(self._known) >= self._values_max:
            return OTHER
        return self._known.setdefault(name, name)

    def __contains__(self, name: str) -> bool:
        """Return whether a name has its own label value."""
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        """Yield the names that have their own label value."""
        return iter(self._known)


@dataclass(eq=False)
class _Named:
    """What all metrics have."""

    name: str
    meaning: str
    labels: Labels


@dataclass(eq=False)
class Counter(_Named):
    """A value that only grows."""

    kind: ClassVar[str] = "counter"
    values: dict[Labels, int] = field(default_factory=dict)

    def add(self, *values: str, count: int = 1) -> None:
        """Add `count` under these label values."""
        self.values[values] = self.values.get(values, 0) + count


@dataclass(eq=False)
class Histogram(_Named):
    """A distribution of durations, in seconds."""

    kind: ClassVar[str] = "histogram"
    counts: dict[Labels, list[int]] = field(default_factory=dict)
    """The count of each bucket, not cumulative; the last bucket has no bound."""
    sums: dict[Labels, float] = field(default_factory=dict)

    def observe(self, seconds: float, *values: str, count: int = 1) -> None:
        """Count a duration `count` times; a negative one, from two clocks, counts as zero."""
        counts = self.counts.get(values)
        if counts is None:
            counts = self.counts[values] = [0] * (len(BUCKETS_SECONDS) + 1)
            self.sums[values] = 0.0
        counts[bisect_left(BUCKETS_SECONDS, seconds)] += count
        self.sums[values] += max(seconds, 0.0) * count


@dataclass(eq=False)
class Gauge(_Named):
    """A value that is read at each scrape."""

    kind: ClassVar[str] = "gauge"
    values: Mapping[Labels, float] = field(default_factory=dict)
    _read: Callable[[], float | None] | None = None

    def set(self, value: float, *values: str) -> None:
        """Set the value under these label values."""
        self.values = {**self.values, values: value}

    def read_from(self, read: Callable[[], float | None]) -> None:
        """Call `read` at each scrape; None: the gauge is left out. A later call replaces `read`."""
        self._read = read

    def now(self) -> Mapping[Labels, float]:
        """Return the current values."""
        if self._read is None:
            return self.values
        value = self._read()
        return {} if value is None else {(): value}


Instrument: TypeAlias = Counter | Histogram | Gauge
Declared = TypeVar("Declared", Counter, Histogram, Gauge)


class Meter:
    """The metrics of one service, in the order of their declaration."""

    def __init__(self) -> None:
        self.instruments: list[Instrument] = []
        self.action_refs = LabelValues(ACTION_REFS_MAX)

    def counter(self, name: str, meaning: str, *labels: str, known: Iterable[str] = ()) -> Counter:
        """Declare a counter; `known` label values are exposed as zero from the start.

        A query for an increase would otherwise miss the first one of each label value.
        """
        assert name.endswith("_total"), name
        counter = self._declared(Counter(name, meaning, labels))
        for values in [(value,) for value in known] if labels else [()]:
            counter.add(*values, count=0)
        return counter

    def histogram(self, name: str, meaning: str, *labels: str) -> Histogram:
        """Declare a histogram of seconds."""
        assert name.endswith("_seconds"), name
        return self._declared(Histogram(name, meaning, labels))

    def gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        """Declare a gauge."""
        return self._declared(Gauge(name, meaning, labels))

    def _declared(self, instrument: Declared) -> Declared:
        self.instruments.append(instrument)
        return instrument


class ServiceMetrics:
    """Declares what executor and worker have in common, under the same names and with the same texts."""

    def __init__(self, meter: Meter) -> None:
        self.server_up = meter.gauge(
            "turnstile_server_up",
            "1: this server is reachable; 0: it is not.",
            "server",
        )
        self.publisher_blocked = meter.gauge(
            "turnstile_publisher_blocked", "1: the broker accepts no messages (memory or disk alarm)."
        )
        self.loop_lag = meter.gauge(
            "turnstile_event_loop_lag_seconds", "Largest delay of the event loop over the last 30 s."
        )


class LoopLag:
    """The lag of the event loop: the first sign of an overloaded or blocked process."""

    def __init__(self) -> None:
        self._lags_seconds: deque[float] = deque(maxlen=_LAGS_KEPT)

    async def run(self) -> NoReturn:
        """Measure until cancelled: how much longer than its time each sleep takes."""
        loop = asyncio.get_running_loop()
        while True:
            due_at = loop.time() + _LAG_INTERVAL_SECONDS
            await asyncio.sleep(_LAG_INTERVAL_SECONDS)
            self._lags_seconds.append(max(0.0, loop.time() - due_at))

    def worst_seconds(self) -> float | None:
        """Return the largest lag of the last half minute; None before the first measurement."""
        return max(self._lags_seconds, default=None)


def exposed(meter: Meter, accept: str) -> tuple[bytes, str]:
    """Return the current metrics, in the format that the `Accept` header prefers, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(_registry(meter)), content_type


@cache
def _registry(meter: Meter) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Families(meter))
    ProcessCollector(registry=registry)
    return registry


class _Families(Collector):
    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def collect(self) -> Iterator[Metric]:
        for instrument in self._meter.instruments:
            yield _family(instrument)


def _family(instrument: Instrument) -> Metric:
    name = instrument.name
    match instrument:
        case Counter():
            counter = CounterMetricFamily(name, instrument.meaning, labels=instrument.labels)
            for labels, count in instrument.values.items():
                counter.add_metric(labels, count)
            return counter
        case Gauge():
            gauge = GaugeMetricFamily(name, instrument.meaning, labels=instrument.labels)
            for labels, value in instrument.now().items():
                gauge.add_metric(labels, value)
            return gauge
        case Histogram():
            histogram = HistogramMetricFamily(name, instrument.meaning, labels=instrument.labels)
            for labels, counts in instrument.counts.items():
                buckets = [
                    (bound, float(count))
                    for bound, count in zip(_BUCKET_NAMES, accumulate(counts), strict=True)
                ]
                histogram.add_metric(labels, buckets, sum_value=instrument.sums[labels])
            return histogram
    assert_never(instrument)
