"""Since when plain executions wait for nothing but a worker slot: derived, because no record says it.

In: a recording. Out: each grant of a plain action, and what still waits, as a `Start`. A plain execution
passes its queue and its pool in one decision. It waits at the pool as soon as its queue has a free slot for
it: as soon as fewer executions than the limit precede it in the queue or hold a slot there. What is found to
wait does so certainly, because whatever is unknown counts against it:

- A slot is held from the instant of its grant, and after its end until that is certainly committed: for as
  long as a free slot may be idle (`Recording.idle_allowed_seconds`). The rule of idle slots allows no more.
- Of two limits that may be in force, the lower one counts; a paused action has the limit 0. A change may be
  in force from its request on, and is in force one tick of the watchdog after its answer.
- An execution precedes others from its creation on, but waits only one tick later: it is committed by then.
  One that returns to its queue precedes others from the end of its last attempt on, even if it is delayed.

These are left out, because their waiting is not known:

- executions that return, and those that ended without a grant: they only precede others;
- actions that have a total, resources or a rate at any time: they have other gates before the pool;
- actions with executions that the scenario did not submit: the priority of these is not recorded.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from turnstile.common.domain.states import Status
from turnstile.stress.check.columns import column
from turnstile.stress.check.definitions import (
    Definition,
    limit_of,
    rate_of,
    recorded_history,
    uses_of,
)
from turnstile.stress.check.gates import UNLIMITED
from turnstile.stress.check.limits import limit_timeline
from turnstile.stress.recording import NEVER, NONE, SECOND, GateRecords, Recording, Table, status_code
from turnstile.stress.trace import POOL, action_ref

_PRIORITY: Final = 3
"""Of a request without one."""
_QUEUED: Final = status_code(Status.QUEUED)


class Start(NamedTuple):
    """One grant, or an execution that still waits. Instants in nanoseconds, of the database."""

    granted_at: int
    """NEVER: it still waits."""
    execution_id: int
    action: str
    priority: int
    waits_from: int
    """From when on it certainly waits for nothing but a worker slot; NEVER: unknown, or not as long."""

    @property
    def rank(self) -> tuple[int, int]:
        """Its position in a list by arrival."""
        return self.priority, self.execution_id


class Stay(NamedTuple):
    """One stay in a queue, and the slot after it. Instants as in `Start`."""

    priority: int
    execution_id: int
    is_first: bool
    """It has not been granted before, and is not delayed."""
    since: int
    left_at: int
    """When it was granted, or certainly ended without a grant; NEVER: it still waits."""
    is_granted: bool
    settled_at: int
    """When its slot is certainly free."""


LimitStep = tuple[int, int]
"""An instant, and the lowest limit that may be in force from then on."""


def starts_of(recording: Recording) -> list[Start]:
    """Return the grants of all plain actions, and what still waits there, in the order of the grants."""
    tick_ns = round(recording.tick_seconds * SECOND)
    keys = max(recording.scenario.load.keys, 1)
    found: list[Start] = []
    for queue, stays in _stays(recording).items():
        action = action_ref(queue // keys)
        limits = _limit_steps(recording, queue, tick_ns)
        for stay, at_pool in zip(stays, waits(stays, limits, tick_ns), strict=True):
            if not stay.is_granted and stay.left_at != NEVER:
                continue
            waits_from = max(at_pool, stay.since + tick_ns) if stay.is_first else NEVER
            is_known = waits_from < stay.left_at
            found.append(
                Start(
                    stay.left_at,
                    stay.execution_id,
                    action,
                    stay.priority,
                    waits_from if is_known else NEVER,
                )
            )
    return sorted(found)


def waits(stays: Sequence[Stay], limits: Sequence[LimitStep], tick_ns: int) -> list[int]:
    """Return for each stay in a queue when it certainly began to wait at the pool; NEVER: unknown."""
    queue = _Queue(stays, tick_ns)
    events = [(at, _Step.LIMIT, 0, limit) for at, limit in limits]
    for row in sorted(range(len(stays)), key=lambda each: stays[each][:2]):
        stay = stays[row]
        events.append((min(stay.since, stay.left_at), _Step.ARRIVED, len(events), row))
        if stay.left_at != NEVER:
            step = _Step.GRANTED if stay.is_granted else _Step.LEFT
            events.append((stay.left_at, step, len(events), row))
        if stay.is_granted and stay.settled_at != NEVER:
            events.append((stay.settled_at, _Step.SETTLED, len(events), row))
    for at, step, _, value in sorted(events):
        queue.follow(at, step, value)
    return queue.found()


class _Step(IntEnum):
    """A change of a queue; within an instant in this order, and in the order of the queue."""

    SETTLED = 0
    LIMIT = 1
    ARRIVED = 2
    LEFT = 3
    GRANTED = 4


class _Queue:
    """One queue: its first executions wait at the pool, as many as slots are certainly free."""

    def __init__(self, stays: Sequence[Stay], tick_ns: int) -> None:
        self._stays, self._tick_ns = stays, tick_ns
        self._limit = self._held = 0
        self._waiting: set[int] = set()
        self._at_pool: dict[int, int] = {}
        """Since when."""
        self._last: list[tuple[int, int, int]] = []
        """Those at the pool, the last one of the queue on top, and some that are not there any more."""
        self._others: list[tuple[int, int, int]] = []
        """Those that wait behind them, the first one on top, and some that have left."""
        self._passers: set[int] = set()
        """Those that took the slot of one that certainly waited for it: that one still waits at the pool."""
        self._found = [NEVER] * len(stays)

    def follow(self, at: int, step: int, value: int) -> None:
        match step:
            case _Step.SETTLED:
                self._held -= value not in self._passers
            case _Step.LIMIT:
                self._limit = value
            case _Step.ARRIVED:
                self._waiting.add(value)
                self._enter(value, at)
            case _Step.LEFT:
                self._leave(value)
            case _:
                self._found[value] = self._leave(value)
                is_behind = len(self._at_pool) >= self._limit - self._held
                if is_behind and any(self._is_certain(row, at) for row in self._at_pool):
                    self._passers.add(value)
                else:
                    self._held += 1
        free = max(self._limit - self._held, 0)
        while len(self._at_pool) > free:
            self._put_back()
        while self._others and len(self._at_pool) < free:
            _, _, row = heapq.heappop(self._others)
            if row in self._waiting:
                self._enter(row, at)

    def found(self) -> list[int]:
        """Return the results, with what still waits."""
        return [self._at_pool.get(row, found) for row, found in enumerate(self._found)]

    def _enter(self, row: int, at: int) -> None:
        self._at_pool[row] = at
        heapq.heappush(self._last, (-self._stays[row].priority, -self._stays[row].execution_id, row))

    def _leave(self, row: int) -> int:
        self._waiting.discard(row)
        return self._at_pool.pop(row, NEVER)

    def _is_certain(self, row: int, at: int) -> bool:
        stay = self._stays[row]
        may_leave = not stay.is_granted and stay.left_at != NEVER
        return stay.is_first and not may_leave and stay.since + self._tick_ns < at

    def _put_back(self) -> None:
        priority, execution_id, row = heapq.heappop(self._last)
        if self._at_pool.pop(row, None) is not None:
            heapq.heappush(self._others, (-priority, -execution_id, row))


def _stays(recording: Recording) -> Mapping[int, list[Stay]]:
    """Return the stays in each queue of a plain action."""
    plain = set(_plain_queues(recording))
    priorities = _priorities(recording)
    tick_ns = round(recording.tick_seconds * SECOND)
    settling_ns = round(recording.idle_allowed_seconds * SECOND)
    found: dict[int, list[Stay]] = defaultdict(list)
    returned_at: dict[int, int] = {}
    for queue, execution_id, attempt, since, granted_at, ended_at in _rows(
        recording.attempts, "queue", "execution_id", "attempt", "waiting_since", "granted_at", "ended_at"
    ):
        returned_at[execution_id] = ended_at
        if queue in plain:
            settled_at = min(ended_at, NEVER - settling_ns) + settling_ns
            found[queue].append(
                Stay(
                    priorities[execution_id], execution_id, attempt == 1, since, granted_at, True, settled_at
                )
            )
    for queue, execution_id, created_at, completed_at, status in _rows(
        recording.executions, "queue", "execution_id", "created_at", "completed_at", "status"
    ):
        ended_at = returned_at.get(execution_id, NONE)
        has_left = completed_at != NEVER or status != _QUEUED
        if queue in plain and (ended_at == NONE or (not has_left and ended_at != NEVER)):
            left_at = min(completed_at, NEVER - tick_ns) + tick_ns
            is_first = ended_at == NONE and status == _QUEUED
            since = created_at if ended_at == NONE else ended_at
            found[queue].append(
                Stay(priorities[execution_id], execution_id, is_first, since, left_at, False, NEVER)
            )
    return found


def _rows(table: Table, *names: str) -> Iterator[tuple[int, ...]]:
    return zip(*(column(table, name).tolist() for name in names), strict=True)


def _plain_queues(recording: Recording) -> Iterator[int]:
    executions = recording.executions
    queues, numbers = column(executions, "queue"), column(executions, "number")
    keys = max(recording.scenario.load.keys, 1)
    foreign = set((queues[numbers == NONE] // keys).tolist())
    for queue in np.unique(queues[queues != NONE]).tolist():
        action = queue // keys
        if action not in foreign and _is_plain(recording.gates, action_ref(action)):
            yield queue


def _is_plain(gates: GateRecords | None, action: str) -> bool:
    return gates is None or not any(
        version.get("max_concurrent_total") is not None
        or uses_of(version)
        or rate_of(version)
        or version.get("pool", POOL) != POOL
        for _, version in recorded_history(gates.actions[action]).versions
    )


def _priorities(recording: Recording) -> Mapping[int, int]:
    """Return the priority of each execution; those of other submitters are not of interest."""
    given = recording.scenario.load.priorities or (_PRIORITY,)
    executions = recording.executions
    ids, numbers = column(executions, "execution_id").tolist(), column(executions, "number").tolist()
    return {each: given[number % len(given)] for each, number in zip(ids, numbers, strict=True)}


def _limit_steps(recording: Recording, queue: int, tick_ns: int) -> list[LimitStep]:
    keys = recording.scenario.load.keys
    if recording.gates is None:
        periods = limit_timeline(recording).of(queue)
        edges = {edge for each in periods for edge in (each.since, each.until + tick_ns) if edge < NEVER}
        return [
            (at, min(each.limit for each in periods if each.since <= at < each.until + tick_ns))
            for at in sorted(edges)
        ]
    action, key = divmod(queue, max(keys, 1))
    history = recorded_history(recording.gates.actions[action_ref(action)])
    settling_ns = recording.gates.settling_ns + tick_ns
    changed = [at + later for at in history.changed_at for later in (0, settling_ns)]
    return [
        (at, min(_limit(each, str(key) if keys else None) for each in history.possible(at - settling_ns, at)))
        for at in sorted({0, *changed})
    ]


def _limit(definition: Definition, key: str | None) -> int:
    if not definition or definition.get("paused"):
        return 0
    limit = limit_of(definition, key)
    return UNLIMITED if limit is None else limit
