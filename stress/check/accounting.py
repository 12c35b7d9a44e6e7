"""Nothing lost, nothing twice, nothing stuck, nothing unexpected; and the installation's own numbers."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from turnstile.common.domain.states import TERMINAL, Status
from turnstile.stress.check.columns import (
    Ruling,
    Violation,
    attempt_keys,
    column,
    rows_of,
    ruling,
    values_at,
    violations,
)
from turnstile.stress.check.history import FOREIGN, History
from turnstile.stress.check.order import arrivals
from turnstile.stress.check.timelines import counted_runs
from turnstile.stress.check.verdict import EXAMPLES_MAX, Finding, Rule
from turnstile.stress.recording import NEVER, NONE, STATUSES, Answer, Instants, Recording, RunEnd, status_code

_TERMINAL: Final = np.array(sorted(status_code(status) for status in TERMINAL))


def nothing_lost(history: History) -> Ruling:
    """Check each request that the broker confirmed or the executor accepted: it has an execution."""
    orders = history.orders
    accepted = np.isin(orders["answer"], (Answer.ACCEPTED, Answer.DUPLICATE))
    promised = ((orders["confirmed_at"] != NEVER) | accepted) & (orders["answer"] != Answer.REJECTED)

    def sentence(number: int) -> str:
        how = f"accepted as execution {orders['execution_id'][number]}" if accepted[number] else "confirmed"
        return f"{history.request_text(number)} was {how} and has no execution"

    lost = promised & (arrivals(history) == NONE)
    return ruling(Rule.NOTHING_LOST, int(promised.sum()), violations(lost, sentence))


def nothing_twice(history: History) -> Ruling:
    """Check each execution and each run: it is the only one of its request, or of its attempt."""
    executions, runs = history.executions, history.runs
    numbers, ids = column(executions, "number"), column(executions, "execution_id")
    first = first_of_equals(numbers)
    first_run = first_of_equals(attempt_keys(runs))
    rows, run_rows = np.arange(len(executions)), np.arange(len(runs))
    executions_twice = violations(
        (first != rows) & (numbers >= 0),
        lambda row: f"number {numbers[row]} is execution {ids[first[row]]} and execution {ids[row]}",
        ids,
    )
    runs_twice = violations(
        first_run != run_rows,
        lambda row: (
            f"attempt {runs['attempt'][row]} of execution {runs['execution_id'][row]} ran in process"
            f" {runs['process'][first_run[row]]} and in process {runs['process'][row]}"
        ),
        column(runs, "execution_id"),
    )
    return ruling(Rule.NOTHING_TWICE, len(executions) + len(runs), executions_twice, runs_twice)


def nothing_stuck(history: History) -> Ruling:
    """Check each execution: it has ended."""
    executions = history.executions

    def sentence(row: int) -> str:
        return (
            f"execution {executions['execution_id'][row]} in queue {executions['queue'][row]} was still"
            f" {STATUSES[executions['status'][row]]} at the end"
        )

    return ruling(
        Rule.NOTHING_STUCK,
        len(executions),
        violations(~has_ended(history), sentence, column(executions, "execution_id")),
    )


def has_ended(history: History | Recording) -> NDArray[np.bool_]:
    """Return for each execution whether it has ended."""
    executions = history.executions
    ended: NDArray[np.bool_] = np.isin(executions["status"], _TERMINAL)
    ended &= executions["completed_at"] != NEVER
    return ended


def first_of_equals(values: Instants) -> Instants:
    """Return for each row the first row with the same value."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    found: Instants = first[inverse]
    return found


def nothing_unexpected(history: History) -> Ruling:
    """Check every request, execution, attempt and run: rejections, failures, unknown rows, wrong instants."""
    kinds = [
        *_of_orders(history),
        *_of_executions(history),
        *_of_attempts(history),
        *_of_runs(history),
        list(map(Violation, history.collapses)),
    ]
    tables = (history.orders, history.executions, history.attempts, history.runs)
    return ruling(Rule.NOTHING_UNEXPECTED, sum(len(table) for table in tables), *kinds)


def _of_orders(history: History) -> Iterator[Sequence[Violation]]:
    orders = history.orders
    ids, answered = column(history.executions, "execution_id"), column(orders, "execution_id")
    arrived_as = arrivals(history)
    yield violations(
        (orders["answer"] == Answer.REJECTED) & (history.flawless | (arrived_as != NONE)),
        lambda number: (
            f"{history.request_text(number)} was rejected"
            + f" and is execution {arrived_as[number]}" * bool(arrived_as[number] != NONE)
        ),
        arrived_as,
    )
    rows = rows_of(ids, answered)
    # A number with two executions breaks another rule; here the answer must name one of them.
    named = values_at(column(history.executions, "number"), rows, NONE)
    promised = np.isin(orders["answer"], (Answer.ACCEPTED, Answer.DUPLICATE)) & (answered != NONE)
    yield violations(
        promised & (arrived_as != NONE) & (named != np.arange(len(orders))),
        lambda number: (
            f"{history.request_text(number)} was answered with execution {answered[number]}, but is"
            f" execution {arrived_as[number]}"
        ),
        arrived_as,
    )


