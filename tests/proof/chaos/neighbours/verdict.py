"""The effects on the steady load, held against P9. Pure.

In: the history, what the neighbours did, and the observations of the services. Out:
`Start`s, and a sentence for each bound that was missed, with the neighbours that were active then.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import asyncpg

from tests.integration.webhooks.receiver import Received
from tests.proof.chaos.history import Witnessed, moment
from tests.proof.chaos.neighbours.monitor import Observations
from tests.proof.chaos.neighbours.neighbour import Disturbed
from tests.proof.chaos.neighbours.schedule import Kind
from tests.proof.chaos.submitters import Sent
from turnstile.common.domain.states import Status
from turnstile.stress.check.counts import percentile

START_SECONDS: Final = 1.0
"""p99 from submit to start."""
LIVE_SECONDS: Final = 1.0
"""Longest time until an answer of `/livez`."""
DELIVERED_SECONDS: Final = 5.0
"""Longest time from an outcome to its webhook, at a receiver that answers."""
_CHANCE: Final = 3
"""Tolerated number of late starts: of a hundred, p99 is a single value."""
_EXAMPLES: Final = 10
_COMMON: Final = 5
_AFTERMATH: Final = timedelta(seconds=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The times of one execution of the steady load; None: it did not reach that status."""

    number: int
    due_at: datetime
    """When it was planned to be submitted."""
    admitted_at: datetime | None
    granted_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    status: Status | None

    @property
    def seconds(self) -> float:
        """From submit to start."""
        return _between(self.due_at, self.started_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Everything that the verdict uses."""

    starts: Sequence[Start]
    disturbed: Sequence[Disturbed]
    observed: Observations
    received: Sequence[Received]
    """The webhooks at the receiver that answers; their paths end with the numbers."""
    callbacks: frozenset[int]
    """The numbers of the executions with such a receiver."""


def starts_of(seen: Witnessed, began_at: datetime) -> list[Start]:
    """Return the times of each execution of the steady load; it starts when its action says so."""
    found = {row["tag"]: row for row in seen.executions}
    ran: dict[int, int] = {}
    for run in seen.runs:
        ran.setdefault(run.execution_id, seen.at(run.started_ns))
    return [_start(found.get(str(number)), sent, ran, began_at) for number, sent in seen.log.sent.items()]


def _start(row: asyncpg.Record | None, sent: Sent, ran: Mapping[int, int], began_at: datetime) -> Start:
    started_at = None if row is None else ran.get(row["id"])
    return Start(
        number=sent.submit.number,
        due_at=began_at + timedelta(seconds=sent.submit.at_seconds),
        admitted_at=None if row is None else row["created_at"],
        granted_at=None if row is None else row["scheduled_at"],
        started_at=None if started_at is None else moment(started_at),
        ended_at=None if row is None else row["completed_at"],
        status=None if row is None or row["completed_at"] is None else Status(row["status"]),
    )


def starts_during(effects: Effects, kind: Kind) -> list[Start]:
    """Return what was submitted while such a neighbour was active, or shortly after."""
    times = [each for each in effects.disturbed if each.disturbance.kind is kind]
    return [
        start
        for start in effects.starts
        if any(each.began_at <= start.due_at <= each.ended_at + _AFTERMATH for each in times)
    ]


def missed(effects: Effects, limits: Mapping[str, int], *, patience: float) -> Iterator[str]:
    """Yield every bound that was missed; times may be `patience` times as long."""
    yield from _failed_neighbours(effects)
    yield from _late_starts(effects, patience * START_SECONDS)
    yield from _wrong_outcomes(effects)
    yield from _late_deliveries(effects, patience * DELIVERED_SECONDS)
    yield from _slow_probes(effects, patience * LIVE_SECONDS)
    for service, peak in effects.observed.peaks.items():
        limit = limits[service.partition("-")[0]]
        if peak.memory_bytes > limit and peak.at is not None:
            yield (
                f"{service} held {peak.memory_bytes >> 20} MB, its deployment allows {limit >> 20}; "
                f"active: {_active(effects.disturbed, peak.at, peak.at)}"
            )


def _failed_neighbours(effects: Effects) -> Iterator[str]:
    """A neighbour that does nothing proves nothing."""
    for each in effects.disturbed:
        if each.failed is not None:
            yield f"neighbour {each.disturbance.number}, {each.disturbance}, failed: {each.failed}"
        elif not each.did:
            yield f"neighbour {each.disturbance.number}, {each.disturbance}, had no effect"


def _late_starts(effects: Effects, bound_seconds: float) -> Iterator[str]:
    for name, starts in _parts(effects).items():
        late = [start for start in starts if start.seconds > bound_seconds]
        if len(late) > max(_CHANCE, 0.01 * len(starts)):
            p99 = percentile((start.seconds for start in starts), 0.99)
            active = Counter(
                _active(effects.disturbed, start.due_at, start.started_at or start.due_at) for start in late
            )
            yield (
                f"P9: p99 from submit to start {name} was {p99:.2f} s, {bound_seconds:g} s are allowed; "
                f"of {len(starts)} {len(late)} were later: {_counted(active)}"
            )


def _wrong_outcomes(effects: Effects) -> Iterator[str]:
    wrong: dict[str, list[int]] = defaultdict(list)
    for start in effects.starts:
        if start.status is not Status.COMPLETED:
            outcome: str = start.status or ("never admitted" if start.admitted_at is None else "not ended")
            wrong[outcome].append(start.number)
    for outcome, numbers in wrong.items():
        yield f"{len(numbers)} of the steady load are {outcome}: {', '.join(map(str, numbers[:_EXAMPLES]))}"


def _late_deliveries(effects: Effects, bound_seconds: float) -> Iterator[str]:
    seconds = delivery_seconds(effects)
    ends = {start.number: start.ended_at for start in effects.starts}
    late: list[tuple[float, datetime]] = [
        (seconds[number], ended_at)
        for number in effects.callbacks
        if (ended_at := ends.get(number)) is not None and seconds[number] > bound_seconds
    ]
    if late:
        active = Counter(
            _active(effects.disturbed, ended_at, ended_at + timedelta(seconds=bound_seconds))
            for _, ended_at in late
        )
        yield (
            f"P9: {len(late)} of {len(effects.callbacks)} webhooks came later than {bound_seconds:g} s "
            f"after their outcomes, the worst {max(late)[0]:.1f} s: {_counted(active)}"
        )


def delivery_seconds(effects: Effects) -> dict[int, float]:
    """Return how long after its end each webhook of the steady load arrived; infinite: never."""
    arrived: dict[int, datetime] = {}
    for received in effects.received:
        arrived.setdefault(int(received.path.rpartition("/")[2]), received.at)
    ends = {start.number: start.ended_at for start in effects.starts}
    return {
        number: _between(ends[number] or arrived.get(number), arrived.get(number))
        for number in effects.callbacks
        if number in ends
    }


def _slow_probes(effects: Effects, bound_seconds: float) -> Iterator[str]:
    probes = effects.observed.probes
    bad = [p for p in probes if p.answer != "200" or p.seconds > bound_seconds]
    if bad:
        worst = max(bad, key=lambda probe: probe.seconds)
        active = Counter(
            _active(effects.disturbed, probe.at, probe.at + timedelta(seconds=probe.seconds)) for probe in bad
        )
        yield (
            f"P9: {len(bad)} of {len(probes)} answers of /livez were bad or took longer than "
            f"{bound_seconds:g} s, the worst {worst.seconds:.2f} s ({worst.service}, {worst.answer}): "
            f"{_counted(active)}"
        )


def _active(disturbed: Sequence[Disturbed], began_at: datetime, ended_at: datetime) -> str:
    """Name the neighbours active in that time, or shortly before it."""
    names = [
        str(each.disturbance)
        for each in disturbed
        if each.began_at <= ended_at and began_at <= each.ended_at + _AFTERMATH
    ]
    return ", ".join(sorted(set(names))) or "none"


def _counted(active: Counter[str]) -> str:
    return "; ".join(f"{count} beside {names}" for names, count in active.most_common(_COMMON))


def _between(began_at: datetime | None, ended_at: datetime | None) -> float:
    return float("inf") if began_at is None or ended_at is None else (ended_at - began_at).total_seconds()


def details(effects: Effects, limits: Mapping[str, int]) -> list[str]:
    """Return the lines of the report about the steady load, and what the monitor saw."""
    delivered, observed = list(delivery_seconds(effects).values()), effects.observed
    lines = []
    for name, starts in _parts(effects).items():
        seconds = [start.seconds for start in starts]
        if seconds:
            p50, p99, worst = (percentile(seconds, share) or 0.0 for share in (0.5, 0.99, 1.0))
            lines.append(f"  p50, p99, worst    {p50:.2f}, {p99:.2f}, {worst:.2f} s of {len(seconds)} {name}")
    slowest = max(observed.probes, key=lambda probe: probe.seconds, default=None)
    if slowest is not None:
        lines.append(f"  worst /livez       {slowest.service} {slowest.seconds:.2f} s")
    lines.append(
        f"  webhooks           {len(delivered)}, p99 {percentile(delivered, 0.99) or 0.0:.2f} s,"
        f" worst {max(delivered, default=0.0):.2f} s after the end"
    )
    lines += [
        f"  most memory        {name} {peak.memory_bytes >> 20} of {limits[name.partition('-')[0]] >> 20} MB"
        for name, peak in observed.peaks.items()
    ]
    return [*lines, f"  harness late by    {observed.worst_lag_seconds:.2f} s at most"]


def _parts(effects: Effects) -> dict[str, Sequence[Start]]:
    """Return all starts, and those beside each kind of neighbour."""
    beside = {f"beside {kind}": starts_during(effects, kind) for kind in Kind}
    return {"in all": effects.starts, **beside}
