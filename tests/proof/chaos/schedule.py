"""The schedule of faults, a pure function of the seed.

In: a seed and the shape of a run. Out: `Fault`s in the order of their time. Every kind comes before any
comes twice; most come alone, since the system must survive each single fault, and some while another one
lasts. A fault waits until the part that it affects has recovered from the one before.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.proof.chaos.environment import EXECUTORS, LEASE_SECONDS, WORKERS, servers_of
from turnstile.common.broker.topology import EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS, EXECUTOR_REPORTS


class Kind(StrEnum):
    """Every kind of fault."""

    EXECUTOR_KILLED = "executor killed"
    EXECUTOR_STOPPED = "executor stopped"
    EXECUTOR_PAUSED = "executor paused"
    WORKER_KILLED = "worker killed"
    WORKER_STOPPED = "worker stopped"
    WORKER_PAUSED = "worker paused"
    WORKER_PAUSED_LONG = "worker paused past its lease"
    DATABASE_RESTARTED = "database restarted"
    DATABASE_CRASHED = "database crashed"
    DATABASE_FROZEN = "database frozen"
    SESSIONS_TERMINATED = "database sessions terminated"
    BROKER_RESTARTED = "broker restarted"
    BROKER_KILLED = "broker killed"
    BROKER_FROZEN = "broker frozen"
    CONNECTIONS_CLOSED = "broker connections closed"
    MEMORY_ALARM = "broker memory alarm"
    QUEUE_PURGED = "queue purged"
    QUEUE_DELETED = "queue deleted"
    LINK_DELAYED = "link delayed"
    LINK_CUT = "link cut"
    LINK_CUT_ONE_WAY = "link cut one way"
    LINK_FROZEN = "link frozen"
    ANSWERS_DROPPED = "answers dropped"
    WORKER_CUT_OFF = "worker cut off from the broker"
    DATABASE_UNREACHABLE = "database unreachable for all executors"
    EXECUTOR_KILLED_IN_FLIGHT = "executor killed with messages in flight"
    EXECUTOR_KILLED_MESSAGES_LOST = "executor killed with messages lost"
    WORKER_KILLED_IN_FLIGHT = "worker killed with messages in flight"
    WORKER_KILLED_MESSAGES_LOST = "worker killed with messages lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of the schedule; `lasting_seconds` is until its healing begins."""

    number: int
    kind: Kind
    target: str
    at_seconds: float
    lasting_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a run is spread over time."""

    seconds: float
    """Faults begin within this time; the load lasts as long."""
    quiet_seconds: tuple[float, float] = (0.3, 3.0)
    """From the end of one fault to the next one that comes alone."""
    together: float = 0.4
    """Share of faults that come while another one lasts."""
    stretch: float = 1.0
    """Share of the range above the shortest duration."""
    kinds: tuple[Kind, ...] = tuple(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trait:
    targets: Sequence[str]
    lasting_seconds: tuple[float, float]
    heals_in_seconds: float = 0.0
    """About how long the part needs to serve again after the end."""


EXECUTOR_LINKS: Final = tuple(
    f"{executor} > {server}" for executor in EXECUTORS for server in servers_of(executor)
)
WORKER_LINKS: Final = tuple(f"{worker} > broker" for worker in WORKERS)
LINKS: Final = (*EXECUTOR_LINKS, *WORKER_LINKS)
SPARED_QUEUE: Final = "executor.requests"
"""Not purged nor deleted: that would discard requests before they are admitted."""
PURGED: Final = (EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS, EXECUTOR_REPORTS)
DELETED: Final = (*PURGED, *(f"session of {worker}" for worker in WORKERS))

_TRAITS: Final[Mapping[Kind, _Trait]] = {
    Kind.EXECUTOR_KILLED: _Trait(targets=EXECUTORS, lasting_seconds=(0.0, 2.0), heals_in_seconds=1.0),
    Kind.EXECUTOR_STOPPED: _Trait(targets=EXECUTORS, lasting_seconds=(0.0, 1.0), heals_in_seconds=2.0),
    Kind.EXECUTOR_PAUSED: _Trait(targets=EXECUTORS, lasting_seconds=(0.5, 2.5 * LEASE_SECONDS)),
    Kind.WORKER_KILLED: _Trait(targets=WORKERS, lasting_seconds=(0.0, 2.0), heals_in_seconds=1.0),
    Kind.WORKER_STOPPED: _Trait(targets=WORKERS, lasting_seconds=(0.0, 1.0), heals_in_seconds=3.0),
    Kind.WORKER_PAUSED: _Trait(targets=WORKERS, lasting_seconds=(0.3, 0.9 * LEASE_SECONDS)),
    Kind.WORKER_PAUSED_LONG: _Trait(
        targets=WORKERS, lasting_seconds=(1.3 * LEASE_SECONDS, 2.5 * LEASE_SECONDS)
    ),
    Kind.DATABASE_RESTARTED: _Trait(targets=["database"], lasting_seconds=(0.0, 0.0), heals_in_seconds=1.0),
    Kind.DATABASE_CRASHED: _Trait(targets=["database"], lasting_seconds=(0.0, 0.0), heals_in_seconds=1.0),
    Kind.DATABASE_FROZEN: _Trait(targets=["database"], lasting_seconds=(0.5, 2.0 * LEASE_SECONDS)),
    Kind.SESSIONS_TERMINATED: _Trait(targets=["database"], lasting_seconds=(0.0, 3.0)),
    Kind.BROKER_RESTARTED: _Trait(targets=["broker"], lasting_seconds=(0.0, 0.0), heals_in_seconds=13.0),
    Kind.BROKER_KILLED: _Trait(targets=["broker"], lasting_seconds=(0.0, 0.0), heals_in_seconds=6.0),
    Kind.BROKER_FROZEN: _Trait(targets=["broker"], lasting_seconds=(0.5, 2.0 * LEASE_SECONDS)),
    Kind.CONNECTIONS_CLOSED: _Trait(targets=["broker"], lasting_seconds=(0.0, 5.0)),
    Kind.MEMORY_ALARM: _Trait(targets=["broker"], lasting_seconds=(0.5, 5.0), heals_in_seconds=2.0),
    Kind.QUEUE_PURGED: _Trait(targets=PURGED, lasting_seconds=(0.0, 0.0), heals_in_seconds=0.2),
    Kind.QUEUE_DELETED: _Trait(targets=DELETED, lasting_seconds=(0.0, 0.0), heals_in_seconds=0.5),
    Kind.LINK_DELAYED: _Trait(targets=LINKS, lasting_seconds=(1.0, 6.0)),
    Kind.LINK_CUT: _Trait(targets=LINKS, lasting_seconds=(0.2, 2.0 * LEASE_SECONDS)),
    Kind.LINK_CUT_ONE_WAY: _Trait(targets=LINKS, lasting_seconds=(0.5, 2.0 * LEASE_SECONDS)),
    Kind.LINK_FROZEN: _Trait(targets=LINKS, lasting_seconds=(0.5, 2.0 * LEASE_SECONDS)),
    Kind.ANSWERS_DROPPED: _Trait(targets=LINKS, lasting_seconds=(0.3, 4.0)),
    Kind.WORKER_CUT_OFF: _Trait(targets=WORKERS, lasting_seconds=(0.5, 3.5 * LEASE_SECONDS)),
    Kind.DATABASE_UNREACHABLE: _Trait(
        targets=["database"], lasting_seconds=(1.0, 2.0 * LEASE_SECONDS), heals_in_seconds=1.0
    ),
    Kind.EXECUTOR_KILLED_IN_FLIGHT: _Trait(
        targets=EXECUTORS, lasting_seconds=(0.3, 1.5), heals_in_seconds=1.0
    ),
    Kind.EXECUTOR_KILLED_MESSAGES_LOST: _Trait(
        targets=EXECUTOR_LINKS, lasting_seconds=(0.3, 1.5), heals_in_seconds=1.0
    ),
    Kind.WORKER_KILLED_IN_FLIGHT: _Trait(targets=WORKERS, lasting_seconds=(0.3, 1.5), heals_in_seconds=1.0),
    Kind.WORKER_KILLED_MESSAGES_LOST: _Trait(
        targets=WORKER_LINKS, lasting_seconds=(0.3, 1.5), heals_in_seconds=1.0
    ),
}
assert SPARED_QUEUE not in DELETED


def parts_of(kind: Kind, target: str) -> frozenset[str]:
    """Return the parts that can have one fault at a time."""
    service = target.partition(" ")[0]
    match kind:
        case Kind.QUEUE_PURGED | Kind.QUEUE_DELETED:
            return frozenset({"broker"})
        case Kind.DATABASE_UNREACHABLE:
            return frozenset({target, *(_links_of(name) for name in EXECUTORS)})
        case (
            Kind.EXECUTOR_KILLED_IN_FLIGHT
            | Kind.EXECUTOR_KILLED_MESSAGES_LOST
            | Kind.WORKER_KILLED_IN_FLIGHT
            | Kind.WORKER_KILLED_MESSAGES_LOST
        ):
            return frozenset({service, _links_of(service)})
        case Kind.WORKER_CUT_OFF:
            return frozenset({_links_of(service)})
        case _:
            return frozenset({_links_of(service) if target in LINKS else target})


def _links_of(service: str) -> str:
    return f"links of {service}"


def plan_faults(seed: int, shape: Shape) -> list[Fault]:
    """Return the faults of a run."""
    rng = random.Random(f"{seed} faults")
    free_at: dict[str, float] = {}
    faults: list[Fault] = []
    now = 1.0
    for kind in _repeated(rng, shape.kinds):
        trait = _TRAITS[kind]
        target = rng.choice(trait.targets)
        parts = parts_of(kind, target)
        now = max(now, *(free_at.get(part, 0.0) for part in parts))
        if now >= shape.seconds:
            return faults
        low, high = trait.lasting_seconds
        fault = Fault(
            number=len(faults) + 1,
            kind=kind,
            target=target,
            at_seconds=round(now, 2),
            lasting_seconds=round(rng.uniform(low, low + (high - low) * shape.stretch), 2),
        )
        faults.append(fault)
        over_at = now + fault.lasting_seconds + trait.heals_in_seconds
        free_at |= dict.fromkeys(parts, over_at)
        quiet_seconds = rng.uniform(*shape.quiet_seconds)
        if rng.random() < shape.together:
            now += rng.uniform(0.0, over_at - now)
        else:
            now = max(free_at.values()) + quiet_seconds
    raise AssertionError("the kinds do not end")


def _repeated(rng: random.Random, kinds: Sequence[Kind]) -> Iterator[Kind]:
    while True:
        yield from rng.sample(kinds, len(kinds))
