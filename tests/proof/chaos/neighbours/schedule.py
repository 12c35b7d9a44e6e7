"""The schedule of neighbours, a pure function of the seed.

In: a seed and the shape of a run. Out: `Disturbance`s in the order of their time, several at once, none
beside another one of its kind, and the kinds in `APART` not beside each other. Every kind comes before any
comes twice, and so does every variant of a kind.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from tests.proof.chaos.schedule import repeated


class Kind(StrEnum):
    """Every kind of neighbour, and its variants."""

    variants: Sequence[str]

    def __new__(cls, text: str, variants: Sequence[str]) -> Self:
        """Return a kind that is the text, with its variants."""
        kind = str.__new__(cls, text)
        kind._value_ = text
        kind.variants = variants
        return kind

    REFUSING_LISTENER = "refusing listener queue", ("execution.completed", "#")
    REFUSING_REPLY_QUEUE = "refusing reply queue", ("full", "missing")
    POISON_REPLY_ADDRESS = "poison reply address", ("direct reply-to", "our queues", "malformed")
    BAD_MESSAGES = "bad messages", ("mixed",)
    HUGE_REQUESTS = "huge requests", ("large", "dense", "oversized")
    STUCK_RECEIVERS = "stuck webhook receivers", ("silent",)
    LOCKED_ROW = "locked row", ("action", "waiting execution", "running execution")
    MUTE_WORKERS = "mute workers", ("of its pool", "of ours")
    UNKNOWN_CANCELS = "unknown cancels", ("by the exchange", "by the queue")
    UNKNOWN_COMPLETIONS = "unknown completions", ("as listeners hear them", "as workers send them")
    KILLED_SESSIONS = "killed database sessions", ("one by one",)
    NO_FREE_CONNECTION = "no free connection", ("all but the reserved", "all")
    REFUSING_DEAD_LETTERS = "refusing dead letters", ("policy",)
    FULL_QUEUE = "full queue", ("reject",)
    MANY_KEYS = "many keys", ("used once",)
    OLD_SNAPSHOT = "old snapshot", ("idle in transaction",)
    SCANNING_READERS = "scanning readers", ("repeatable read",)


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
    variants = {kind: repeated(rng, kind.variants) for kind in Kind}
    free_from = [FIRST_AT_SECONDS + rng.uniform(*shape.quiet_seconds) for _ in range(shape.at_once)]
    free_at: dict[Kind, float] = {}
    disturbances: list[Disturbance] = []
    for kind in repeated(rng, shape.kinds):
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
