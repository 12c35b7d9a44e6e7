"""What the steady load suffered, held against P9.

In: the recording, the submitters' log, what the neighbours did and what was seen of the services meanwhile.
Out: `Start`s, and a sentence for each bound that was missed, with the neighbours that were active then. Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Final

from tests.integration.webhooks.receiver import Received
from tests.proof.chaos.neighbours.process import Disturbed
from tests.proof.chaos.neighbours.schedule import Kind
from tests.proof.chaos.neighbours.watching import Watch
from tests.proof.chaos.sent import Log
from tests.proof.history.lives import lives_of
from tests.proof.history.recording import ExecutionMove, Recording
from turnstile.common.domain.states import Status, is_terminal

START_SECONDS: Final = 1.0
"""Of a hundred executions of others, 99 start within so long after they were submitted."""
LIVE_SECONDS: Final = 1.0
"""Every `/livez` is answered within so long."""
TOLD_SECONDS: Final = 5.0
"""A receiver that answers has heard of every end within so long."""
_CHANCE: Final = 3
"""So many late starts are no verdict: of a hundred, p99 is a single value."""
_EXAMPLES: Final = 10
_COMMON: Final = 5
_AFTERMATH: Final = timedelta(seconds=1.0)
_SETTLED: Final = timedelta(seconds=5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How one execution of the steady load came to its start, and its end; None: it never did."""

    number: int
    way: str
    due_at: datetime
    """When its submitter wanted to submit it."""
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
class Suffered:
    """All that the verdict looks at."""

    starts: Sequence[Start]
    disturbed: Sequence[Disturbed]
    watch: Watch
    told: Sequence[Received]
    """What the receiver that answers was told; its paths end with the numbers."""
    callbacks: frozenset[int]
    """The numbers of those that have such a receiver."""


def starts_of(recording: Recording, log: Log, began_at: datetime) -> list[Start]:
    """Return how each execution of the steady load came to its start."""
    lives = {life[0].mark: life for life in lives_of(recording.moves).values()}
    return [
        _start(lives.get(str(sent.submit.number), []), sent.submit.number, sent.submit.submitter, due_at)
        for sent in log.sent.values()
        for due_at in [began_at + timedelta(seconds=sent.submit.at_seconds)]
    ]


def _start(life: Sequence[ExecutionMove], number: int, submitter: str, due_at: datetime) -> Start:
    first: dict[Status, datetime] = {}
    for move in life:
        if move.status is not None:
            first.setdefault(move.status, move.stamp.at)
    end = next((move for move in life if move.status is not None and is_terminal(move.status)), None)
    return Start(
        number=number,
        way=submitter.partition("-")[0],
        due_at=due_at,
        admitted_at=life[0].stamp.at if life else None,
        granted_at=first.get(Status.SCHEDULED),
        started_at=first.get(Status.RUNNING),
        ended_at=None if end is None else end.stamp.at,
        status=None if end is None else end.status,
    )


def percentile(seconds: Sequence[float], share: float) -> float:
    """Return the value that `share` of all do not exceed; 0 where there are none."""
    return sorted(seconds)[ceil(len(seconds) * share) - 1] if seconds else 0.0


def starts_during(suffered: Suffered, kind: Kind) -> list[Start]:
    """Return what was submitted while such a neighbour was active, or a moment later."""
    times = [each for each in suffered.disturbed if each.disturbance.kind is kind]
    return [
        start
        for start in suffered.starts
        if any(each.began_at <= start.due_at <= each.ended_at + _AFTERMATH for each in times)
    ]


def starts_alone(suffered: Suffered) -> list[Start]:
    """Return what was submitted and started while no neighbour was active, nor had just been."""
    return [
        start
        for start in suffered.starts
        if not any(
            each.began_at <= (start.started_at or start.due_at) and start.due_at <= each.ended_at + _SETTLED
            for each in suffered.disturbed
        )
    ]


def missed(suffered: Suffered, limits: Mapping[str, int], *, patience: float) -> Iterator[str]:
    """Yield every bound that was missed; times may be `patience` times as long."""
    yield from _failed_neighbours(suffered)
    yield from _late_starts(suffered, patience * START_SECONDS)
    yield from _wrong_ends(suffered)
    yield from _late_deliveries(suffered, patience * TOLD_SECONDS)
    yield from _slow_probes(suffered, patience * LIVE_SECONDS)
    for service, peak in suffered.watch.peaks.items():
        limit = limits[service.partition("-")[0]]
        if peak.memory_bytes > limit and peak.at is not None:
            yield (
                f"{service} held {peak.memory_bytes >> 20} MB, its deployment allows {limit >> 20}; "
                f"active: {_active(suffered.disturbed, peak.at, peak.at)}"
            )


