"""Counts and durations, for `/metrics`: a look-up and an addition, no lock, so that the hot path may count.

In: what happened, said in the event loop. Out: values by label, read at a scrape (next: `exposition`). Labels
are few by construction: statuses, codes, and action refs up to a bound; never an id or a key.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

Labels: TypeAlias = tuple[str, ...]

OTHER: Final = "other"
ACTION_REFS_MAX: Final = 100
"""Actions that have figures of their own in one process; all further ones share one name."""
BUCKETS_SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0),
)


class Names:
    """The first names that come keep their own; each one after `most` of them is called "other"."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """Return the name to show for this one."""
        known = self._known.get(name)
        if known is not None:
            return known
        if len(self._known) >= self._most:
            return OTHER
        return self._known.setdefault(name, name)

    def __iter__(self) -> Iterator[str]:
        """Name those that have a name of their own."""
        return iter(self._known)


class Counter:
    """What only grows."""

    kind: Final = "counter"

    def __init__(self, name: str, meaning: str, labels: Labels) -> None:
        assert name.endswith("_total"), name
        self.name, self.meaning, self.labels = name, meaning, labels
        self.values: dict[Labels, int] = {} if labels else {(): 0}

    def add(self, *values: str, count: int = 1) -> None:
        """Add `count` under these label values."""
        self.values[values] = self.values.get(values, 0) + count


class Histogram:
    """How long something took, in seconds."""

    kind: Final = "histogram"

    def __init__(self, name: str, meaning: str, labels: Labels) -> None:
        assert name.endswith("_seconds"), name
        self.name, self.meaning, self.labels = name, meaning, labels
        self.counts: dict[Labels, list[int]] = {}
        """How many fell into each bucket, not summed up; the last one has no bound."""
        self.sums: dict[Labels, float] = {}

    def observe(self, seconds: float, *values: str, count: int = 1) -> None:
        """Note that it took so long, `count` times; what two clocks make negative took no time."""
        counts = self.counts.get(values)
        if counts is None:
            counts = self.counts[values] = [0] * (len(BUCKETS_SECONDS) + 1)
            self.sums[values] = 0.0
        counts[bisect_left(BUCKETS_SECONDS, seconds)] += count
        self.sums[values] += max(seconds, 0.0) * count


class Gauge:
    """How something stands at the moment of a scrape."""

    kind: Final = "gauge"

    def __init__(self, name: str, meaning: str, labels: Labels) -> None:
        self.name, self.meaning, self.labels = name, meaning, labels
        self.values: Mapping[Labels, float] = {}
        self._read: Callable[[], float | None] | None = None

    def set(self, value: float, *values: str) -> None:
        """Let it stand so under these label values."""
        self.values = {**self.values, values: value}

    def read_from(self, read: Callable[[], float | None]) -> None:
        """Ask `read` at each scrape; None: there is nothing to say. The last one who says so is asked."""
        self._read = read

    def now(self) -> Mapping[Labels, float]:
        """Return how it stands."""
        if self._read is None:
            return self.values
        value = self._read()
        return {} if value is None else {(): value}


Instrument: TypeAlias = Counter | Histogram | Gauge


class Meter:
    """The instruments of one service, in the order of their declaration."""

    def __init__(self, instruments: Iterable[Instrument] = ()) -> None:
        self.instruments: list[Instrument] = list(instruments)
        self.action_refs = Names(ACTION_REFS_MAX)

    def counter(self, name: str, meaning: str, *labels: str, known: Iterable[str] = ()) -> Counter:
        """Declare a counter; those with a `known` label value stand at zero from the start.

        Who looks for an increase would not see the first one of a value that was never there.
        """
        counter = Counter(name, meaning, labels)
        for value in known:
            counter.add(value, count=0)
        self.instruments.append(counter)
        return counter

    def histogram(self, name: str, meaning: str, *labels: str) -> Histogram:
        """Declare a histogram of seconds."""
        histogram = Histogram(name, meaning, labels)
        self.instruments.append(histogram)
        return histogram

    def gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        """Declare a gauge."""
        gauge = Gauge(name, meaning, labels)
        self.instruments.append(gauge)
        return gauge
