"""First in, first out: the order of admissions, and of starts at limit 1."""

from dataclasses import dataclass

import numpy as np

from turnstile.stress.check.columns import (
    Ruling,
    column,
    highest_before,
    rows_before,
    rows_of,
    ruling,
    violations,
)
from turnstile.stress.check.history import History
from turnstile.stress.check.verdict import Rule
from turnstile.stress.recording import NONE, Instants, Recording


def admitted_in_order(history: History) -> Ruling:
    """Check each request: all requests that its submitter sent earlier have smaller ids, over all queues.

    The request queue has one order, and ids are assigned in it. A request that was sent more than once may
    have been admitted at any of these times, but never after a request that its submitter sent later. So it
    is compared with the requests that were sent once, and not with other repeated ones. While definitions
    change, only requests for one queue are compared.
    """
    orders, arrived_as = history.orders, arrivals(history)
    numbers = np.flatnonzero(arrived_as != NONE)
    senders = column(orders, "submitter")
    if history.is_changing:
        queues = column(orders, "queue")
        senders = senders * (queues.max(initial=0) + 1) + queues
    numbers = numbers[np.argsort(senders[numbers], kind="stable")]
    submitters, ids = senders[numbers], arrived_as[numbers]
    repeated = orders["sendings"][numbers] > 1
    before = highest_before(submitters, ids)
    before[repeated] = highest_before(submitters, ids, counts=~repeated)[repeated]
    rows = rows_of(ids, before)

    def sentence(row: int) -> str:
        return (
            f"{history.request_text(numbers[row])} is execution {ids[row]}, but"
            f" {history.request_text(numbers[rows[row]])}, sent before, is execution {before[row]}"
        )

    return ruling(Rule.ADMITTED_IN_ORDER, len(numbers), violations(before > ids, sentence, ids))


def arrivals(history: History) -> Instants:
    """Return for each request its first execution id; NONE: it has no execution."""
    numbers = column(history.executions, "number")
    rows = rows_of(numbers, np.arange(len(history.orders), dtype=np.int64))
    ids = column(history.executions, "execution_id")
    return np.where(rows == NONE, NONE, ids[rows]) if len(ids) else rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStarts:
    """The first run of each execution, in the order of queues, instants and ids."""

    execution_ids: Instants
    queues: Instants
    starts: Instants


def first_starts(history: Recording | History) -> FirstStarts:
    """Return the first start of each execution that ran in a queue of the scenario."""
    runs = history.runs[history.runs["queue"] != NONE]
    ids, starts, queues = (column(runs, name) for name in ("execution_id", "started_at", "queue"))
    by_id = np.lexsort((starts, ids))
    first = by_id[np.concatenate([[True], ids[by_id[1:]] != ids[by_id[:-1]]])] if len(runs) else by_id
    rows = first[np.lexsort((ids[first], starts[first], queues[first]))]
    return FirstStarts(
        execution_ids=ids[rows],
        queues=queues[rows],
        starts=starts[rows],
    )


def started_in_order(history: History) -> Ruling:
    """Check each first start while the limit was 1: no execution with a larger id had started before it.

    `admitted_in_order` shows that ids follow the order of sending. Above limit 1, two granted executions may
    start in either order. Where clocks may differ, only certain orders count.
    """
    first = first_starts(history)
    alone = _at_limit_one(history, first)
    queues, starts = first.queues[alone], first.starts[alone]
    ids = first.execution_ids[alone]
    error_ns = history.clock_error_ns
    positions = rows_before(queues, starts, 2 * error_ns) if error_ns else None
    later_id = highest_before(queues, ids, positions=positions)

    def sentence(row: int) -> str:
        return (
            f"execution {ids[row]} started in queue {queues[row]} at {history.time_text(starts[row])},"
            f" after execution {later_id[row]}"
        )

    return ruling(Rule.STARTED_IN_ORDER, len(ids), violations(later_id > ids, sentence, ids))


def _at_limit_one(history: History, first: FirstStarts) -> Instants:
    """Return the rows that started before the limit of their queue was changed from 1."""
    if history.limits.at_first != 1:
        return np.empty(0, np.int64)
    until = history.limits.first_change(first.queues)
    return np.flatnonzero(first.starts < until)
