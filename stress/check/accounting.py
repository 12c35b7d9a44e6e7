"""Every request is one execution, each of its attempts runs once, and all of them end.

In: a recording. Out: three findings. Next: `unexpected`.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from turnstile.common.domain.states import TERMINAL
from turnstile.stress.check.breach import breach, finding
from turnstile.stress.check.columns import attempt_keys, column
from turnstile.stress.check.order import arrivals
from turnstile.stress.check.verdict import Finding, Rule
from turnstile.stress.recording import Recording
from turnstile.stress.tables import NEVER, NONE, STATUSES, Answer, Instants, status_code

_TERMINAL: Final = np.array(sorted(status_code(status) for status in TERMINAL))


def nothing_lost(recording: Recording) -> Finding:
    """Judge each request that the broker confirmed or the executor accepted: it has an execution."""
    orders = recording.orders
    accepted = np.isin(orders["answer"], (Answer.ACCEPTED, Answer.DUPLICATE))
    promised = ((orders["confirmed_at"] != NEVER) | accepted) & (orders["answer"] != Answer.REJECTED)

    def sentence(number: int) -> str:
        how = f"accepted as execution {orders['execution_id'][number]}" if accepted[number] else "confirmed"
        return f"number {number} of submitter {orders['submitter'][number]} was {how} and has no execution"

    lost = promised & (arrivals(recording) == NONE)
    return finding(Rule.NOTHING_LOST, int(promised.sum()), breach(lost, sentence))


def nothing_twice(recording: Recording) -> Finding:
    """Judge each execution and each run: it is the only one of its request, or of its attempt."""
    executions, runs = recording.executions, recording.runs
    numbers, ids = column(executions, "number"), column(executions, "execution_id")
    first = first_of_equals(numbers)
    first_run = first_of_equals(attempt_keys(runs))
    rows, run_rows = np.arange(len(executions)), np.arange(len(runs))
    executions_twice = breach(
        (first != rows) & (numbers != NONE),
        lambda row: f"number {numbers[row]} is execution {ids[first[row]]} and execution {ids[row]}",
    )
    runs_twice = breach(
        first_run != run_rows,
        lambda row: (
            f"attempt {runs['attempt'][row]} of execution {runs['execution_id'][row]} ran in process"
            f" {runs['process'][first_run[row]]} and in process {runs['process'][row]}"
        ),
    )
    return finding(Rule.NOTHING_TWICE, len(executions) + len(runs), executions_twice, runs_twice)


def nothing_stuck(recording: Recording) -> Finding:
    """Judge each execution: it has ended."""
    executions = recording.executions

    def sentence(row: int) -> str:
        return (
            f"execution {executions['execution_id'][row]} in queue {executions['queue'][row]} was still"
            f" {STATUSES[executions['status'][row]]} in the end"
        )

    return finding(Rule.NOTHING_STUCK, len(executions), breach(~has_ended(recording), sentence))


def has_ended(recording: Recording) -> NDArray[np.bool_]:
    """Return for each execution whether it has reached its end."""
    executions = recording.executions
    ended: NDArray[np.bool_] = np.isin(executions["status"], _TERMINAL)
    ended &= executions["completed_at"] != NEVER
    return ended


def first_of_equals(values: Instants) -> Instants:
    """Return for each row the first row with the same value."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    found: Instants = first[inverse]
    return found
