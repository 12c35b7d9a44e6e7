"""The values of the board: one queue, the workers, the sums over all, and what one reading found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from turnstile.executor.dashboard.history import Totals


class QueueName(NamedTuple):
    """An action and a concurrency key: one line."""

    action_ref: str
    concurrency_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One queue as it was last read."""

    name: QueueName
    queue_id: int | None
    """None: never used."""
    pool: str
    max_concurrent: int | None
    paused: bool
    depth: int
    oldest_enqueued_at: datetime | None
    total_enqueued: int
    total_completed: int
    active_count: int = 0

    @property
    def totals(self) -> Totals:
        """What its history remembers."""
        return Totals(enqueued=self.total_enqueued, completed=self.total_completed, depth=self.depth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The workers that are there."""

    live: int = 0
    draining: int = 0
    overdue: int = 0
    places: int = 0
    """Attempts that the live ones can run at once."""
    pools: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one reading found."""

    read_at: datetime
    whole: bool
    """All queues, not only those that moved."""
    truncated: bool
    lines: Sequence[Line]
    held: Mapping[int, int]
    """Slots by queue."""
    workers: Workers
    deleted: int = 0
    """Executions that deleted queues counted; read when all queues are."""


@dataclass(slots=True, kw_only=True)
class Sums:
    """Over all queues of the board."""

    depth: int = 0
    active_count: int = 0
    total_enqueued: int = 0
    total_completed: int = 0

    def add(self, line: Line, times: int) -> None:
        """Count a queue in (1) or out (-1)."""
        self.depth += times * line.depth
        self.active_count += times * line.active_count
        self.total_enqueued += times * line.total_enqueued
        self.total_completed += times * line.total_completed

    def add_deleted(self, executions: int) -> None:
        """Keep what queues counted that were deleted: all of it has ended."""
        self.total_enqueued += executions
        self.total_completed += executions

    @property
    def totals(self) -> Totals:
        """What the history remembers."""
        return Totals(enqueued=self.total_enqueued, completed=self.total_completed, depth=self.depth)
