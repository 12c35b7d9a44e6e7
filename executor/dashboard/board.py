"""What the dashboard shows of all queues, held in memory: sorted, searched and cut without a query (P9).

In: readings of the queues that moved, and of all held slots. Out: pages of queues in any order, totals over
all, and what differs from the reading before. Pure; `live` fills it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from executor.dashboard.history import History, Rates, Totals

QUEUES_MAX: Final = 20_000
"""Most queues on the board; the busiest, where there are more."""


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


class QueueOrder(StrEnum):
    """How queues may be sorted."""

    NAME = "name"
    WAITING = "waiting"
    OLDEST = "oldest"
    OCCUPANCY = "occupancy"
    RATE = "rate"


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


@dataclass(slots=True)
class Board:
    """All queues. Not safe to share between threads."""

    read_at: datetime | None = None
    revision: int = 0
    truncated: bool = False
    workers: Workers = field(default_factory=Workers)
    lines: dict[QueueName, Line] = field(default_factory=dict)
    _histories: dict[QueueName, History] = field(default_factory=dict)
    _all: History | None = None
    _sorted: dict[tuple[QueueOrder, str], list[Line]] = field(default_factory=dict)

    def forget(self) -> None:
        """Begin anew: nobody looked for a while, and what happened meanwhile is unknown."""
        self.lines, self._histories, self._all, self.read_at = {}, {}, None, None

    def take(self, reading: Reading) -> list[Line]:
        """Take a reading in; return the queues that differ from the one before."""
        before = self.lines
        self.lines = self._merged(reading)
        self.read_at, self.workers = reading.read_at, reading.workers
        self.truncated = reading.truncated if reading.whole else self.truncated or reading.truncated
        self.revision += 1
        self._sorted.clear()
        changed = [line for name, line in self.lines.items() if before.get(name) != line]
        self._remember(reading.read_at.timestamp(), changed)
        if reading.whole:
            self._histories = {name: kept for name, kept in self._histories.items() if name in self.lines}
        return changed

    def rates(self, name: QueueName) -> Rates | None:
        """Return the rates of a queue."""
        history = self._histories.get(name)
        return None if history is None else history.rates(self._now())

    def depths(self, name: QueueName) -> list[int | None]:
        """Return the depths of a queue over the last minutes, oldest first."""
        history = self._histories.get(name)
        return [] if history is None else history.depths(self._now())

    def total(self) -> tuple[Totals, int, Rates | None]:
        """Return the totals, the held slots and the rates over all queues."""
        return (
            _total(self.lines.values()),
            sum(line.active_count for line in self.lines.values()),
            None if self._all is None else self._all.rates(self._now()),
        )

    def sorted(self, order: QueueOrder, search: str) -> list[Line]:
        """Return the queues whose action or key contains a text; sorted once for each reading."""
        asked = (order, search.casefold())
        if asked not in self._sorted:
            found = [line for line in self.lines.values() if _matches(line, asked[1])]
            if len(self._sorted) >= 16:
                self._sorted.clear()
            self._sorted[asked] = sorted(found, key=lambda line: (self._rank(line, order), _key(line.name)))
        return self._sorted[asked]

    def _merged(self, reading: Reading) -> dict[QueueName, Line]:
        lines = {} if reading.whole else dict(self.lines)
        for line in reading.lines:
            if line.name in lines or len(lines) < QUEUES_MAX:
                lines[line.name] = line
        for name, line in lines.items():
            held = 0 if line.queue_id is None else reading.held.get(line.queue_id, 0)
            if line.active_count != held:
                lines[name] = replace(line, active_count=held)
        return lines

    def _remember(self, at: float, changed: Iterable[Line]) -> None:
        for line in changed:
            history = self._histories.get(line.name)
            if history is None:
                self._histories[line.name] = History(at, line.totals)
            else:
                history.note(at, line.totals)
        everything = _total(self.lines.values())
        if self._all is None:
            self._all = History(at, everything)
        else:
            self._all.note(at, everything)

    def _now(self) -> float:
        return 0.0 if self.read_at is None else self.read_at.timestamp()

    def _rank(self, line: Line, order: QueueOrder) -> float:
        match order:
            case QueueOrder.NAME:
                return 0.0
            case QueueOrder.WAITING:
                return -line.depth
            case QueueOrder.OLDEST:
                return line.oldest_enqueued_at.timestamp() if line.oldest_enqueued_at else float("inf")
            case QueueOrder.OCCUPANCY:
                return -_occupancy(line)
            case QueueOrder.RATE:
                rates = self.rates(line.name)
                return 0.0 if rates is None else -rates.completed


def _matches(line: Line, text: str) -> bool:
    return text in line.name.action_ref.casefold() or text in (line.name.concurrency_key or "").casefold()


def _key(name: QueueName) -> tuple[str, str]:
    return name.action_ref, name.concurrency_key or ""


def _occupancy(line: Line) -> float:
    if not line.active_count:
        return 0.0
    # Without a limit nothing is ever full: behind all that have one, by how much they run.
    return line.active_count / line.max_concurrent if line.max_concurrent else 1e-9 * line.active_count


def _total(lines: Iterable[Line]) -> Totals:
    enqueued = completed = depth = 0
    for line in lines:
        enqueued += line.total_enqueued
        completed += line.total_completed
        depth += line.depth
    return Totals(enqueued=enqueued, completed=completed, depth=depth)
