"""Lawful recordings of stages that never took place.

In: how large, how loaded, and what befalls it. Out: a `Recording` as a system that keeps every promise would
leave it: a small simulation of each queue, with its slots, its line, a worker that is killed and limits that
change. All that is random follows from the seed.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from common.domain.states import Status
from stress.mix import DurationMix
from stress.recording import ActionCounters, Audit, InjectedFault, LimitChange, Recording
from stress.stage import FaultKind, Load, Purpose, Stage
from stress.tables import (
    ATTEMPT,
    EXECUTION,
    NEVER,
    ORDER,
    RUN,
    SAMPLE,
    SECOND,
    Answer,
    Outcome,
    RunEnd,
    Table,
    empty,
    status_code,
)

BEGAN_AT: Final = 1_760_000_000 * SECOND
MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
LEASE: Final = 3 * SECOND
WORKERS: Final = ("worker-0.1", "worker-1.1", "worker-1.2")
"""The second is the one that is killed, the third starts in its place."""
ENQUEUED_BEFORE: Final = 17


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


def lawful(plan: Plan | None = None) -> Recording:
    """Return a recording in which nothing is broken."""
    plan = plan or Plan()
    random = np.random.default_rng(plan.seed)
    orders, executions = _arrivals(plan, random)
    durations = orders["duration_us"][executions["number"]].astype(np.int64) * MICROSECOND
    on_lost = random.random(plan.executions) < 0.5
    attempts, runs = [], []
    in_queue = np.argsort(executions["queue"], kind="stable")
    for rows in np.split(in_queue, np.flatnonzero(np.diff(executions["queue"][in_queue])) + 1):
        line = _Line(plan, int(executions["queue"][rows[0]]) // max(plan.keys, 1))
        line.pass_through(executions[rows], durations[rows].tolist(), on_lost[rows].tolist())
        attempts.append(np.array(line.attempts, ATTEMPT))
        runs.append(np.array(line.runs, RUN))
        executions["attempt"][rows], executions["completed_at"][rows] = line.ends()
    attempt_table, run_table = np.concatenate(attempts), np.concatenate(runs)
    return _recording(
        plan,
        orders,
        executions,
        np.sort(attempt_table, order=("execution_id", "attempt")),
        run_table[np.argsort(run_table["started_at"], kind="stable")],
    )


def _arrivals(plan: Plan, random: np.random.Generator) -> tuple[Table, Table]:
    """Return the orders, and the executions that they became; none of these has run yet."""
    count, queues = plan.executions, plan.actions * max(plan.keys, 1)
    orders, executions = empty(ORDER, count), empty(EXECUTION, count)
    orders["submitter"] = random.integers(plan.submitters, size=count)
    orders["queue"] = random.permutation(np.arange(count) % queues)
    orders["duration_us"] = random.choice(np.array(plan.durations_ms) * 1000, count)
    orders["sent_at"] = BEGAN_AT + np.arange(count) * plan.spacing_ns + MILLISECOND
    orders["confirmed_at"] = orders["sent_at"] + 2 * MILLISECOND
    orders["answer"], orders["sendings"] = Answer.ACCEPTED, 1
    # Each submitter has its own way to the broker, so they overtake each other and none itself.
    arrived_at = orders["sent_at"] + (3 * MILLISECOND + 17 * MICROSECOND) * (1 + orders["submitter"].astype(np.int64))
    numbers = np.argsort(arrived_at, kind="stable")
    executions["number"], executions["queue"] = numbers, orders["queue"][numbers]
    executions["execution_id"] = 1000 + np.cumsum(random.integers(1, 3, count))
    executions["created_at"] = arrived_at[numbers]
    executions["status"] = status_code(Status.COMPLETED)
    orders["execution_id"][numbers] = executions["execution_id"]
    orders["answered_at"] = arrived_at + 3 * MILLISECOND
    return orders, executions


class _Event(IntEnum):
    """What happens in a queue; at one instant in this order."""

    RETURNED = 0
    FREED = 1
    CHANGED = 2
    ARRIVED = 3
    OPENED = 4


class _Line:
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
        self._events = [(at, _Event.ARRIVED, row) for row, at in enumerate(self._since)]
        self._events += [
            (at + MILLISECOND // 2, _Event.CHANGED, nth) for nth, (at, _) in enumerate(self._limits)
        ]
        if self._plan.opened_at is not None:
            self._events.append((BEGAN_AT + self._plan.opened_at, _Event.OPENED, 0))
        heapq.heapify(self._events)
        opened = self._plan.opened_at is None
        while self._events:
            at, kind, which = heapq.heappop(self._events)
            match kind:
                case _Event.FREED:
                    self._held -= 1
                case _Event.CHANGED:
                    limit = self._limits[which][1]
                    self._limit = NEVER if limit is None else limit
                case _Event.ARRIVED | _Event.RETURNED:
                    heapq.heappush(self._waiting, (self._ids[which], which))
                case _Event.OPENED:
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
            heapq.heappush(self._events, (ended_at, _Event.RETURNED, row))
            heapq.heappush(self._events, (ended_at, _Event.FREED, row))
        else:
            self._over_at[row] = ended_at
            heapq.heappush(self._events, (ended_at + 1500 * MICROSECOND, _Event.FREED, row))


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
        stage=_stage(plan),
        began_at=BEGAN_AT,
        ended_at=ended_at,
        opened_at=NEVER if plan.opened_at is None else BEGAN_AT + plan.opened_at,
        orders=orders,
        executions=executions,
        attempts=attempts,
        runs=runs,
        samples=_samples(plan, attempts, ended_at),
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
                enqueued_before=ENQUEUED_BEFORE,
                enqueued=ENQUEUED_BEFORE + count,
                completed_before=ENQUEUED_BEFORE,
                completed=ENQUEUED_BEFORE + count,
                queue_length=0,
                active_count=0,
            )
            for count in own
        ),
        audit=Audit(clean=True),
    )


def _stage(plan: Plan) -> Stage:
    return Stage(
        name="made-up",
        title="A stage that never took place",
        purpose=plan.purpose,
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


def _samples(plan: Plan, attempts: Table, ended_at: int) -> Table:
    instants = np.arange(BEGAN_AT, ended_at, SECOND // 4)
    samples = np.zeros((plan.actions, len(instants)), SAMPLE)
    samples["at"] = instants
    samples["action"] = np.arange(plan.actions)[:, None]
    for action in range(plan.actions):
        own = attempts[attempts["queue"] // max(plan.keys, 1) == action]
        joined, granted, ended = (
            np.searchsorted(np.sort(own[name]), instants)
            for name in ("waiting_since", "granted_at", "ended_at")
        )
        samples["waiting"][action], samples["active"][action] = joined - granted, granted - ended
    flat = samples.ravel()
    return flat[np.argsort(flat["at"], kind="stable")]
