"""Lawful recordings of stages that never took place.

In: how large, how loaded, and what befalls it. Out: a `Recording` as a system that keeps every promise would
leave it. All that is random follows from the seed. Next: `simulated_queue`, with slots, a line, a worker that
is killed and limits that change.
"""

from typing import Final

import numpy as np

from tests.unit.stress.simulated_queue import (
    BEGAN_AT,
    MICROSECOND,
    MILLISECOND,
    WORKERS,
    NewLimit,
    Plan,
    SimulatedQueue,
)
from turnstile.common.domain.states import Status
from turnstile.stress.mix import DurationMix
from turnstile.stress.recording import ActionCounters, Audit, InjectedFault, LimitChange, Recording
from turnstile.stress.stage import FaultKind, Load, Stage
from turnstile.stress.tables import (
    ATTEMPT,
    EXECUTION,
    NEVER,
    ORDER,
    RUN,
    SAMPLE,
    SECOND,
    Answer,
    Table,
    empty,
    status_code,
)

__all__ = ["BEGAN_AT", "MICROSECOND", "MILLISECOND", "WORKERS", "NewLimit", "Plan", "lawful"]

_ENQUEUED_BEFORE: Final = 17


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
        line = SimulatedQueue(plan, int(executions["queue"][rows[0]]) // max(plan.keys, 1))
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
