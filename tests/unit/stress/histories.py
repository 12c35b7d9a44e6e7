"""Recordings for tests: simulated from a `Plan`, or written by hand (`hand_made`).

A simulated recording is one that a correct system would leave; everything random depends on the seed only.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from turnstile.common.domain.states import Status
from turnstile.stress.check.rules import check_recording
from turnstile.stress.check.verdict import Rule
from turnstile.stress.recording import (
    ATTEMPT,
    EXECUTION,
    NEVER,
    ORDER,
    RUN,
    SECOND,
    ActionCounters,
    Answer,
    Audit,
    InjectedFault,
    LimitChange,
    Outcome,
    Recording,
    RunEnd,
    Table,
    empty,
    status_code,
)
from turnstile.stress.scenario import DurationMix, FaultKind, Load, Scenario

BEGAN_AT: Final = 1_760_000_000 * SECOND
MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
LEASE: Final = 3 * SECOND
WORKERS: Final = ("worker-0.1", "worker-1.1", "worker-1.2")
"""The second is killed, the third replaces it."""


class NewLimit(NamedTuple):
    """A change of the limit of an action, half a millisecond after `at`."""

    action: int
    limit: int | None
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to simulate; instants count from the beginning of the scenario."""

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
    ahead: int = 0
    """How many of each queue its worker gets beyond the limit: then all run at one that is not lost."""


class Event(IntEnum):
    """The events of a queue; at one instant in this order."""

    RETURNED = 0
    FREED = 1
    CHANGED = 2
    ARRIVED = 3
    OPENED = 4
    OFFERED = 5
    """What was granted is at its worker."""
    CHANGED_AT_WORKER = 6
    """The worker knows the limit; what it has not started it returns."""
    STOPPED = 7


