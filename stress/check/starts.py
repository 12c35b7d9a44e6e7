"""First come, first served, as the actions saw it: at limit 1 there is one order of starts.

In: a recording. Out: one finding. Next: `accounting`. Above limit 1 two granted executions may start in
either order, so nothing is judged there; `figures` tells how often that was.
"""

from dataclasses import dataclass

import numpy as np

from turnstile.stress.check.breach import breach, finding
from turnstile.stress.check.columns import column, moment, taken
from turnstile.stress.check.in_force import limits_in_force
from turnstile.stress.check.order import highest_sent_before
from turnstile.stress.check.running_extremes import highest_before, places_before
from turnstile.stress.check.verdict import Finding, Rule
from turnstile.stress.recording import Recording
from turnstile.stress.tables import NONE, Instants


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStarts:
    """When each execution was first run, in the order of queues, instants and ids."""

    execution_ids: Instants
    numbers: Instants
    queues: Instants
    starts: Instants


def first_starts(recording: Recording) -> FirstStarts:
    """Return the first start of each execution that ever ran in a queue of the stage."""
    runs = recording.runs[recording.runs["queue"] != NONE]
    ids, starts, queues = (column(runs, name) for name in ("execution_id", "started_at", "queue"))
    by_id = np.lexsort((starts, ids))
    first = by_id[np.concatenate([[True], ids[by_id[1:]] != ids[by_id[:-1]]])] if len(runs) else by_id
    rows = first[np.lexsort((ids[first], starts[first], queues[first]))]
    return FirstStarts(
        execution_ids=ids[rows],
        numbers=column(runs, "number")[rows],
        queues=queues[rows],
        starts=starts[rows],
    )


def started_in_order(recording: Recording) -> Finding:
    """Judge each first start while the limit was 1: what arrived or was sent later did not start before it.

    Where clocks may be off, only what certainly started before counts.
    """
    first = first_starts(recording)
    alone = _alone(recording, first)
    queues, starts = first.queues[alone], first.starts[alone]
    ids, numbers = first.execution_ids[alone], first.numbers[alone]
    error_ns = recording.clock_error_ns
    places = places_before(queues, starts, 2 * error_ns) if error_ns else None
    later_id = highest_before(queues, ids, places=places)
    later_number = _later_sent(recording, queues, starts, numbers)

    def sentence(row: int) -> str:
        what = (
            f"execution {later_id[row]}"
            if later_id[row] > ids[row]
            else f"number {later_number[row]}, which its submitter sent after it as number {numbers[row]}"
        )
        return (
            f"execution {ids[row]} started in queue {queues[row]} at {moment(recording, starts[row])},"
            f" after {what}"
        )

    broken = (later_id > ids) | (later_number > numbers)
    return finding(Rule.STARTED_IN_ORDER, len(ids), breach(broken, sentence))


def _alone(recording: Recording, first: FirstStarts) -> Instants:
    """Return the rows that started while the limit of their queue had always been 1."""
    if recording.stage.limit != 1:
        return np.empty(0, np.int64)
    until = limits_in_force(recording).first_change(first.queues)
    return np.flatnonzero(first.starts < until)


def _later_sent(recording: Recording, queues: Instants, starts: Instants, numbers: Instants) -> Instants:
    """Return for each start the highest number of its submitter that started before it in its queue."""
    orders, error_ns = recording.orders, recording.clock_error_ns
    known = np.where(numbers < len(orders), numbers, NONE)
    submitters = taken(column(orders, "submitter"), known, NONE)
    repeated = taken(column(orders, "sendings"), known, 0) > 1
    found = np.full(len(numbers), NONE, np.int64)
    rows = np.flatnonzero(known != NONE)
    rows = rows[np.lexsort((starts[rows], submitters[rows], queues[rows]))]
    groups = queues[rows] * (int(submitters.max(initial=0)) + 1) + submitters[rows]
    places = places_before(groups, starts[rows], 2 * error_ns) if error_ns else None
    found[rows] = highest_sent_before(groups, numbers[rows], repeated[rows], places=places)
    return found
