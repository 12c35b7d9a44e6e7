"""What the dashboard shows of all queues, held in memory: sorted, searched and cut without a query (P9).

In: readings of the queues that moved, and of all held slots. Out: pages of queues in any order, totals over
all, and what differs from the reading before. Pure; `live` fills it.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from turnstile.executor.dashboard.history import History, Rates
from turnstile.executor.dashboard.lines import Line, QueueName, Reading, Sums, Workers

QUEUES_MAX: Final = 20_000
"""Most queues on the board; the busiest, where there are more."""


class QueueOrder(StrEnum):
    """How queues may be sorted."""

    NAME = "name"
    WAITING = "waiting"
    OLDEST = "oldest"
    OCCUPANCY = "occupancy"
    RATE = "rate"


class Board:
    """All queues. What does not move costs nothing. Not safe to share between threads."""

    def __init__(self) -> None:
        self.truncated = False
        self.workers = Workers()
        self._sorted: dict[tuple[QueueOrder, str], list[Line]] = {}
        self.forget()

    def forget(self) -> None:
        """Begin anew: nobody looked for a while, and what happened meanwhile is unknown."""
        self.read_at: datetime | None = None
        self.lines: dict[QueueName, Line] = {}
        self._names: dict[int, QueueName] = {}
        self._held: Mapping[int, int] = {}
        self._histories: dict[QueueName, History] = {}
        self._sums = Sums()
        self._all: History | None = None
        self._began_at = 0.0
        self._sorted.clear()

    def take(self, reading: Reading) -> list[Line]:
        """Take a reading in; return the queues that differ from the one before."""
        before, at = self.lines, reading.read_at.timestamp()
        if reading.whole:
            self.lines, self._names, self._sums, self.truncated = {}, {}, Sums(), False
            self._sums.add_deleted(reading.deleted)
        if self.read_at is None:
            self._began_at = at
        changed = []
        for line in reading.lines:
            known = before.get(line.name)
            if known != line and self._put(line):
                changed.append(line)
                self._remember(at, line, known)
            elif known is not None and reading.whole:
                self._put(line)
        changed += self._recounted(reading.held)
        self.read_at, self.workers = reading.read_at, reading.workers
        self.truncated |= reading.truncated
        self._sorted.clear()
        if self._all is None:
            self._all = History(at, self._sums.totals)
        else:
            self._all.note(at, self._sums.totals)
        if reading.whole:
            self._histories = {name: kept for name, kept in self._histories.items() if name in self.lines}
        return changed

    def rates(self, name: QueueName) -> Rates | None:
        """Return the rates of a queue."""
        history = self._history(name)
        return None if history is None else history.rates(self._now())

    def depths(self, name: QueueName) -> list[int | None]:
        """Return the depths of a queue over the last minutes, oldest first."""
        history = self._history(name)
        return [] if history is None else history.depths(self._now())

    def total(self) -> tuple[Sums, Rates | None]:
        """Return the sums and the rates over all queues."""
        return replace(self._sums), None if self._all is None else self._all.rates(self._now())

    def sorted(self, order: QueueOrder, search: str) -> list[Line]:
        """Return the queues whose action or key contains a text; sorted once for each reading."""
        asked = (order, search.casefold())
        if asked not in self._sorted:
            found = [line for line in self.lines.values() if _matches(line, asked[1])]
            if len(self._sorted) >= 16:
                self._sorted.clear()
            self._sorted[asked] = sorted(found, key=lambda line: (self._rank(line, order), _key(line.name)))
        return self._sorted[asked]

    def _put(self, line: Line) -> bool:
        """Have a queue on the board; tell whether there was room."""
        before = self.lines.get(line.name)
        if before is None and len(self.lines) >= QUEUES_MAX:
            return False
        if before is not None:
            self._sums.add(before, -1)
            if _is_succeeded(before, line):
                self._sums.add_deleted(before.total_completed)
        self._sums.add(line, 1)
        self.lines[line.name] = line
        if line.queue_id is not None:
            self._names[line.queue_id] = line.name
        return True

    def _recounted(self, held: Mapping[int, int]) -> list[Line]:
        """Put the slots right that were taken or freed without a move of the totals."""
        moved, self._held = {queue_id for queue_id, _ in self._held.items() ^ held.items()}, held
        found = []
        for name in filter(None, map(self._names.get, moved)):
            line = self.lines[name]
            now = replace(line, active_count=held.get(line.queue_id or 0, 0))
            if now != line:
                self._put(now)
                found.append(now)
        return found

    def _remember(self, at: float, line: Line, known: Line | None) -> None:
        if known is not None and _is_succeeded(known, line):
            self._histories.pop(line.name, None)
            known = replace(known, depth=0, total_enqueued=0, total_completed=0)
        history = self._histories.get(line.name)
        if history is not None:
            history.note(at, line.totals)
        elif known is not None:
            history = self._histories[line.name] = History(self._began_at, known.totals)
            history.note(at, line.totals)
        elif at > self._began_at:
            self._histories[line.name] = History(at, line.totals)

    def _history(self, name: QueueName) -> History | None:
        """Return what is remembered of a queue; one that never moved has stood so all along."""
        kept, line = self._histories.get(name), self.lines.get(name)
        return kept if kept or line is None else History(self._began_at, line.totals)

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


def _is_succeeded(before: Line, line: Line) -> bool:
    """Tell whether the queue was deleted while its key was idle: the new one counts from zero."""
    return before.queue_id not in (None, line.queue_id)


def _matches(line: Line, text: str) -> bool:
    return text in line.name.action_ref.casefold() or text in (line.name.concurrency_key or "").casefold()


def _key(name: QueueName) -> tuple[str, str]:
    return name.action_ref, name.concurrency_key or ""


def _occupancy(line: Line) -> float:
    if not line.active_count:
        return 0.0
    # Without a limit nothing is ever full: behind all that have one, by how much they run.
    return line.active_count / line.max_concurrent if line.max_concurrent else 1e-9 * line.active_count
