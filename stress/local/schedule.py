"""Plans faults: a pure function of the seed.

Each fault is isolated: the next one begins when the system has recovered from it.
"""

import random
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from turnstile.stress.scenario import FaultKind, PlannedFault

_BEGIN_SECONDS: Final = 2.0
"""The load runs by then."""
_LIMITS: Final = (1, 2, 8, 16)
_DELAY_SHARE: Final = 0.25
"""Random faults are delayed by up to this share of their period."""


class _Span(NamedTuple):
    """A duration: so many leases of the workers, and so many seconds."""

    leases: float
    seconds: float

    def of(self, lease_seconds: float) -> float:
        return self.leases * lease_seconds + self.seconds


class _Timing(NamedTuple):
    """The timing of one kind of fault."""

    shown: _Span
    """Its duration in a recovery plan."""
    least: _Span
    most: _Span
    """The range of its random duration."""
    recovers: _Span
    """From its repair until the system has recovered, with a margin."""


_TIMINGS: Final[Mapping[FaultKind, _Timing]] = {
    FaultKind.KILL_WORKER: _Timing(_Span(0, 1), _Span(0, 0.5), _Span(0, 3), _Span(2, 1)),
    # A started service is ready and runs executions within 3 s.
    FaultKind.PAUSE_WORKER: _Timing(_Span(1.5, 0), _Span(0.3, 0), _Span(2, 0), _Span(1, 3)),
    # Another executor takes over admission within 6 s.
    FaultKind.KILL_EXECUTOR: _Timing(_Span(0, 1), _Span(0, 0.5), _Span(0, 3), _Span(0, 9)),
    FaultKind.PAUSE_EXECUTOR: _Timing(_Span(0, 8), _Span(0, 1), _Span(0, 12), _Span(0, 6)),
    # Stopping and starting take several seconds, and clients wait before they reconnect.
    FaultKind.RESTART_BROKER: _Timing(_Span(0, 0), _Span(0, 0), _Span(0, 3), _Span(0, 25)),
    # After an outage, reclaims pause for a lease: workers that could not renew theirs lose nothing.
    FaultKind.RESTART_DATABASE: _Timing(_Span(0, 0), _Span(0, 0), _Span(0, 3), _Span(1, 8)),
    # A lost offer has certainly been repeated after 30 s.
    FaultKind.PURGE_QUEUES: _Timing(_Span(0, 3), _Span(0, 1), _Span(0, 4), _Span(0, 34)),
    FaultKind.CHANGE_LIMIT: _Timing(_Span(0, 5), _Span(0, 2), _Span(0, 8), _Span(0, 3)),
}
assert set(_TIMINGS) == set(FaultKind)

RECOVERABLE: Final = tuple(kind for kind in FaultKind if kind is not FaultKind.CHANGE_LIMIT)
"""The kinds that cause an outage."""


def plan_faults(
    seed: int,
    *,
    seconds: float,
    executors: int,
    workers: int,
    kinds: Collection[FaultKind],
    lease_seconds: float,
    actions: int = 1,
) -> tuple[PlannedFault, ...]:
    """Return faults at random, all over within `seconds`; every kind before any comes twice."""
    rng = random.Random(f"{seed} faults")
    targets = {
        FaultKind.KILL_WORKER: workers,
        FaultKind.PAUSE_WORKER: workers,
        FaultKind.KILL_EXECUTOR: executors,
        FaultKind.PAUSE_EXECUTOR: executors,
        FaultKind.CHANGE_LIMIT: actions,
    }
    faults: list[PlannedFault] = []
    at = rng.uniform(_BEGIN_SECONDS, 2 * _BEGIN_SECONDS)
    for kind in _shuffled_rounds(rng, sorted(kinds)):
        timing = _TIMINGS[kind]
        lasting = rng.uniform(timing.least.of(lease_seconds), timing.most.of(lease_seconds))
        fault = PlannedFault(
            kind=kind,
            at_seconds=round(at, 2),
            lasting_seconds=round(lasting, 2),
            target=rng.randrange(targets.get(kind, 1)),
            limit=rng.choice(_LIMITS) if kind is FaultKind.CHANGE_LIMIT else None,
        )
        room = fault.lasting_seconds + timing.recovers.of(lease_seconds)
        if at + room > seconds:
            break
        faults.append(fault)
        at += room * rng.uniform(1.0, 1.0 + _DELAY_SHARE)
    return tuple(faults)


def seconds_for(kinds: Collection[FaultKind], *, lease_seconds: float) -> float:
    """Return in how much time `plan_faults` has room for each of these kinds at least once."""
    timings = [_TIMINGS[kind] for kind in kinds]
    room = sum(each.most.of(lease_seconds) + each.recovers.of(lease_seconds) for each in timings)
    return 2 * _BEGIN_SECONDS + (1.0 + _DELAY_SHARE) * room


def recovery_plan(
    lease_seconds: float, *, kinds: Collection[FaultKind] = RECOVERABLE
) -> tuple[PlannedFault, ...]:
    """Return one fault of each kind in turn, each long enough and alone long enough to see its recovery."""
    faults: list[PlannedFault] = []
    at = _BEGIN_SECONDS
    for kind in kinds:
        lasting = _TIMINGS[kind].shown.of(lease_seconds)
        faults.append(PlannedFault(kind=kind, at_seconds=at, lasting_seconds=lasting))
        at = round(at + lasting + _TIMINGS[kind].recovers.of(lease_seconds), 2)
    return tuple(faults)


def _shuffled_rounds(rng: random.Random, kinds: list[FaultKind]) -> Iterator[FaultKind]:
    while kinds:
        yield from rng.sample(kinds, len(kinds))
