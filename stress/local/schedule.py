"""Plans faults: a pure function of the seed.

Each fault is isolated: the next one begins when the system has recovered from it.
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from turnstile.stress.scenario import FaultKind, PlannedFault

_BEGIN_SECONDS: Final = 2.0
"""The load runs by then."""
_START_SECONDS: Final = 3.0
"""Until a started service is ready and runs executions."""
_OFFER_AGAIN_SECONDS: Final = 30.0
"""Until a lost offer has certainly been repeated."""
_TAKEOVER_SECONDS: Final = 6.0
"""Until another executor takes over admission from a paused one."""
_LIMITS: Final = (1, 2, 8, 16)
_DELAY_SHARE: Final = 0.25
"""Random faults are delayed by up to this share of their period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timing:
    """The timing of one kind of fault, in seconds; the argument is the lease duration."""

    shown: Callable[[float], float]
    """Its duration in a recovery plan."""
    lasting: Callable[[float], tuple[float, float]]
    """The range of its random duration."""
    recovers: Callable[[float], float]
    """From its repair until the system has recovered, with a margin."""


_TIMINGS: Final[Mapping[FaultKind, _Timing]] = {
    FaultKind.KILL_WORKER: _Timing(
        shown=lambda _: 1.0,
        lasting=lambda _: (0.5, 3.0),
        recovers=lambda lease: 2 * lease + 1.0,
    ),
    FaultKind.PAUSE_WORKER: _Timing(
        shown=lambda lease: 1.5 * lease,
        lasting=lambda lease: (0.3 * lease, 2.0 * lease),
        recovers=lambda lease: lease + _START_SECONDS,
    ),
    FaultKind.KILL_EXECUTOR: _Timing(
        shown=lambda _: 1.0,
        lasting=lambda _: (0.5, 3.0),
        recovers=lambda _: _START_SECONDS + _TAKEOVER_SECONDS,
    ),
    FaultKind.PAUSE_EXECUTOR: _Timing(
        shown=lambda _: _TAKEOVER_SECONDS + 2.0,
        lasting=lambda _: (1.0, 2 * _TAKEOVER_SECONDS),
        recovers=lambda _: _TAKEOVER_SECONDS,
    ),
    # Stopping and starting take several seconds, and clients wait before they reconnect.
    FaultKind.RESTART_BROKER: _Timing(
        shown=lambda _: 0.0, lasting=lambda _: (0.0, 3.0), recovers=lambda _: 25.0
    ),
    # After an outage, reclaims pause for a lease: workers that could not renew theirs lose nothing.
    FaultKind.RESTART_DATABASE: _Timing(
        shown=lambda _: 0.0, lasting=lambda _: (0.0, 3.0), recovers=lambda lease: lease + 8.0
    ),
    FaultKind.PURGE_QUEUES: _Timing(
        shown=lambda _: 3.0, lasting=lambda _: (1.0, 4.0), recovers=lambda _: _OFFER_AGAIN_SECONDS + 4.0
    ),
    FaultKind.CHANGE_LIMIT: _Timing(
        shown=lambda _: 5.0, lasting=lambda _: (2.0, 8.0), recovers=lambda _: _START_SECONDS
    ),
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
    faults: list[PlannedFault] = []
    at = rng.uniform(_BEGIN_SECONDS, 2 * _BEGIN_SECONDS)
    for kind in _shuffled_rounds(rng, sorted(kinds)):
        timing = _TIMINGS[kind]
        fault = PlannedFault(
            kind=kind,
            at_seconds=round(at, 2),
            lasting_seconds=round(rng.uniform(*timing.lasting(lease_seconds)), 2),
            target=rng.randrange(_targets(kind, executors=executors, workers=workers, actions=actions)),
            limit=rng.choice(_LIMITS) if kind is FaultKind.CHANGE_LIMIT else None,
        )
        room = fault.lasting_seconds + timing.recovers(lease_seconds)
        if at + room > seconds:
            break
        faults.append(fault)
        at += room * rng.uniform(1.0, 1.0 + _DELAY_SHARE)
    return tuple(faults)


def seconds_for(kinds: Collection[FaultKind], *, lease_seconds: float) -> float:
    """Return in how much time `plan_faults` has room for each of these kinds at least once."""
    rooms = (
        _TIMINGS[kind].lasting(lease_seconds)[1] + _TIMINGS[kind].recovers(lease_seconds) for kind in kinds
    )
    return 2 * _BEGIN_SECONDS + (1.0 + _DELAY_SHARE) * sum(rooms)


def recovery_plan(
    lease_seconds: float, *, kinds: Collection[FaultKind] = RECOVERABLE
) -> tuple[PlannedFault, ...]:
    """Return one fault of each kind in turn, each long enough and alone long enough to see its recovery."""
    faults: list[PlannedFault] = []
    at = _BEGIN_SECONDS
    for kind in kinds:
        lasting = _TIMINGS[kind].shown(lease_seconds)
        limit = _LIMITS[0] if kind is FaultKind.CHANGE_LIMIT else None
        faults.append(PlannedFault(kind=kind, at_seconds=at, lasting_seconds=lasting, limit=limit))
        at = round(at + lasting + _TIMINGS[kind].recovers(lease_seconds), 2)
    return tuple(faults)


def _targets(kind: FaultKind, *, executors: int, workers: int, actions: int) -> int:
    match kind:
        case FaultKind.KILL_WORKER | FaultKind.PAUSE_WORKER:
            return workers
        case FaultKind.KILL_EXECUTOR | FaultKind.PAUSE_EXECUTOR:
            return executors
        case FaultKind.CHANGE_LIMIT:
            return actions
        case FaultKind.RESTART_BROKER | FaultKind.RESTART_DATABASE | FaultKind.PURGE_QUEUES:
            return 1


def _shuffled_rounds(rng: random.Random, kinds: list[FaultKind]) -> Iterator[FaultKind]:
    while kinds:
        yield from rng.sample(kinds, len(kinds))
