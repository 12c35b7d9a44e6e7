"""What a run does: scenarios, one after the other, each a load and the faults during it.

Plain values: `presets` composes them, `drive` carries them out, `check` and `metrics` evaluate the result.
Each scenario drains before the next one begins, so each is checked separately.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from turnstile.common.domain.durations import format_duration, parse_duration

_MIX_EXAMPLE: Final = "70% 0ms, 25% 20ms, 5% 500ms"
Fields = Mapping[str, Any]
"""Fields of a definition, as JSON."""
_MIX_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%\s+(\S+)")


class FaultKind(StrEnum):
    """The faults of a private installation."""

    KILL_WORKER = "kill worker"
    KILL_EXECUTOR = "kill executor"
    PAUSE_WORKER = "pause worker"
    PAUSE_EXECUTOR = "pause executor"
    RESTART_BROKER = "restart broker"
    RESTART_DATABASE = "restart database"
    PURGE_QUEUES = "purge queues"
    CHANGE_LIMIT = "change limit"


class MixPart(NamedTuple):
    """A share of all executions with one duration."""

    share: float
    seconds: float


@dataclass(frozen=True, slots=True)
class DurationMix:
    """The durations of the executions of a load, as shares that add up to one."""

    parts: tuple[MixPart, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read text like `70% 0ms, 25% 20ms, 5% 500ms`; raises ValueError with what was expected."""
        parts = [_mix_part(piece.strip()) for piece in text.split(",")]
        total = sum(part.share for part in parts)
        if not math.isclose(total, 1.0, abs_tol=1e-6):
            raise ValueError(
                f"the shares add up to {total:.4g}, not to 100%; expected for example {_MIX_EXAMPLE!r}"
            )
        return cls(tuple(parts))

    @classmethod
    def always(cls, seconds: float) -> Self:
        """Return the mix with one duration."""
        return cls((MixPart(1.0, seconds),))

    @property
    def mean_seconds(self) -> float:
        """The mean duration."""
        return sum(part.share * part.seconds for part in self.parts)

    @property
    def max_seconds(self) -> float:
        """The longest duration."""
        return max(part.seconds for part in self.parts)

    def __str__(self) -> str:
        return ", ".join(f"{100 * part.share:g}% {format_duration(part.seconds)}" for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault; `at_seconds` counts from the first request of the scenario."""

    kind: FaultKind
    at_seconds: float
    lasting_seconds: float = 0.0
    """Until its repair begins."""
    target: int = 0
    """Which worker, executor or action, counted from 0."""
    limit: int | None = None
    """The temporary limit, for CHANGE_LIMIT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests of a scenario."""

    executions: int
    mix: DurationMix
    actions: int = 10
    keys: int = 0
    """Concurrency keys of each action; 0: one queue for each action."""
    submitters: int = 4
    rate: float | None = None
    """Requests per second over all submitters; None: as fast as the broker confirms them."""
    answered: bool = True
    """Request a reply from the executor for each request."""
    priorities: tuple[int, ...] = ()
    """Of the requests by their numbers, repeated; empty: the default."""

    @property
    def queues(self) -> int:
        """The number of queues."""
        return self.actions * max(self.keys, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionChange:
    """A change of an action, a resource or a key; `at_seconds` counts from the first request."""

    at_seconds: float
    path: str
    """Below `/api/v1`, such as `resources/stress-1`."""
    fields: Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The gates of a scenario, and how they change during the load."""

    resources: Mapping[str, Fields]
    """Definitions by name."""
    actions: tuple[Fields, ...]
    """What the definition of each action has in addition, by its number."""
    keys: tuple[DefinitionChange, ...] = ()
    """The settings of keys before the first request."""
    changes: tuple[DefinitionChange, ...] = ()
    """In the order of their times; the last ones restore everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One load under one limit."""

    name: str
    """Unique in the run: letters, digits and `-`."""
    title: str
    """For display."""
    load: Load
    limit: int | None
    """Of each queue; None: no limit."""
    all_wait_first: bool = False
    """Pause the actions until every execution waits."""
    faults: tuple[PlannedFault, ...] = ()
    gates: Gates | None = None
    """None: each execution passes its queue only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a scenario, reported several times per second."""

    scenario: Scenario
    elapsed_seconds: float
    sent: int
    """Confirmed by the broker."""
    ended: int
    waiting: int
    active: int
    note: str = ""
    """The current faults; empty: none."""


Show = Callable[[Progress], None]


def _mix_part(piece: str) -> MixPart:
    match = _MIX_PART.fullmatch(piece)
    if match is None:
        raise ValueError(
            f"{piece[:60]!r} is not a share and a duration; expected for example {_MIX_EXAMPLE!r}"
        )
    return MixPart(float(match[1]) / 100, parse_duration(match[2]))
