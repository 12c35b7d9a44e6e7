"""What is broken when: a pure function of the seed.

In: a seed, how long, and what there is to break. Out: `PlannedFault`s in the order of their time. Each has
the time to be seen alone: the next one begins when the system has recovered from it. Next: `faults` carries
them out, and `drive` those that need no breaking.
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from turnstile.stress.stage import FaultKind, PlannedFault

_BEGIN_SECONDS: Final = 2.0
"""Something runs by then."""
_START_SECONDS: Final = 3.0
"""Until a service that was started is ready, and what it was given runs."""
_OFFERED_AGAIN_SECONDS: Final = 30.0
"""TURNSTILE_DISPATCH_TIMEOUT unless it is set: until an offer that was lost is repeated."""
_TAKEN_OVER_SECONDS: Final = 6.0
"""Until another executor admits in the place of one that is silent."""
_LIMITS: Final = (1, 2, 8, 16)
_QUIET_SHARE: Final = 0.25
"""Faults at random come up to so much later than they could."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trait:
    """How one kind lasts; seconds, given those of a lease."""

    shown: Callable[[float], float]
    """How long it lasts where its recovery is to be seen."""
    lasting: Callable[[float], tuple[float, float]]
    """How long at random: from, to."""
    recovers: Callable[[float], float]
    """From its healing until the system runs as before, and a little more."""


_TRAITS: Final[Mapping[FaultKind, _Trait]] = {
    FaultKind.KILL_WORKER: _Trait(
        shown=lambda _: 1.0,
        lasting=lambda _: (0.5, 3.0),
        recovers=lambda lease: 2 * lease + 1.0,
    ),
    FaultKind.PAUSE_WORKER: _Trait(
        shown=lambda lease: 1.5 * lease,
        lasting=lambda lease: (0.3 * lease, 2.0 * lease),
        recovers=lambda lease: lease + _START_SECONDS,
    ),
    FaultKind.KILL_EXECUTOR: _Trait(
        shown=lambda _: 1.0,
        lasting=lambda _: (0.5, 3.0),
        recovers=lambda _: _START_SECONDS + _TAKEN_OVER_SECONDS,
    ),
    FaultKind.PAUSE_EXECUTOR: _Trait(
        shown=lambda _: _TAKEN_OVER_SECONDS + 2.0,
        lasting=lambda _: (1.0, 2 * _TAKEN_OVER_SECONDS),
        recovers=lambda _: _TAKEN_OVER_SECONDS,
    ),
    # It needs several seconds to stop and to start, and its clients wait a little before they come again.
    FaultKind.RESTART_BROKER: _Trait(
        shown=lambda _: 0.0, lasting=lambda _: (0.0, 3.0), recovers=lambda _: 25.0
    ),
    # After an outage nobody is reclaimed for a lease: those who could not renew it lose nothing.
    FaultKind.RESTART_DATABASE: _Trait(
        shown=lambda _: 0.0, lasting=lambda _: (0.0, 3.0), recovers=lambda lease: lease + 8.0
    ),
    FaultKind.PURGE_QUEUES: _Trait(
        shown=lambda _: 3.0, lasting=lambda _: (1.0, 4.0), recovers=lambda _: _OFFERED_AGAIN_SECONDS + 4.0
    ),
    FaultKind.CHANGE_LIMIT: _Trait(
        shown=lambda _: 5.0, lasting=lambda _: (2.0, 8.0), recovers=lambda _: _START_SECONDS
    ),
}
assert set(_TRAITS) == set(FaultKind)

RECOVERABLE: Final = tuple(kind for kind in FaultKind if kind is not FaultKind.CHANGE_LIMIT)
"""What breaks something; a limit that is changed breaks nothing."""


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
    for kind in _decks(rng, sorted(kinds)):
        trait = _TRAITS[kind]
        fault = PlannedFault(
            kind=kind,
            at_seconds=round(at, 2),
            lasting_seconds=round(rng.uniform(*trait.lasting(lease_seconds)), 2),
            target=rng.randrange(_targets(kind, executors=executors, workers=workers, actions=actions)),
            limit=rng.choice(_LIMITS) if kind is FaultKind.CHANGE_LIMIT else None,
        )
        room = fault.lasting_seconds + trait.recovers(lease_seconds)
        if at + room > seconds:
            break
        faults.append(fault)
        at += room * rng.uniform(1.0, 1.0 + _QUIET_SHARE)
    return tuple(faults)


def seconds_for(kinds: Collection[FaultKind], *, lease_seconds: float) -> float:
    """Return in how much time `plan_faults` has room for each of these kinds at least once."""
    rooms = (
        _TRAITS[kind].lasting(lease_seconds)[1] + _TRAITS[kind].recovers(lease_seconds) for kind in kinds
    )
    return 2 * _BEGIN_SECONDS + (1.0 + _QUIET_SHARE) * sum(rooms)


def recovery_plan(
    lease_seconds: float, *, kinds: Collection[FaultKind] = RECOVERABLE
) -> tuple[PlannedFault, ...]:
    """Return one fault of each kind in turn, each long enough and alone long enough to see its recovery."""
    faults: list[PlannedFault] = []
    at = _BEGIN_SECONDS
    for kind in kinds:
        lasting = _TRAITS[kind].shown(lease_seconds)
        limit = _LIMITS[0] if kind is FaultKind.CHANGE_LIMIT else None
        faults.append(PlannedFault(kind=kind, at_seconds=at, lasting_seconds=lasting, limit=limit))
        at = round(at + lasting + _TRAITS[kind].recovers(lease_seconds), 2)
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


def _decks(rng: random.Random, kinds: list[FaultKind]) -> Iterator[FaultKind]:
    while kinds:
        yield from rng.sample(kinds, len(kinds))
