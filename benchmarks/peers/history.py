"""The traces of one load: order, concurrency and hand-overs, by the same rules for both systems.

In: the trace files of the jobs. Out: shares, counts and gaps, with the rules of `turnstile.stress.check`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from turnstile.stress.check.counts import out_of_order, peak_concurrency
from turnstile.stress.trace import RECORD, START, STOP, TRACE_SUFFIX

_NS_PER_MS: Final = 1e6


class TraceRecord(NamedTuple):
    """One start or stop, in the field order of the trace files; `at` is in monotonic nanoseconds."""

    at: int
    number: int
    load: int
    action: int
    kind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a load on a variant."""

    jobs: int
    seconds: float
    """From the first submit to the last stop."""
    submit_seconds: float
    """Until the system had accepted the last job."""
    out_of_order: float
    peak_concurrency: int
    hand_over_ms: tuple[float, ...]
    """Empty unless the load runs one at a time."""

    @property
    def per_second(self) -> float:
        """Completed jobs per second."""
        return self.jobs / self.seconds


def trace_of(folder: Path, load: int) -> list[TraceRecord]:
    """Return the records of one load by time; at one instant, stops come before starts."""
    records = [TraceRecord(*fields) for fields in _read(folder) if fields[2] == load]
    return sorted(records, key=lambda each: (each.at, -each.kind))


class Stops:
    """Counts the jobs that have stopped; reads only what was appended, as it is polled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._stopped: dict[int, set[int]] = {}

    def count(self, load: int) -> int:
        """Return the number of different jobs of a load that have stopped."""
        for path in self._folder.glob(f"*{TRACE_SUFFIX}"):
            offset = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                content = _whole(file.read())
            self._read[path] = offset + len(content)
            for _, number, of, _, kind in RECORD.iter_unpack(content):
                if kind == STOP:
                    self._stopped.setdefault(of, set()).add(number)
        return len(self._stopped.get(load, ()))


def out_of_order_share(trace: Sequence[TraceRecord]) -> float:
    """Return the share of starts after the start of a later job of the same action."""
    starts = [record for record in trace if record.kind == START]
    late = sum(len(out_of_order(r.number for r in each)) for each in _by_action(starts).values())
    return late / len(starts) if starts else 0.0


def peak_concurrency_of_actions(trace: Sequence[TraceRecord]) -> int:
    """Return the peak number of concurrent jobs of one action."""
    return max((peak_concurrency(_intervals(each)) for each in _by_action(trace).values()), default=0)


def hand_overs_ms(trace: Sequence[TraceRecord]) -> tuple[float, ...]:
    """Return for each start but the first the time since the last stop before it."""
    gaps: list[float] = []
    last_stop: int | None = None
    for record in trace:
        if record.kind == STOP:
            last_stop = record.at
        elif last_stop is not None:
            gaps.append((record.at - last_stop) / _NS_PER_MS)
    return tuple(gaps)


def _read(folder: Path) -> Iterator[tuple[int, int, int, int, int]]:
    for path in folder.glob(f"*{TRACE_SUFFIX}"):
        yield from RECORD.iter_unpack(_whole(path.read_bytes()))


def _whole(content: bytes) -> bytes:
    """Return the records without the last one, if it is incomplete."""
    return content[: len(content) // RECORD.size * RECORD.size]


def _by_action(trace: Sequence[TraceRecord]) -> Mapping[int, list[TraceRecord]]:
    found: dict[int, list[TraceRecord]] = {}
    for record in trace:
        found.setdefault(record.action, []).append(record)
    return found


def _intervals(trace: Sequence[TraceRecord]) -> list[tuple[int, int | None]]:
    """Pair starts and stops in order of time; every pairing has the same concurrency."""
    starts = [record.at for record in trace if record.kind == START]
    stops = [record.at for record in trace if record.kind == STOP]
    return [(start, stops[nth] if nth < len(stops) else None) for nth, start in enumerate(starts)]
