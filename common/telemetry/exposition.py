"""Writes the instruments of a service in the text format that the asker understands.

In: a `Meter`, the request's `Accept`. Out: the body of `/metrics`, in Prometheus' own text format or in
OpenMetrics, together with what the operating system says of the process (`process_...`).
"""

from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from typing import Final, assert_never

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from turnstile.common.telemetry.instruments import (
    BUCKETS_SECONDS,
    Counter,
    Gauge,
    Histogram,
    Instrument,
    Meter,
)

_BOUNDS: Final = [*(str(bound) for bound in BUCKETS_SECONDS), "+Inf"]


def exposed(meter: Meter, accept: str) -> tuple[bytes, str]:
    """Return the figures as they stand, and the content type that they are written in."""
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
        return map(_family, self._meter.instruments)


def _family(instrument: Instrument) -> Metric:
    match instrument:
        case Counter():
            counter = CounterMetricFamily(instrument.name, instrument.meaning, labels=instrument.labels)
            for labels, count in instrument.values.items():
                counter.add_metric(labels, count)
            return counter
        case Gauge():
            gauge = GaugeMetricFamily(instrument.name, instrument.meaning, labels=instrument.labels)
            for labels, value in instrument.now().items():
                gauge.add_metric(labels, value)
            return gauge
        case Histogram():
            histogram = HistogramMetricFamily(instrument.name, instrument.meaning, labels=instrument.labels)
            for labels, counts in instrument.counts.items():
                buckets = [
                    (bound, float(count)) for bound, count in zip(_BOUNDS, accumulate(counts), strict=True)
                ]
                histogram.add_metric(labels, buckets, sum_value=instrument.sums[labels])
            return histogram
    assert_never(instrument)