class SimulatedQueue:
    """One simulated queue: waiting executions, slots, attempts and runs."""

    def __init__(self, plan: Plan, action: int) -> None:
        self._plan = plan
        self._limits = [(BEGAN_AT + c.at, c.limit) for c in plan.new_limits if c.action == action]
        self._killed_at = NEVER if plan.killed_at is None else BEGAN_AT + plan.killed_at
        self._limit = NEVER if plan.limit is None else plan.limit
        self._held = 0
        self._waiting: list[tuple[int, int]] = []
        self._at_worker: list[tuple[int, int]] = []
        self._granted_at: dict[int, int] = {}
        self._at_once, self._running = self._limit, 0
        self.attempts: list[tuple[int, ...]] = []
        self.runs: list[tuple[int, ...]] = []

    def pass_through(self, executions: Table, durations: Sequence[int], on_lost: Sequence[bool]) -> None:
        """Simulate all executions up to their outcomes."""
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
                    heapq.heappush(self._events, (at + MILLISECOND, Event.CHANGED_AT_WORKER, which))
                case Event.ARRIVED | Event.RETURNED:
                    heapq.heappush(self._waiting, (self._ids[which], which))
                case Event.OPENED:
                    opened = True
                case _:
                    self._happens_at_worker(kind, at, which)
            while opened and self._waiting and self._held < self._limit + self._plan.ahead:
                self._grant(heapq.heappop(self._waiting)[1], at)

    def ends(self) -> tuple[list[int], list[int]]:
        """Return the last attempt of each, and when it ended."""
        return self._attempt, self._over_at

    def _happens_at_worker(self, kind: Event, at: int, which: int) -> None:
        match kind:
            case Event.OFFERED:
                heapq.heappush(self._at_worker, (self._ids[which], which))
            case Event.STOPPED:
                self._running -= 1
            case _:
                limit = self._limits[which][1]
                self._at_once = NEVER if limit is None else limit
                for _, row in self._at_worker:
                    self._return(row, at + MILLISECOND)
                self._at_worker = []
        while self._at_worker and self._running < self._at_once:
            self._start(heapq.heappop(self._at_worker)[1], at)

    def _start(self, row: int, at: int) -> None:
        self._running += 1
        stopped_at = at + 10 * MICROSECOND + self._durations[row]
        run = self._numbers[row], self._ids[row], self._attempt[row], self._queue, 0
        self.runs.append((*run, at + 10 * MICROSECOND, stopped_at, RunEnd.STOPPED))
        self._end(row, at, stopped_at, Outcome.ENDED)
        self._over_at[row] = stopped_at
        heapq.heappush(self._events, (stopped_at + 20 * MICROSECOND, Event.STOPPED, row))
        heapq.heappush(self._events, (stopped_at + 2 * MILLISECOND, Event.FREED, row))

    def _return(self, row: int, at: int) -> None:
        self._end(row, self._granted_at[row], at, Outcome.RETURNED)
        self._since[row] = at
        heapq.heappush(self._events, (at, Event.RETURNED, row))
        heapq.heappush(self._events, (at, Event.FREED, row))

    def _end(self, row: int, started_at: int, at: int, outcome: Outcome) -> None:
        ids = self._ids[row], self._attempt[row], self._queue
        times = self._since[row], self._granted_at[row], started_at, at
        self.attempts.append((*ids, *times, outcome, 0))

    def _grant(self, row: int, at: int) -> None:
        self._held += 1
        self._attempt[row] += 1
        if self._plan.ahead:
            self._granted_at[row] = at
            heapq.heappush(self._events, (at + MILLISECOND, Event.OFFERED, row))
            return
        reported_at = at + MILLISECOND
        started_at = reported_at + 200 * MICROSECOND
        stopped_at = started_at + self._durations[row]
        ended_at = stopped_at + 800 * MICROSECOND
        worker = 0
        if self._on_lost[row]:
            worker = 1 if reported_at < self._killed_at else 2
        lost = worker == 1 and ended_at >= self._killed_at
        run_end = RunEnd.STOPPED
        if lost and stopped_at >= self._killed_at:
            run_end, stopped_at = RunEnd.KILLED, self._killed_at + 3 * MILLISECOND
        if not lost or started_at < self._killed_at:
            run = self._numbers[row], self._ids[row], self._attempt[row], self._queue
            self.runs.append((*run, worker, started_at, stopped_at, run_end))
        if lost:
            ended_at = self._killed_at + LEASE
        ids = self._ids[row], self._attempt[row], self._queue
        outcome = Outcome.RECLAIMED if lost else Outcome.ENDED
        self.attempts.append((*ids, self._since[row], at, reported_at, ended_at, outcome, worker))
        if lost:
            # At the same instant it waits again and its slot is free.
            self._since[row] = ended_at
            heapq.heappush(self._events, (ended_at, Event.RETURNED, row))
            heapq.heappush(self._events, (ended_at, Event.FREED, row))
        else:
            self._over_at[row] = ended_at
            heapq.heappush(self._events, (ended_at + 1500 * MICROSECOND, Event.FREED, row))


_ENQUEUED_BEFORE: Final = 17


