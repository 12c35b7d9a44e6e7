"""The state of the dashboard in memory: all queues, sorted, searched and cut without a query (P9).

In: what the leader says that has changed, or what the database knows while there is no leader. Out: pages of
queues in any order, totals, rates and lengths over the last minutes, and what differs from the previous
snapshot. Pure; `live` fills it. A point of a history is stored only where something changed, so an idle queue
costs one point.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import chain
from typing import Final, NamedTuple

from turnstile.executor.dashboard.failures import FailureReadings, Failures, Start
from turnstile.executor.questions.protocol import WorkerState

QUEUES_MAX: Final = 20_000
"""Maximum number of queues; above it, only the busiest are kept."""
BUCKET_SECONDS: Final = 5
BUCKETS: Final = 60
"""Points of a sparkline: five minutes."""
RATE_SECONDS: Final = 60
DEAD_LETTERS_MAX: Final = 1001
"""Dead letters are counted up to this number."""
WEBHOOKS_MAX: Final = 1000
LOST_SECONDS: Final = 24 * 3600
_AGE_SECONDS: Final = 10.0
"""How often is looked for failures that leave their window."""
_SORTED_MAX: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The counters of a queue at one instant; None: unknown, while there is no leader."""

    enqueued: int | None
    completed: int | None
    depth: int

    def is_below(self, other: "Totals") -> bool:
        """Return whether these were counted from another beginning: a new leader's, or an unknown one."""
        if self.enqueued is None or other.enqueued is None:
            return self.enqueued is not other.enqueued
        return self.enqueued < other.enqueued or (self.completed or 0) < (other.completed or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Per second, over the last minute or the known part of it."""

    enqueued: float
    completed: float


class TotalsHistory:
    """Totals over the last minutes, at most one point a bucket: the last one in it."""

    __slots__ = ("_began_at", "_points")

    def __init__(self, at: float, totals: Totals) -> None:
        self._points = deque([(at, totals)], maxlen=BUCKETS + 1)
        self._began_at = at
        """Since when its counters have the same beginning."""

    def add(self, at: float, totals: Totals) -> None:
        """Store the totals at `at` (seconds since the epoch); instants never decrease."""
        last = self._points[-1][1]
        if last == totals:
            return
        if totals.is_below(last):
            self._began_at = at
        # The first point stays: everything since then is counted from it.
        if len(self._points) > 1 and bucket_of(self._points[-1][0]) == bucket_of(at):
            self._points.pop()
        self._points.append((at, totals))

    def rates(self, now: float) -> Rates | None:
        """Return the rates up to `now`; None before one second is known."""
        # The point of a bucket is near its end, so the minute begins with a bucket.
        start = float(bucket_of(now - RATE_SECONDS) * BUCKET_SECONDS)
        counted = [(at, totals) for at, totals in self._points if at >= self._began_at]
        began_at, first = counted[0]
        for at, totals in counted:
            if at > start:
                break
            first = totals
        seconds, last = now - max(start, began_at), counted[-1][1]
        if seconds < 1.0 or last.enqueued is None or last.completed is None:
            return None
        return Rates(
            enqueued=(last.enqueued - (first.enqueued or 0)) / seconds,
            completed=(last.completed - (first.completed or 0)) / seconds,
        )

    def depths(self, now: float) -> list[int | None]:
        """Return the depth at the end of each of the last buckets, oldest first; None before the first."""
        found: list[int | None] = []
        last, points, depth = bucket_of(now), iter(self._points), None
        following = next(points, None)
        for bucket in range(last - BUCKETS + 1, last + 1):
            while following is not None and bucket_of(following[0]) <= bucket:
                depth = following[1].depth
                following = next(points, None)
            found.append(depth)
        return found


def bucket_of(at: float) -> int:
    """Return the number of the bucket in which an instant falls."""
    return int(at // BUCKET_SECONDS)


class QueueName(NamedTuple):
    """An action and a concurrency key."""

    action_ref: str
    concurrency_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The values of a queue at the last reading."""

    name: QueueName
    pool: str
    max_concurrent: int | None
    paused: bool
    depth: int
    oldest_enqueued_at: datetime | None
    head_id: int | None = None
    """The smallest id that waits."""
    active_count: int = 0
    held_waiting: int = 0
    startable: int = 0
    """How many of those that wait its limit lets start."""
    limited: int = 0
    """How many of them wait for nothing but a slot."""
    enqueued: int | None = None
    """Since its changes are noted; None: there is no leader."""
    completed: int | None = None

    @property
    def is_idle(self) -> bool:
        """Nothing waits in it or holds its slots."""
        return not (self.depth or self.slots_in_use)

    @property
    def slots_in_use(self) -> int:
        """The slots of what runs, and of what holds one while it waits at a later gate."""
        return self.active_count + self.held_waiting

    @property
    def totals(self) -> Totals:
        """The values for its history."""
        return Totals(enqueued=self.enqueued, completed=self.completed, depth=self.depth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Queue):
    """The queues of an action with keys, added up. It has no limit: each queue has its own."""

    keys: int
    """Queues of keys."""
    idle_keys: int


class ActionTotals(NamedTuple):
    """Executions of an action since it was defined; None: unknown, while there is no leader."""

    enqueued: int | None
    completed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The registered workers."""

    live: int = 0
    draining: int = 0
    overdue: int = 0
    capacity: int = 0
    """Concurrent attempts of the live ones."""
    pools: frozenset[str] = frozenset()
    known: tuple[WorkerState, ...] = ()
    """Each of them; none while there is no leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What an operator must not miss."""

    dead_letters: int = 0
    """At most `DEAD_LETTERS_MAX`: then there may be more."""
    lost_workers: int = 0
    """Workers lost within `LOST_SECONDS`."""
    oldest_dead_letter_at: datetime | None = None
    webhooks: int = 0
    """Deliveries that failed lately, or are tried again; at most `WEBHOOKS_MAX` of each."""
    webhook_since: datetime | None = None
    """The end of the oldest of the executions."""
    webhook_origin: str | None = None
    """The receiver of the latest, and why it has none."""
    webhook_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The result of one poll."""

    read_at: datetime
    whole: bool
    """All queues, not only those that changed."""
    truncated: bool
    queues: Sequence[Queue]
    workers: Workers
    totals: Mapping[str, ActionTotals]
    """Of the actions of these queues."""
    deleted: Iterable[str] = ()
    """Actions that are gone."""


@dataclass(slots=True, kw_only=True)
class Sums:
    """Sums over all queues."""

    depth: int = 0
    active_count: int = 0
    held_waiting: int = 0
    total_enqueued: int | None = 0
    """None: unknown, while there is no leader."""
    total_completed: int | None = 0

    def add(self, queue: Queue, times: int) -> None:
        """Add (1) or remove (-1) a queue."""
        self.depth += times * queue.depth
        self.active_count += times * queue.active_count
        self.held_waiting += times * queue.held_waiting

    @property
    def totals(self) -> Totals:
        """The values for the history."""
        return Totals(enqueued=self.total_enqueued, completed=self.total_completed, depth=self.depth)


class QueueOrder(StrEnum):
    """The orders of queues."""

    NAME = "name"
    WAITING = "waiting"
    OLDEST = "oldest"
    OCCUPANCY = "occupancy"
    RATE = "rate"
    FAILURES = "failures"


class DashboardState:
    """All queues. A queue that does not change costs nothing. Not safe to share between threads."""

    def __init__(self) -> None:
        self.truncated = False
        self.workers = Workers()
        self.attention = Attention()
        self._sorted: dict[tuple[QueueOrder, str, bool], Sequence[Queue]] = {}
        self._groups: Sequence[Queue] | None = None
        """Once they were asked for."""
        self.forget()

    def forget(self) -> None:
        """Discard the state: without clients no changes were read."""
        self.read_at: datetime | None = None
        self.queues: dict[QueueName, Queue] = {}
        self._queues_of: Counter[str] = Counter()
        self._depths: Counter[str] = Counter()
        """Executions that wait of an action."""
        self._unused: dict[QueueName, Queue] = {}
        """Of each action whose executions all have a key: its queue without one."""
        self._totals: dict[str, ActionTotals] = {}
        self._histories: dict[QueueName | str, TotalsHistory] = {}
        """By queue, and by action."""
        self._sums = Sums()
        self.failures = FailureReadings()
        self._all: TotalsHistory | None = None
        self._began_at = self._aged_at = 0.0
        self._unsort()

    def apply(self, snapshot: Snapshot) -> list[Queue]:
        """Apply a snapshot; return the queues that differ from the previous one."""
        # The clock of the next leader, or of the database, may be behind.
        read_at = max(snapshot.read_at, self.read_at or snapshot.read_at)
        before, at = self.queues, read_at.timestamp()
        known_actions = {ref: self._totals_of(ref) for ref in snapshot.totals if ref in self._totals}
        if snapshot.whole:
            self.queues, self._totals, self._sums, self._unused = {}, {}, Sums(), {}
            self._queues_of, self._depths = Counter(), Counter()
            self.truncated = False
        if self.read_at is None:
            self._began_at = at
        for ref in snapshot.deleted:
            self._delete(ref)
        self._totals.update(snapshot.totals)
        changed = []
        for queue in snapshot.queues:
            known = before.get(queue.name)
            self._note_outcomes(queue, known)
            if known != queue and self._put(queue):
                changed.append(queue)
                self._remember(at, queue.name, queue.totals, None if known is None else known.totals)
            elif known is not None and snapshot.whole:
                self._put(queue)
        self.read_at, self.workers = read_at, snapshot.workers
        for ref in snapshot.totals:
            self._remember(at, ref, self._totals_of(ref), known_actions.get(ref))
        self.truncated |= snapshot.truncated
        self._unsort()
        self._sum_up(at)
        if snapshot.whole or at >= self._aged_at + _AGE_SECONDS:
            self._aged_at = at
            self.failures.age(read_at, self._totals.keys())
            known_names = self.queues.keys() | self._totals.keys()
            self._histories = {name: kept for name, kept in self._histories.items() if name in known_names}
        return [queue for queue in changed if queue.name in self.queues]

    def _sum_up(self, at: float) -> None:
        self._sums.total_enqueued = _sum(each.enqueued for each in self._totals.values())
        self._sums.total_completed = _sum(each.completed for each in self._totals.values())
        if self._all is None:
            self._all = TotalsHistory(at, self._sums.totals)
        else:
            self._all.add(at, self._sums.totals)

    def apply_failures(self, starts: Sequence[Start], found: Iterable[tuple[str, Failures]]) -> None:
        """Store how the latest executions of some actions ended."""
        self.failures.apply(starts, found)
        self._unsort()

    def rates(self, queue: Queue) -> Rates | None:
        """Return the rates of a queue, or of all of an action."""
        return self._history(queue).rates(self._now())

    def depths(self, queue: Queue) -> list[int | None]:
        """Return the lengths of a queue, or of all of an action, over the last minutes, oldest first."""
        return self._history(queue).depths(self._now())

    def total(self) -> tuple[Sums, Rates | None]:
        """Return the sums and the rates over all queues."""
        return replace(self._sums), None if self._all is None else self._all.rates(self._now())

    def sorted(self, order: QueueOrder, search: str, *, by_action: bool = False) -> Sequence[Queue]:
        """Return the queues, or the groups with a queue, whose action or key contains a text.

        They are sorted once for each snapshot.
        The failures of an action are shown at its queue without a key, so that one is there while it fails.
        """
        wanted = (order, search.casefold(), by_action)
        if wanted not in self._sorted:
            failing = (queue for queue in self._unused.values() if self._failed(queue))
            found = [queue for queue in chain(self.queues.values(), failing) if _matches(queue, wanted[1])]
            if by_action:
                refs = {queue.name.action_ref for queue in found}
                found = [group for group in self.groups() if group.name.action_ref in refs]
            if len(self._sorted) >= _SORTED_MAX:
                self._sorted.clear()
            self._sorted[wanted] = sorted(found, key=lambda each: (self._rank(each, order), _key(each.name)))
        return self._sorted[wanted]

    def groups(self) -> Sequence[Queue]:
        """Return the queues by action, added up once for each snapshot; one without keys stays as it is."""
        if self._groups is None:
            found: dict[str, list[Queue]] = {}
            for queue in self.queues.values():
                found.setdefault(queue.name.action_ref, []).append(queue)
            self._groups = [
                queues[0] if queues[0].name.concurrency_key is None and len(queues) == 1
                else self._group(ref, queues)
                for ref, queues in found.items()
            ]  # fmt: skip
        return self._groups

    def _group(self, ref: str, queues: Sequence[Queue]) -> Group:
        busy = [each for each in queues if not each.is_idle]
        keyed = [each for each in queues if each.name.concurrency_key is not None]
        return Group(
            name=QueueName(ref, None), pool=queues[0].pool, paused=queues[0].paused, max_concurrent=None,
            keys=len(keyed), idle_keys=sum(each.is_idle for each in keyed),
            depth=sum(each.depth for each in busy), active_count=sum(each.active_count for each in busy),
            held_waiting=sum(each.held_waiting for each in busy),
            startable=sum(each.startable for each in busy), limited=sum(each.limited for each in busy),
            oldest_enqueued_at=min((at for each in busy if (at := each.oldest_enqueued_at)), default=None),
            enqueued=self._totals[ref].enqueued, completed=self._totals[ref].completed,
        )  # fmt: skip

    def is_idle(self, queue: Queue) -> bool:
        """Return whether nothing waits in a queue, holds its slots, or failed lately."""
        return queue.is_idle and not self._failed(queue)

    def _unsort(self) -> None:
        self._groups = None
        self._sorted.clear()

    def failures_of(self, queue: Queue) -> Failures | None:
        """Return the failures of an action, at its queue without a key."""
        ref, key = queue.name
        return self.failures[ref] if key is None else None

    def _failed(self, queue: Queue) -> int:
        failures = self.failures_of(queue)
        return 0 if failures is None else failures.failed

    def _note_outcomes(self, queue: Queue, known: Queue | None) -> None:
        if known is None:
            self.failures.note(queue, has_ended=self._totals[queue.name.action_ref].completed != 0)
        elif known != queue:
            self.failures.note(queue, has_ended=queue.completed is None or queue.completed != known.completed)

    def _put(self, queue: Queue) -> bool:
        """Store a queue; return whether there was capacity."""
        name = queue.name
        before = self.queues.get(name)
        if before is None and len(self.queues) >= QUEUES_MAX and not self._make_room_for(queue):
            self.truncated = True
            return False
        if before is not None:
            self._drop(before)
        self._unused.pop(name, None)
        self._sums.add(queue, 1)
        self.queues[name] = queue
        self._queues_of[name.action_ref] += 1
        self._depths[name.action_ref] += queue.depth
        if before is None:
            self._drop_unused(name)
        return name in self.queues

    def _make_room_for(self, queue: Queue) -> bool:
        """Drop the queues where nothing waits or runs, unless this one is one of them."""
        idle = [] if queue.is_idle else [each for each in self.queues.values() if each.is_idle]
        for each in idle:
            self._drop(each)
        self.truncated |= bool(idle)
        return bool(idle)

    def _drop_unused(self, name: QueueName) -> None:
        """Drop the queue without a key of an action whose executions all have one."""
        unused = self.queues.get(QueueName(name.action_ref, None))
        if unused is None or self._queues_of[name.action_ref] < 2:
            return
        if unused.is_idle and not unused.enqueued and not unused.completed:
            self._drop(unused)
            self._unused[unused.name] = unused

    def _drop(self, queue: Queue) -> None:
        del self.queues[queue.name]
        self._sums.add(queue, -1)
        self._queues_of[queue.name.action_ref] -= 1
        self._depths[queue.name.action_ref] -= queue.depth

    def _delete(self, ref: str) -> None:
        self._totals.pop(ref, None)
        self._unused.pop(QueueName(ref, None), None)
        if self._queues_of[ref]:
            for queue in [each for each in self.queues.values() if each.name.action_ref == ref]:
                self._drop(queue)

    def _totals_of(self, ref: str) -> Totals:
        enqueued, completed = self._totals[ref]
        return Totals(enqueued=enqueued, completed=completed, depth=self._depths[ref])

    def _remember(self, at: float, name: QueueName | str, totals: Totals, known: Totals | None) -> None:
        history = self._histories.get(name)
        if history is not None:
            history.add(at, totals)
        elif known is not None:
            history = self._histories[name] = TotalsHistory(self._began_at, known)
            history.add(at, totals)
        elif at > self._began_at:
            self._histories[name] = TotalsHistory(at, totals)

    def _history(self, queue: Queue) -> TotalsHistory:
        """Return the history of a queue; a queue without changes has constant totals."""
        name = queue.name.action_ref if isinstance(queue, Group) else queue.name
        return self._histories.get(name) or TotalsHistory(self._began_at, queue.totals)

    def _now(self) -> float:
        return 0.0 if self.read_at is None else self.read_at.timestamp()

    def _rank(self, queue: Queue, order: QueueOrder) -> float:
        match order:
            case QueueOrder.NAME:
                return 0.0
            case QueueOrder.WAITING:
                return -queue.depth
            case QueueOrder.OLDEST:
                return queue.oldest_enqueued_at.timestamp() if queue.oldest_enqueued_at else float("inf")
            case QueueOrder.OCCUPANCY:
                return -_occupancy(queue)
            case QueueOrder.RATE:
                rates = self.rates(queue)
                return 0.0 if rates is None else -rates.completed
            case QueueOrder.FAILURES:
                return -self._failed(queue)


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    numbers = [each for each in known if each is not None]
    return sum(numbers) if len(numbers) == len(known) else None


def _matches(queue: Queue, text: str) -> bool:
    name = queue.name
    return text in name.action_ref.casefold() or text in (name.concurrency_key or "").casefold()


def _key(name: QueueName) -> tuple[str, str]:
    return name.action_ref, name.concurrency_key or ""


def _occupancy(queue: Queue) -> float:
    if not queue.slots_in_use:
        return 0.0
    # Queues without a limit are never full: after all that have one, by their held slots.
    return queue.slots_in_use / queue.max_concurrent if queue.max_concurrent else 1e-9 * queue.slots_in_use
