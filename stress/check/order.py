"""First in, first out: the order of admissions, of starts at limit 1, and of starts at each worker."""

import numpy as np

from turnstile.stress.check.columns import (
    Ruling,
    column,
    highest_before,
    rows_before,
    rows_of,
    ruling,
    values_at,
    violations,
)
from turnstile.stress.check.excuses import forward_by
from turnstile.stress.check.history import ARRIVAL_NS, History
from turnstile.stress.check.verdict import Rule
from turnstile.stress.recording import NEVER, NONE, Instants, Outcome


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


def started_in_order(history: History) -> Ruling:
    """Check each start at its worker, and each first start while the limit was 1.

    At limit 1, no execution with a larger id had started before it. `admitted_in_order` shows that ids follow
    the order of sending. Above limit 1, two workers may start two granted executions in either order; one
    worker may not. Where clocks may differ, only certain orders count.
    """
    ids, queues, starts = _first_starts(history)
    if history.limits.at_first == 1:
        alone = starts < history.limits.first_change(queues)
    else:
        alone = np.zeros(len(ids), np.bool_)
    ids, queues, starts = ids[alone], queues[alone], starts[alone]
    error_ns = history.clock_error_ns
    positions = rows_before(queues, starts, 2 * error_ns) if error_ns else None
    later_id = highest_before(queues, ids, positions=positions)

    def sentence(row: int) -> str:
        return (
            f"execution {ids[row]} started in queue {queues[row]} at {history.time_text(starts[row])},"
            f" after execution {later_id[row]}"
        )

    at_workers = started_at_workers(history)
    checked = len(ids) + at_workers.checked
    return ruling(
        Rule.STARTED_IN_ORDER, checked, violations(later_id > ids, sentence, ids), *at_workers.kinds
    )


def started_at_workers(history: History) -> Ruling:
    """Check each start at its worker: none that comes after it in its queue had started before it there.

    What was granted after something that comes later joins at its place: that counts once it has certainly
    arrived. What has not started and is not there any more is not compared: it was returned, or cancelled.
    """
    attempts = history.attempts
    starts, workers = history.worker_starts, column(attempts, "worker")
    is_there = (attempts["outcome"] == Outcome.OPEN) & (attempts["granted_at"] != NEVER)
    rows = np.flatnonzero((attempts["queue"] != NONE) & (workers != NONE) & ((starts != NEVER) | is_there))
    _, groups = np.unique(
        column(attempts, "queue")[rows] * (workers.max(initial=0) + 1) + workers[rows], return_inverse=True
    )
    places, granted_at, starts = _places(history)[rows], column(attempts, "granted_at")[rows], starts[rows]
    by_grant = np.lexsort((places, granted_at, groups))
    joins = np.zeros(len(rows), np.bool_)
    joins[by_grant] = highest_before(groups[by_grant], places[by_grant]) > places[by_grant]
    by_start = np.lexsort((places, starts, groups))
    groups, places, starts, granted_at = (each[by_start] for each in (groups, places, starts, granted_at))
    passed_by = highest_before(groups, places, counts=starts != NEVER)
    first_of_group = np.searchsorted(groups, groups)
    for row in np.flatnonzero(joins[by_start] & (passed_by > places)).tolist():
        there_at = forward_by(int(granted_at[row]), ARRIVAL_NS, history.disturbed)
        own = slice(first_of_group[row], row)
        meanwhile = places[own][(starts[own] >= there_at) & (starts[own] != NEVER)]
        passed_by[row] = meanwhile.max(initial=NONE)
    ids, queues = (column(attempts, name)[rows][by_start] for name in ("execution_id", "queue"))
    id_at = np.empty(len(attempts), np.int64)
    id_at[_places(history)] = column(attempts, "execution_id")

    def sentence(row: int) -> str:
        how = "had not started" if starts[row] == NEVER else f"started at {history.time_text(starts[row])}"
        return (
            f"execution {ids[row]} in queue {queues[row]} {how}, after execution {id_at[passed_by[row]]} at"
            " the same worker"
        )

    return ruling(Rule.STARTED_IN_ORDER, len(rows), violations(passed_by > places, sentence, ids))


def _places(history: History) -> Instants:
    """Return the place of each attempt in the order of priorities and ids."""
    attempts = history.attempts
    ids = column(attempts, "execution_id")
    rows = rows_of(column(history.executions, "execution_id"), ids)
    priorities = np.zeros(len(ids), np.int64)
    if history.priorities is not None:
        priorities = values_at(history.priorities, rows, 0)
    places = np.empty(len(ids), np.int64)
    places[np.lexsort((attempts["attempt"], ids, priorities))] = np.arange(len(ids))
    return places


def _first_starts(history: History) -> tuple[Instants, Instants, Instants]:
    """Return ids, queues and instants of the first start of each execution, by queue, instant and id."""
    runs = history.runs[history.runs["queue"] != NONE]
    ids, queues, starts = (column(runs, name) for name in ("execution_id", "queue", "started_at"))
    by_id = np.lexsort((starts, ids))
    first = by_id[np.concatenate([[True], ids[by_id[1:]] != ids[by_id[:-1]]])] if len(runs) else by_id
    rows = first[np.lexsort((ids[first], starts[first], queues[first]))]
    return ids[rows], queues[rows], starts[rows]
