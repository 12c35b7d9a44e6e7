"""What should not be there: strangers, other ends than success, runs that belong nowhere.

In: a recording. Out: one finding, with an example of each kind. Next: `idle`.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from turnstile.common.domain.states import Status
from turnstile.stress.check.accounting import has_ended
from turnstile.stress.check.breach import Breach, breach, finding
from turnstile.stress.check.columns import attempt_keys, column, moment, rows_of, taken
from turnstile.stress.check.order import arrivals
from turnstile.stress.check.runs import counted_runs
from turnstile.stress.check.verdict import Finding, Rule
from turnstile.stress.recording import Recording
from turnstile.stress.tables import NEVER, NONE, STATUSES, Answer, RunEnd, status_code

CLOCKS_NS: Final = 5_000_000
"""The database writes its instants by the wall clock, an action by the monotonic one of the same host."""


def nothing_unexpected(recording: Recording) -> Finding:
    """Judge every order, execution, attempt and run: nothing is there that should not be."""
    breaches = [
        *_of_orders(recording),
        *_of_executions(recording),
        *_of_attempts(recording),
        *_of_runs(recording),
        Breach(
            rows=np.arange(len(recording.collapses), dtype=np.int64), sentence=recording.collapses.__getitem__
        ),
    ]
    tables = (recording.orders, recording.executions, recording.attempts, recording.runs)
    return finding(Rule.NOTHING_UNEXPECTED, sum(len(table) for table in tables), *breaches)


def _of_orders(recording: Recording) -> Iterator[Breach]:
    orders = recording.orders
    yield breach(
        orders["answer"] == Answer.REJECTED,
        lambda number: f"number {number} of submitter {orders['submitter'][number]} was rejected",
    )
    ids, answered = column(recording.executions, "execution_id"), column(orders, "execution_id")
    arrived_as = arrivals(recording)
    rows = rows_of(ids, answered)
    # A number that is two executions is broken elsewhere; here the answer must name one of them.
    named = taken(column(recording.executions, "number"), rows, NONE)
    promised = np.isin(orders["answer"], (Answer.ACCEPTED, Answer.DUPLICATE)) & (answered != NONE)
    yield breach(
        promised & (arrived_as != NONE) & (named != np.arange(len(orders))),
        lambda number: (
            f"number {number} was answered with execution {answered[number]}, and is execution"
            f" {arrived_as[number]}"
        ),
    )


def _of_executions(recording: Recording) -> Iterator[Breach]:
    executions, orders = recording.executions, recording.orders
    ids, numbers = column(executions, "execution_id"), column(executions, "number")
    known = (numbers >= 0) & (numbers < len(orders))
    yield breach(
        ~known, lambda row: f"execution {ids[row]} in queue {executions['queue'][row]} was never sent"
    )
    asked = taken(column(orders, "queue"), np.where(known, numbers, NONE), NONE)
    yield breach(
        known & (asked != executions["queue"]),
        lambda row: (
            f"execution {ids[row]} stands in queue {executions['queue'][row]}, and was sent for {asked[row]}"
        ),
    )
    completed = executions["status"] == status_code(Status.COMPLETED)
    yield breach(
        has_ended(recording) & ~completed,
        lambda row: f"execution {ids[row]} ended as {STATUSES[executions['status'][row]]}",
    )
    whole = recording.runs[recording.runs["end"] == RunEnd.STOPPED]
    run = rows_of(attempt_keys(whole), attempt_keys(executions))
    yield breach(
        completed & (run == NONE),
        lambda row: (
            f"execution {ids[row]} was completed, and its attempt {executions['attempt'][row]} never ran"
            " whole"
        ),
    )


def _of_attempts(recording: Recording) -> Iterator[Breach]:
    attempts = recording.attempts
    ids, granted_at = column(attempts, "execution_id"), column(attempts, "granted_at")
    yield breach(
        rows_of(column(recording.executions, "execution_id"), ids) == NONE,
        lambda row: f"attempt {attempts['attempt'][row]} is of execution {ids[row]}, which is not there",
    )
    started_at, ended_at = column(attempts, "started_at"), column(attempts, "ended_at")
    early = (attempts["waiting_since"] > granted_at) | (ended_at < granted_at) | (started_at < granted_at)
    yield breach(
        early | ((started_at != NEVER) & (ended_at < started_at)),
        lambda row: (
            f"attempt {attempts['attempt'][row]} of execution {ids[row]} waited, was granted, started and"
            " ended in another order"
        ),
    )


def _of_runs(recording: Recording) -> Iterator[Breach]:
    runs, executions = recording.runs, recording.executions
    ids = column(runs, "execution_id")
    numbers = taken(column(executions, "number"), rows_of(column(executions, "execution_id"), ids), NONE - 1)
    stranger = numbers != runs["number"]
    yield breach(
        stranger,
        lambda row: f"number {runs['number'][row]} ran as execution {ids[row]}, which is none of it",
    )
    counted, margin_ns = counted_runs(recording), CLOCKS_NS + recording.clock_error_ns
    rows = counted.attempt_rows
    yield breach(
        ~stranger & (rows == NONE),
        lambda row: f"attempt {runs['attempt'][row]} of execution {ids[row]} ran, and nobody granted it",
    )
    starts, stops = column(runs, "started_at"), column(runs, "stopped_at")
    granted_at = taken(column(recording.attempts, "granted_at"), rows, NONE)
    yield breach(
        starts < granted_at - margin_ns,
        lambda row: (
            f"attempt {runs['attempt'][row]} of execution {ids[row]} started at"
            f" {moment(recording, starts[row])}, before its grant at {moment(recording, granted_at[row])}"
        ),
    )
    until = np.where(counted.allowed_until == NEVER, NEVER, counted.allowed_until + margin_ns)
    over_at = taken(column(recording.attempts, "ended_at"), rows, NEVER)
    yield breach(
        (rows != NONE) & (np.where(counted.known, stops, starts) > until),
        lambda row: (
            f"attempt {runs['attempt'][row]} of execution {ids[row]} ran until"
            f" {moment(recording, max(starts[row], stops[row] * counted.known[row]))},"
            f" and had ended at {moment(recording, over_at[row])}"
        ),
    )