def valid_recording(plan: Plan | None = None) -> Recording:
    """Return a correct recording."""
    plan = plan or Plan()
    random = np.random.default_rng(plan.seed)
    orders, executions = _arrivals(plan, random)
    durations = orders["duration_us"][executions["number"]].astype(np.int64) * MICROSECOND
    on_lost = random.random(plan.executions) < 0.5
    attempts, runs = [], []
    in_queue = np.argsort(executions["queue"], kind="stable")
    for rows in np.split(in_queue, np.flatnonzero(np.diff(executions["queue"][in_queue])) + 1):
        simulated = SimulatedQueue(plan, int(executions["queue"][rows[0]]) // max(plan.keys, 1))
        simulated.pass_through(executions[rows], durations[rows].tolist(), on_lost[rows].tolist())
        attempts.append(np.array(simulated.attempts, ATTEMPT))
        runs.append(np.array(simulated.runs, RUN))
        executions["attempt"][rows], executions["completed_at"][rows] = simulated.ends()
    attempt_table, run_table = np.concatenate(attempts), np.concatenate(runs)
    return _recording(
        plan,
        orders,
        executions,
        np.sort(attempt_table, order=("execution_id", "attempt")),
        run_table[np.argsort(run_table["started_at"], kind="stable")],
    )


def _arrivals(plan: Plan, random: np.random.Generator) -> tuple[Table, Table]:
    """Return the requests and their executions, none of which has run yet."""
    count, queues = plan.executions, plan.actions * max(plan.keys, 1)
    orders, executions = empty(ORDER, count), empty(EXECUTION, count)
    orders["submitter"] = random.integers(plan.submitters, size=count)
    orders["queue"] = random.permutation(np.arange(count) % queues)
    orders["duration_us"] = random.choice(np.array(plan.durations_ms) * 1000, count)
    orders["sent_at"] = BEGAN_AT + np.arange(count) * plan.spacing_ns + MILLISECOND
    orders["confirmed_at"] = orders["sent_at"] + 2 * MILLISECOND
    orders["answer"], orders["sendings"] = Answer.ACCEPTED, 1
    # Each submitter has its own latency, so submitters overtake each other, but requests of one do not.
    ways = 1 + orders["submitter"].astype(np.int64)
    arrived_at = orders["sent_at"] + ways * (3 * MILLISECOND + 17 * MICROSECOND)
    numbers = np.argsort(arrived_at, kind="stable")
    executions["number"], executions["queue"] = numbers, orders["queue"][numbers]
    executions["execution_id"] = 1000 + np.cumsum(random.integers(1, 3, count))
    executions["created_at"] = arrived_at[numbers]
    executions["status"] = status_code(Status.COMPLETED)
    orders["execution_id"][numbers] = executions["execution_id"]
    orders["answered_at"] = arrived_at + 3 * MILLISECOND
    return orders, executions


def _recording(plan: Plan, orders: Table, executions: Table, attempts: Table, runs: Table) -> Recording:
    ended_at = int(executions["completed_at"].max()) + SECOND // 10
    faults: tuple[InjectedFault, ...] = ()
    if plan.killed_at is not None:
        faults = (
            InjectedFault(
                kind=FaultKind.KILL_WORKER,
                target="worker-1",
                began_at=BEGAN_AT + plan.killed_at,
                healed_at=BEGAN_AT + plan.killed_at + SECOND,
                lost_worker=WORKERS[1],
            ),
        )
    own = np.bincount(executions["queue"] // max(plan.keys, 1), minlength=plan.actions).tolist()
    return Recording(
        scenario=_scenario(plan),
        began_at=BEGAN_AT,
        ended_at=ended_at,
        opened_at=NEVER if plan.opened_at is None else BEGAN_AT + plan.opened_at,
        orders=orders,
        executions=executions,
        attempts=attempts,
        runs=runs,
        workers=WORKERS,
        faults=faults,
        limit_changes=tuple(
            LimitChange(
                action=change.action,
                limit=change.limit,
                asked_at=BEGAN_AT + change.at,
                answered_at=BEGAN_AT + change.at + MILLISECOND,
            )
            for change in plan.new_limits
        ),
        counters=tuple(
            ActionCounters(
                enqueued_before=_ENQUEUED_BEFORE,
                enqueued=_ENQUEUED_BEFORE + count,
                completed_before=_ENQUEUED_BEFORE,
                completed=_ENQUEUED_BEFORE + count,
                queue_length=0,
                active_count=0,
            )
            for count in own
        ),
        audit=Audit(clean=True),
    )


def _scenario(plan: Plan) -> Scenario:
    return Scenario(
        name="made-up",
        title="A simulated scenario",
        load=Load(
            executions=plan.executions,
            mix=DurationMix.parse("50% 0ms, 30% 5ms, 20% 20ms"),
            actions=plan.actions,
            keys=plan.keys,
            submitters=plan.submitters,
        ),
        limit=plan.limit,
        all_wait_first=plan.opened_at is not None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One attempt; executions are numbered in the order of their ids. None: that did not happen."""

    id: int
    since: float
    granted: float | None = None
    ended: float | None = None
    start: float | None = None
    """Of the run; left out: with the grant."""
    stop: float | None = None
    """Left out: with the end."""
    queue: int = 0
    attempt: int = 1
    outcome: Outcome = Outcome.ENDED
    run_end: RunEnd = RunEnd.STOPPED
    worker: int = 0


def at(milliseconds: float | None) -> int:
    """Return the instant in milliseconds after the beginning."""
    return NEVER if milliseconds is None else BEGAN_AT + round(milliseconds * MILLISECOND)


def hand_made(*lives: Life, limit: int | None = 1, actions: int = 1, keys: int = 0, **rest: Any) -> Recording:
    """Return the recording of these attempts; its scenario ends with the last of them."""
    lives = tuple(sorted(lives, key=lambda life: (life.id, life.attempt)))
    last = max((at(life.ended) for life in lives if life.ended is not None), default=at(0))
    fields: dict[str, Any] = {
        "scenario": _written_scenario(lives, limit, actions, keys),
        "began_at": BEGAN_AT,
        "ended_at": last,
        "executions": _executions(lives),
        "attempts": _attempts(lives),
        "runs": _runs(lives),
        "workers": WORKERS,
    }
    fields["orders"] = _orders(fields["executions"])
    return Recording(**(fields | rest))


def fault(kind: FaultKind, began: float, healed: float) -> InjectedFault:
    """Return a fault of the second worker."""
    return InjectedFault(
        kind=kind, target="it", began_at=at(began), healed_at=at(healed), lost_worker=WORKERS[1]
    )


def broken(recording: Recording) -> set[Rule]:
    """Return the rules that are broken."""
    return {finding.rule for finding in check_recording(recording).broken}


def _written_scenario(lives: Sequence[Life], limit: int | None, actions: int, keys: int) -> Scenario:
    load = Load(
        executions=len({life.id for life in lives}),
        mix=DurationMix.always(0.0),
        actions=actions,
        keys=keys,
        submitters=1,
    )
    return Scenario(name="by-hand", title="Written by hand", load=load, limit=limit)


def _orders(executions: Table) -> Table:
    orders = empty(ORDER, len(executions))
    orders["submitter"], orders["queue"] = 0, executions["queue"]
    orders["sent_at"] = orders["confirmed_at"] = orders["answered_at"] = executions["created_at"]
    orders["execution_id"], orders["answer"], orders["sendings"] = (
        executions["execution_id"],
        Answer.ACCEPTED,
        1,
    )
    return orders


def _executions(lives: Sequence[Life]) -> Table:
    first = {life.id: life for life in reversed(lives)}
    last = {life.id: life for life in lives}
    executions = empty(EXECUTION, len(first))
    executions["execution_id"] = sorted(first)
    executions["number"] = np.arange(len(first))
    for row, execution_id in enumerate(sorted(first)):
        life = last[execution_id]
        status = Status.QUEUED if life.granted is None else Status.RUNNING
        executions["queue"][row], executions["attempt"][row] = life.queue, life.attempt
        executions["created_at"][row] = at(first[execution_id].since)
        executions["completed_at"][row] = at(life.ended)
        executions["status"][row] = status_code(status if life.ended is None else Status.COMPLETED)
    return executions


def _attempts(lives: Sequence[Life]) -> Table:
    rows = []
    for life in lives:
        if life.granted is not None:
            times = at(life.since), at(life.granted), at(life.granted), at(life.ended)
            rows.append((life.id, life.attempt, life.queue, *times, life.outcome, life.worker))
    return np.array(rows, ATTEMPT)


def _runs(lives: Sequence[Life]) -> Table:
    ids = sorted({life.id for life in lives})
    rows = []
    for life in lives:
        if life.granted is not None:
            start = at(life.granted if life.start is None else life.start)
            stop = at(life.ended if life.stop is None else life.stop)
            which = ids.index(life.id), life.id, life.attempt, life.queue
            rows.append((*which, life.worker, start, stop, life.run_end))
    return np.array(rows, RUN)


def differences_when_loaded(made: Recording, folder: Path) -> list[str]:
    """Save a recording and load it; return the fields that differ."""
    made.save(folder)
    kept = Recording.load(folder)
    pairs = [
        (field.name, getattr(made, field.name), getattr(kept, field.name)) for field in fields(Recording)
    ]
    return [name for name, one, other in pairs if not _is_same(one, other)]


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return one == other
