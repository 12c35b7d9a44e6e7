"""One queue of a lawful history: its line, its slots, and what passes through it.

In: a plan, and who arrives when. Out: attempts and runs, as the record and the actions would have them. Next:
`histories` makes a recording of many queues.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from turnstile.stress.stage import Purpose
from turnstile.stress.tables import NEVER, SECOND, Outcome, RunEnd, Table

BEGAN_AT: Final = 1_760_000_000 * SECOND
MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
LEASE: Final = 3 * SECOND
WORKERS: Final = ("worker-0.1", "worker-1.1", "worker-1.2")
"""The second is the one that is killed, the third starts in its place."""


class NewLimit(NamedTuple):
    """Half a millisecond after `at` the limit of an action is another."""

    action: int
    limit: int | None
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to make up; instants count from the beginning of the stage."""

    executions: int = 400
    actions: int = 3
    keys: int = 0
    limit: int | None = 2
    submitters: int = 3
    seed: int = 0
    spacing_ns: int = 2 * MILLISECOND
    """Between two requests."""
    durations_ms: tuple[int, ...] = (0, 5, 20)
    killed_at: int | None = None
    new_limits: tuple[NewLimit, ...] = ()
    opened_at: int | None = None
    purpose: Purpose = Purpose.LOAD


class Event(IntEnum):
    """What happens in a queue; at one instant in this order."""

    RETURNED = 0
    FREED = 1
    CHANGED = 2
    ARRIVED = 3
    OPENED = 4


class SimulatedQueue:
    """One queue: its line, its slots, and what passes through it."""

    def __init__(self, plan: Plan, action: int) -> None:
        self._plan = plan
        self._limits = [(BEGAN_AT + c.at, c.limit) for c in plan.new_limits if c.action == action]
        self._killed_at = NEVER if plan.killed_at is None else BEGAN_AT + plan.killed_at
        self._limit = NEVER if plan.limit is None else plan.limit
        self._held = 0
        self._waiting: list[tuple[int, int]] = []
        self.attempts: list[tuple[int, ...]] = []
        self.runs: list[tuple[int, ...]] = []

    def pass_through(self, executions: Table, durations: Sequence[int], on_lost: Sequence[bool]) -> None:
        """Let all that arrive run to their ends."""
        self._ids, self._numbers = executions["execution_id"].tolist(), executions["number"].tolist()
        self._queue = int(executions["queue"][0])
        self._durations, self._on_lost = durations, on_lost
        self._since, self._attempt = executions["created_at"].tolist(), [0] * len(executions)
        self._over_at = [NEVER] * len(executions)
        self._events = [(at, Event.ARRIVED, row) for row, at in enumerate(self._since)]
        self._events += [
            (at + MILLISECOND // 2, Event.CHANGED, nth) for nth, (at, _) in enumerate(self._limits)
        ]
        if self._plan.opened_at is not None:
            self._events.append((BEGAN_AT + self._plan.opened_at, Event.OPENED, 0))
        heapq.heapify(self._events)
        opened = self._plan.opened_at is None
        while self._events:
            at, kind, which = heapq.heappop(self._events)
            match kind:
                case Event.FREED:
                    self._held -= 1
                case Event.CHANGED:
                    limit = self._limits[which][1]
                    self._limit = NEVER if limit is None else limit
                case Event.ARRIVED | Event.RETURNED:
                    heapq.heappush(self._waiting, (self._ids[which], which))
                case Event.OPENED:
                    opened = True
            while opened and self._waiting and self._held < self._limit:
                self._grant(heapq.heappop(self._waiting)[1], at)

    def ends(self) -> tuple[list[int], list[int]]:
        """Return the last attempt of each, and when it ended."""
        return self._attempt, self._over_at

    def _grant(self, row: int, at: int) -> None:
        self._held += 1
        self._attempt[row] += 1
        claimed_at = at + MILLISECOND
        started_at = claimed_at + 200 * MICROSECOND
        stopped_at = started_at + self._durations[row]
        ended_at = stopped_at + 800 * MICROSECOND
        worker = 0
        if self._on_lost[row]:
            worker = 1 if claimed_at < self._killed_at else 2
        lost = worker == 1 and ended_at >= self._killed_at
        run_end = RunEnd.STOPPED
        if lost and stopped_at >= self._killed_at:
            run_end, stopped_at = RunEnd.KILLED, self._killed_at + 3 * MILLISECOND
        if not lost or started_at < self._killed_at:
            self.runs.append(
                (
                    self._numbers[row],
                    self._ids[row],
                    self._attempt[row],
                    self._queue,
                    worker,
                    started_at,
                    stopped_at,
                    run_end,
                )
            )
        if lost:
            ended_at = self._killed_at + LEASE
        self.attempts.append(
            (
                self._ids[row],
                self._attempt[row],
                self._queue,
                self._since[row],
                at,
                claimed_at,
                ended_at,
                Outcome.RECLAIMED if lost else Outcome.ENDED,
                worker,
            )
        )
        if lost:
            # In one moment it stands in line again and its slot is free.
            self._since[row] = ended_at
            heapq.heappush(self._events, (ended_at, Event.RETURNED, row))
            heapq.heappush(self._events, (ended_at, Event.FREED, row))
        else:
            self._over_at[row] = ended_at
            heapq.heappush(self._events, (ended_at + 1500 * MICROSECOND, Event.FREED, row))
