"""The schedule of neighbours, a pure function of the seed.

In: a seed and the shape of a run. Out: `Disturbance`s in the order of their time, several at once, none
beside another one of its kind, and the kinds in `APART` not beside each other. Every kind comes before any
comes twice, and so does every variant of a kind.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

T = TypeVar("T")


class Kind(StrEnum):
    """Every kind of neighbour."""

    REFUSING_LISTENER = "refusing listener queue"
    REFUSING_REPLY_QUEUE = "refusing reply queue"
    POISON_REPLY_ADDRESS = "poison reply address"
    BAD_MESSAGES = "bad messages"
    HUGE_REQUESTS = "huge requests"
    STUCK_RECEIVERS = "stuck webhook receivers"
    LOCKED_ROW = "locked row"
    MUTE_WORKERS = "mute workers"
    UNKNOWN_CANCELS = "unknown cancels"
    UNKNOWN_COMPLETIONS = "unknown completions"
    KILLED_SESSIONS = "killed database sessions"
    NO_FREE_CONNECTION = "no free connection"
    REFUSING_DEAD_LETTERS = "refusing dead letters"
    FULL_QUEUE = "full queue"
    MANY_KEYS = "many keys"
    OLD_SNAPSHOT = "old snapshot"
    SCANNING_READERS = "scanning readers"


VARIANTS: Final[Mapping[Kind, Sequence[str]]] = {
    Kind.REFUSING_LISTENER: ("execution.completed", "#"),
    Kind.REFUSING_REPLY_QUEUE: ("full", "missing"),
    Kind.POISON_REPLY_ADDRESS: ("direct reply-to", "our queues", "malformed"),
    Kind.BAD_MESSAGES: ("mixed",),
    Kind.HUGE_REQUESTS: ("large", "dense", "oversized"),
    Kind.STUCK_RECEIVERS: ("silent",),
    Kind.LOCKED_ROW: ("action", "waiting execution", "running execution"),
    Kind.MUTE_WORKERS: ("of its pool", "of ours"),
    Kind.UNKNOWN_CANCELS: ("by the exchange", "by the queue"),
    Kind.UNKNOWN_COMPLETIONS: ("as listeners hear them", "as workers send them"),
    Kind.KILLED_SESSIONS: ("one by one",),
    Kind.NO_FREE_CONNECTION: ("all but the reserved", "all"),
    Kind.REFUSING_DEAD_LETTERS: ("policy",),
    Kind.FULL_QUEUE: ("reject",),
    Kind.MANY_KEYS: ("used once",),
    Kind.OLD_SNAPSHOT: ("idle in transaction",),
    Kind.SCANNING_READERS: ("repeatable read",),
}

APART: Final = frozenset({Kind.KILLED_SESSIONS, Kind.NO_FREE_CONNECTION})
"""Never at once: if others take the connections of killed sessions, the services lose the whole database.
That is an outage, as in the mode `faults`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """One neighbour, once."""

    number: int
    kind: Kind
    variant: str
    at_seconds: float
    lasting_seconds: float

    def __str__(self) -> str:
        return f"{self.kind} ({self.variant})"


AT_ONCE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a run is spread over time."""

    seconds: float
    """Duration of the load; the neighbours end before it does."""
    at_once: int = AT_ONCE
    """Number of neighbours at the same time."""
    lasting_seconds: tuple[float, float] = (4.0, 8.0)
    quiet_seconds: tuple[float, float] = (0.0, 1.5)
    """From the end of one neighbour to the next one."""
    kinds: tuple[Kind, ...] = tuple(Kind)


FIRST_AT_SECONDS: Final = 2.0
"""Until then the load is alone."""


def plan_disturbances(seed: int, shape: Shape) -> list[Disturbance]:
    """Return the neighbours of a run."""
    rng = random.Random(f"{seed} neighbours")
    variants = {kind: _repeated(rng, VARIANTS[kind]) for kind in Kind}
    free_from = [FIRST_AT_SECONDS + rng.uniform(*shape.quiet_seconds) for _ in range(shape.at_once)]
    free_at: dict[Kind, float] = {}
    disturbances: list[Disturbance] = []
    for kind in _repeated(rng, shape.kinds):
        position = min(range(len(free_from)), key=free_from.__getitem__)
        apart_from = APART if kind in APART else {kind}
        begins = max(free_from[position], *(free_at.get(other, 0.0) for other in apart_from))
        if begins + shape.lasting_seconds[0] > shape.seconds:
            return sorted(disturbances, key=lambda d: d.at_seconds)
        ends = min(begins + rng.uniform(*shape.lasting_seconds), shape.seconds)
        disturbances.append(
            Disturbance(
                number=len(disturbances) + 1,
                kind=kind,
                variant=next(variants[kind]),
                at_seconds=round(begins, 2),
                lasting_seconds=round(ends - begins, 2),
            )
        )
        free_from[position] = ends + rng.uniform(*shape.quiet_seconds)
        free_at[kind] = ends
    raise AssertionError("the kinds do not end")


def _repeated(rng: random.Random, values: Sequence[T]) -> Iterator[T]:
    while True:
        yield from rng.sample(values, len(values))