def _failed_neighbours(suffered: Suffered) -> Iterator[str]:
    """A neighbour that does nothing proves nothing."""
    for each in suffered.disturbed:
        if each.failed is not None:
            yield f"neighbour {each.disturbance.number}, {each.disturbance}, failed itself: {each.failed}"
        elif not each.did:
            yield f"neighbour {each.disturbance.number}, {each.disturbance}, came to nothing"


def _late_starts(suffered: Suffered, bound_seconds: float) -> Iterator[str]:
    parts = {"in all": list(suffered.starts)}
    parts |= {f"beside {kind}": starts_during(suffered, kind) for kind in Kind}
    for name, starts in parts.items():
        late = [start for start in starts if start.seconds > bound_seconds]
        if len(late) > max(_CHANCE, 0.01 * len(starts)):
            p99 = percentile([start.seconds for start in starts], 0.99)
            active = Counter(
                _active(suffered.disturbed, start.due_at, start.started_at or start.due_at) for start in late
            )
            yield (
                f"P9: p99 from submit to start {name} was {p99:.2f} s, {bound_seconds:g} s are allowed; "
                f"of {len(starts)} {len(late)} were later: {_counted(active)}"
            )


def _wrong_ends(suffered: Suffered) -> Iterator[str]:
    wrong: dict[str, list[int]] = defaultdict(list)
    for start in suffered.starts:
        if start.status is not Status.COMPLETED:
            word: str = start.status or ("never admitted" if start.admitted_at is None else "not ended")
            wrong[f"{word}, submitted over {start.way}"].append(start.number)
    for word, numbers in wrong.items():
        yield f"{len(numbers)} of the steady load are {word}: {', '.join(map(str, numbers[:_EXAMPLES]))}"


def _late_deliveries(suffered: Suffered, bound_seconds: float) -> Iterator[str]:
    seconds = delivery_seconds(suffered)
    ends = {start.number: start.ended_at for start in suffered.starts}
    late: list[tuple[float, datetime]] = [
        (seconds[number], ended_at)
        for number in suffered.callbacks
        if (ended_at := ends.get(number)) is not None and seconds[number] > bound_seconds
    ]
    if late:
        active = Counter(
            _active(suffered.disturbed, ended_at, ended_at + timedelta(seconds=bound_seconds))
            for _, ended_at in late
        )
        yield (
            f"P9: {len(late)} of {len(suffered.callbacks)} webhooks came later than {bound_seconds:g} s "
            f"after their ends, the worst {max(late)[0]:.1f} s: {_counted(active)}"
        )


def delivery_seconds(suffered: Suffered) -> dict[int, float]:
    """Return how long after its end each webhook of the steady load came; infinite: never."""
    arrived: dict[int, datetime] = {}
    for received in suffered.told:
        arrived.setdefault(int(received.path.rpartition("/")[2]), received.at)
    ends = {start.number: start.ended_at for start in suffered.starts}
    return {
        number: _between(ends[number] or arrived.get(number), arrived.get(number))
        for number in suffered.callbacks
        if number in ends
    }


def _slow_probes(suffered: Suffered, bound_seconds: float) -> Iterator[str]:
    bad = [p for p in suffered.watch.probes if p.said != "200" or p.seconds > bound_seconds]
    if bad:
        worst = max(bad, key=lambda probe: probe.seconds)
        active = Counter(
            _active(suffered.disturbed, probe.at, probe.at + timedelta(seconds=probe.seconds))
            for probe in bad
        )
        yield (
            f"P9: {len(bad)} of {len(suffered.watch.probes)} answers of /livez were bad or took longer than "
            f"{bound_seconds:g} s, the worst {worst.seconds:.2f} s ({worst.service}, {worst.said}): "
            f"{_counted(active)}"
        )


def _active(disturbed: Sequence[Disturbed], began_at: datetime, ended_at: datetime) -> str:
    """Name who was active in that time; where nobody was, who was last."""
    names = [
        str(each.disturbance)
        for each in disturbed
        if each.began_at <= ended_at and began_at <= each.ended_at + _AFTERMATH
    ]
    if names:
        return ", ".join(sorted(set(names)))
    before = [each for each in disturbed if each.ended_at < began_at]
    if not before:
        return "nobody"
    last = max(before, key=lambda each: each.ended_at)
    ago_seconds = (began_at - last.ended_at).total_seconds()
    return f"nobody any more ({last.disturbance} until {ago_seconds:.1f} s before)"


def _counted(active: Counter[str]) -> str:
    return "; ".join(f"{count} beside {names}" for names, count in active.most_common(_COMMON))


def _between(began_at: datetime | None, ended_at: datetime | None) -> float:
    return float("inf") if began_at is None or ended_at is None else (ended_at - began_at).total_seconds()
