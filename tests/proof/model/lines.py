"""One line in plain Python: what was asked, what runs, who waits, who holds a slot."""

from dataclasses import dataclass, field
from typing import Final, TypeAlias

Line: TypeAlias = tuple[str, str]
"""An action and a concurrency key."""

Told: TypeAlias = tuple[int, int, str | None]
"""A message on its way to be settled: an execution, an attempt, and the end that it tells, if any."""

TERMINAL: Final = frozenset({"completed", "failed", "timeout", "cancelled", "expired", "abandoned"})
UNSTARTED: Final = frozenset({"queued", "delayed", "scheduled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request. Two with the same key are copies if they are equal in all."""

    line: Line
    content: int = 0
    delayed: bool = False
    mortal: bool = False
    key: str | None = None


@dataclass(slots=True, kw_only=True)
class Run:
    """One execution."""

    asked: Asked
    status: str
    attempt: int = 0
    failures: int = 0
    reclaims: int = 0
    worker: str | None = None
    stop_asked: bool = False
    stops_told: int = 0
    """How often the watchdog has told the worker to stop this attempt."""
    overdue: bool = False
    """Its time to live has run out."""


@dataclass(slots=True, kw_only=True)
class Queue:
    """One line and the slots beside it."""

    limit: int | None
    paused: bool
    bound: int | None
    waiting: set[int] = field(default_factory=set)
    slots: dict[int, bool] = field(default_factory=dict)
    """Whether the attempt that holds the slot has ended."""
    enqueued: int = 0
    completed: int = 0

    @property
    def room(self) -> float:
        """How many may start now."""
        if self.paused:
            return 0
        return float("inf") if self.limit is None else max(0, self.limit - len(self.slots))
