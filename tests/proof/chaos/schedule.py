"""The schedule of faults, a pure function of the seed.

In: a seed and the shape of a run. Out: `Fault`s in the order of their time. Every kind comes before any
comes twice; most come alone, since the system must survive each single fault, and some while another one
lasts. A fault waits until the part that it affects has recovered from the one before.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self, TypeVar

from tests.proof.chaos.environment import EXECUTORS, LEASE_SECONDS, WORKERS, servers_of
from turnstile.common.broker.topology import EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS, EXECUTOR_REPORTS

T = TypeVar("T")
EXECUTOR_LINKS: Final = tuple(
    f"{executor} > {server}" for executor in EXECUTORS for server in servers_of(executor)
)
WORKER_LINKS: Final = tuple(f"{worker} > broker" for worker in WORKERS)
LINKS: Final = (*EXECUTOR_LINKS, *WORKER_LINKS)
SPARED_QUEUE: Final = "executor.requests"
"""Not purged nor deleted: that would discard requests before they are admitted."""
PURGED: Final = (EXECUTOR_COMPLETIONS, EXECUTOR_HEARTBEATS, EXECUTOR_REPORTS)
DELETED: Final = (*PURGED, *(f"session of {worker}" for worker in WORKERS))


class Kind(StrEnum):
    """Every kind of fault: its targets, how long it lasts, and how long its part needs to serve again."""

    targets: Sequence[str]
    lasting_seconds: tuple[float, float]
    heals_in_seconds: float

    def __new__(
        cls, text: str, targets: Sequence[str], lasting_seconds: tuple[float, float], heals: float = 0.0
    ) -> Self:
        """Return a kind that is the text, with its traits."""
        kind = str.__new__(cls, text)
        kind._value_ = text
        kind.targets, kind.lasting_seconds, kind.heals_in_seconds = targets, lasting_seconds, heals
        return kind

    EXECUTOR_KILLED = "executor killed", EXECUTORS, (0.0, 2.0), 1.0
    EXECUTOR_STOPPED = "executor stopped", EXECUTORS, (0.0, 1.0), 2.0
    EXECUTOR_PAUSED = "executor paused", EXECUTORS, (0.5, 2.5 * LEASE_SECONDS)
    WORKER_KILLED = "worker killed", WORKERS, (0.0, 2.0), 1.0
    WORKER_STOPPED = "worker stopped", WORKERS, (0.0, 1.0), 3.0
    WORKER_PAUSED = "worker paused", WORKERS, (0.3, 0.9 * LEASE_SECONDS)
    WORKER_PAUSED_LONG = "worker paused past its lease", WORKERS, (1.3 * LEASE_SECONDS, 2.5 * LEASE_SECONDS)
    DATABASE_RESTARTED = "database restarted", ("database",), (0.0, 0.0), 1.0
    DATABASE_CRASHED = "database crashed", ("database",), (0.0, 0.0), 1.0
    DATABASE_FROZEN = "database frozen", ("database",), (0.5, 2.0 * LEASE_SECONDS)
    SESSIONS_TERMINATED = "database sessions terminated", ("database",), (0.0, 3.0)
    BROKER_RESTARTED = "broker restarted", ("broker",), (0.0, 0.0), 13.0
    BROKER_KILLED = "broker killed", ("broker",), (0.0, 0.0), 6.0
    BROKER_FROZEN = "broker frozen", ("broker",), (0.5, 2.0 * LEASE_SECONDS)
    CONNECTIONS_CLOSED = "broker connections closed", ("broker",), (0.0, 5.0)
    MEMORY_ALARM = "broker memory alarm", ("broker",), (0.5, 5.0), 2.0
    QUEUE_PURGED = "queue purged", PURGED, (0.0, 0.0), 0.2
    QUEUE_DELETED = "queue deleted", DELETED, (0.0, 0.0), 0.5
    LINK_DELAYED = "link delayed", LINKS, (1.0, 6.0)
    LINK_CUT = "link cut", LINKS, (0.2, 2.0 * LEASE_SECONDS)
    LINK_CUT_ONE_WAY = "link cut one way", LINKS, (0.5, 2.0 * LEASE_SECONDS)
    LINK_FROZEN = "link frozen", LINKS, (0.5, 2.0 * LEASE_SECONDS)
    ANSWERS_DROPPED = "answers dropped", LINKS, (0.3, 4.0)
    WORKER_CUT_OFF = "worker cut off from the broker", WORKERS, (0.5, 3.5 * LEASE_SECONDS)
    DATABASE_UNREACHABLE = (
        "database unreachable for all executors", ("database",), (1.0, 2.0 * LEASE_SECONDS), 1.0
    )  # fmt: skip
    EXECUTOR_KILLED_IN_FLIGHT = "executor killed with messages in flight", EXECUTORS, (0.3, 1.5), 1.0
    EXECUTOR_KILLED_MESSAGES_LOST = "executor killed with messages lost", EXECUTOR_LINKS, (0.3, 1.5), 1.0
    WORKER_KILLED_IN_FLIGHT = "worker killed with messages in flight", WORKERS, (0.3, 1.5), 1.0
    WORKER_KILLED_MESSAGES_LOST = "worker killed with messages lost", WORKER_LINKS, (0.3, 1.5), 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of the schedule; `lasting_seconds` is until its healing begins."""

    number: int
    kind: Kind
    target: str
    at_seconds: float
    lasting_seconds: float

    def __str__(self) -> str:
        return f"{self.kind}: {self.target}"


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
    for kind in repeated(rng, shape.kinds):
        target = rng.choice(kind.targets)
        parts = parts_of(kind, target)
        now = max(now, *(free_at.get(part, 0.0) for part in parts))
        if now >= shape.seconds:
            return faults
        low, high = kind.lasting_seconds
        fault = Fault(
            number=len(faults) + 1,
            kind=kind,
            target=target,
            at_seconds=round(now, 2),
            lasting_seconds=round(rng.uniform(low, low + (high - low) * shape.stretch), 2),
        )
        faults.append(fault)
        over_at = now + fault.lasting_seconds + kind.heals_in_seconds
        free_at |= dict.fromkeys(parts, over_at)
        quiet_seconds = rng.uniform(*shape.quiet_seconds)
        if rng.random() < shape.together:
            now += rng.uniform(0.0, over_at - now)
        else:
            now = max(free_at.values()) + quiet_seconds
    raise AssertionError("the kinds do not end")


def repeated(rng: random.Random, values: Sequence[T]) -> Iterator[T]:
    """Yield all of them in a random order, again and again."""
    while True:
        yield from rng.sample(values, len(values))