def _of_executions(history: History) -> Iterator[Sequence[Violation]]:
    executions, orders = history.executions, history.orders
    ids, numbers = column(executions, "execution_id"), column(executions, "number")
    known = (numbers >= 0) & (numbers < len(orders))
    yield violations(
        ~known & (numbers != FOREIGN),
        lambda row: f"execution {ids[row]} in queue {executions['queue'][row]} was never sent",
        ids,
    )
    sent_for = values_at(column(orders, "queue"), np.where(known, numbers, NONE), NONE)
    yield violations(
        known & (sent_for != executions["queue"]),
        lambda row: (
            f"execution {ids[row]} is in queue {executions['queue'][row]}, but was sent for {sent_for[row]}"
        ),
    )
    if not history.flawless:
        return
    completed = executions["status"] == status_code(Status.COMPLETED)
    yield violations(
        has_ended(history) & ~completed,
        lambda row: f"execution {ids[row]} ended as {STATUSES[executions['status'][row]]}",
    )
    whole = history.runs[history.runs["end"] == RunEnd.STOPPED]
    run = rows_of(attempt_keys(whole), attempt_keys(executions))
    yield violations(
        completed & (run == NONE),
        lambda row: (
            f"execution {ids[row]} was completed, but its attempt {executions['attempt'][row]} has no"
            " complete run"
        ),
    )


def _of_attempts(history: History) -> Iterator[Sequence[Violation]]:
    attempts = history.attempts
    ids, granted_at = column(attempts, "execution_id"), column(attempts, "granted_at")
    yield violations(
        rows_of(column(history.executions, "execution_id"), ids) == NONE,
        lambda row: f"attempt {attempts['attempt'][row]} is of execution {ids[row]}, which is missing",
        ids,
    )
    started_at, ended_at = column(attempts, "started_at"), column(attempts, "ended_at")
    early = (attempts["waiting_since"] > granted_at) | (ended_at < granted_at) | (started_at < granted_at)
    yield violations(
        early | ((started_at != NEVER) & (ended_at < started_at)),
        lambda row: (
            f"attempt {attempts['attempt'][row]} of execution {ids[row]} was queued, granted, started"
            " and ended out of order"
        ),
        ids,
    )


def _of_runs(history: History) -> Iterator[Sequence[Violation]]:
    runs, executions = history.runs, history.executions
    ids = column(runs, "execution_id")
    numbers = values_at(
        column(executions, "number"), rows_of(column(executions, "execution_id"), ids), NONE - 1
    )
    unknown = numbers != runs["number"]
    yield violations(
        unknown,
        lambda row: f"number {runs['number'][row]} ran as execution {ids[row]}, which does not belong to it",
        ids,
    )
    counted, margin_ns = counted_runs(history), history.tolerance_ns
    rows = counted.attempt_rows
    yield violations(
        ~unknown & (rows == NONE),
        lambda row: f"attempt {runs['attempt'][row]} of execution {ids[row]} ran without a grant",
        ids,
    )
    starts, stops = column(runs, "started_at"), column(runs, "stopped_at")
    reported_at = values_at(column(history.attempts, "started_at"), rows, NONE)
    yield violations(
        ~unknown & (reported_at == NEVER),
        lambda row: f"attempt {runs['attempt'][row]} of execution {ids[row]} ran without a reported start",
        ids,
    )
    yield violations(
        (reported_at != NEVER) & (starts < reported_at - margin_ns),
        lambda row: (
            f"attempt {runs['attempt'][row]} of execution {ids[row]} started at"
            f" {history.time_text(starts[row])}, before its reported start at"
            f" {history.time_text(reported_at[row])}"
        ),
        ids,
    )
    until = np.where(counted.allowed_until == NEVER, NEVER, counted.allowed_until + margin_ns)
    over_at = values_at(column(history.attempts, "ended_at"), rows, NEVER)
    yield violations(
        (rows != NONE) & (np.where(counted.known, stops, starts) > until),
        lambda row: (
            f"attempt {runs['attempt'][row]} of execution {ids[row]} ran until"
            f" {history.time_text(max(starts[row], stops[row] * counted.known[row]))},"
            f" but had ended at {history.time_text(over_at[row])}"
        ),
        ids,
    )


def counters_agree(recording: Recording) -> Finding:
    """Check four counters of each action: enqueued, completed, waiting and active.

    The last two must be 0 once everything has ended. They are not checked for an action with stuck
    executions, which may still change.
    """
    actions, ended = (
        column(recording.executions, "queue") // max(recording.scenario.load.keys, 1),
        has_ended(recording),
    )
    all_recorded = np.bincount(actions[actions >= 0], minlength=len(recording.counters)).tolist()
    all_over = np.bincount(actions[ended & (actions >= 0)], minlength=len(recording.counters)).tolist()
    checked = 0
    sentences: list[Violation] = []
    for action, counters in enumerate(recording.counters):
        recorded, over = all_recorded[action], all_over[action]
        numbers = {
            "enqueued": (counters.enqueued - counters.enqueued_before, recorded),
            "completed": (counters.completed - counters.completed_before, over),
        }
        if recorded == over:
            numbers |= {"waiting": (counters.queue_length, 0), "active": (counters.active_count, 0)}
        checked += len(numbers)
        sentences += [
            Violation(f"action {action} counts {value} {name}, a recount gives {counted}")
            for name, (value, counted) in numbers.items()
            if value != counted
        ]
    return ruling(Rule.COUNTERS_AGREE, checked, sentences).finding()


def audit_clean(recording: Recording) -> Finding:
    """Check the result of `GET /audit`; each of its faults is a violation."""
    audit = recording.audit
    if audit is None:
        return Finding(rule=Rule.AUDIT_CLEAN, checked=0, broken=0)
    found = {name: count for name, count in audit.faults.items() if count}
    return Finding(
        rule=Rule.AUDIT_CLEAN,
        checked=1,
        broken=sum(found.values()) or int(not audit.clean),
        examples=tuple(f"check {name} found {count}" for name, count in found.items())[:EXAMPLES_MAX]
        or (() if audit.clean else ("the audit is not clean and gives no reason",)),
    )
