"""First come, first served: grants and arrivals.

In: a recording. Out: two findings. Next: `starts`, the same as the actions saw it.
"""

import heapq
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.check.breach import Breach, breach, finding
from turnstile.stress.check.columns import column, moment, rows_of
from turnstile.stress.check.line import stays
from turnstile.stress.check.running_extremes import highest_before, lowest_after
from turnstile.stress.check.verdict import Finding, Rule
from turnstile.stress.recording import Recording
from turnstile.stress.tables import NEVER, NONE, Instants


def granted_in_order(recording: Recording) -> Finding:
    """Judge each grant: nobody with a smaller id stood in the same line then.

    Grants of one instant are one decision; within it the ids say who was first. A reclaimed execution stands
    in line again from its reclaim on, so whoever was granted while it ran passed nobody.
    """
    line = stays(recording)
    order = np.lexsort((line.execution_ids, line.granted_at, line.queues))
    queues, ids = line.queues[order], line.execution_ids[order]
    since, granted_at = line.since[order], line.granted_at[order]
    lowest = lowest_after(queues, ids)
    # Only who has a smaller id behind it can have passed, only who has a larger one before it been passed.
    early = np.flatnonzero((lowest != NONE) & (lowest < ids) & (granted_at != NEVER))
    late = np.flatnonzero(highest_before(queues, ids) > ids)
    late = late[np.lexsort((since[late], queues[late]))]
    passed = _passed_by(_moves(early, queues, granted_at, ids), _moves(late, queues, since, ids))

    def sentence(row: int) -> str:
        return (
            f"execution {ids[row]} was granted a slot of queue {queues[row]} at"
            f" {moment(recording, granted_at[row])}, while execution {passed[row]} waited"
        )

    rows = np.array(sorted(passed), np.int64)
    looked_at = int((granted_at != NEVER).sum())
    return finding(Rule.GRANTED_IN_ORDER, looked_at, Breach(rows=rows, sentence=sentence))


def admitted_in_order(recording: Recording) -> Finding:
    """Judge each request: those that its submitter sent before it have smaller ids, over all queues.

    The request queue has one order, and ids are drawn in it. A request that was sent more than once may have
    arrived with any of its sendings. What is repeated is repeated before anything later is sent: so such
    requests are not judged among themselves, but against all others they are.
    """
    orders, arrived_as = recording.orders, arrivals(recording)
    numbers = np.flatnonzero(arrived_as != NONE)
    numbers = numbers[np.argsort(orders["submitter"][numbers], kind="stable")]
    submitters, ids = column(orders, "submitter")[numbers], arrived_as[numbers]
    before = highest_sent_before(submitters, ids, orders["sendings"][numbers] > 1)
    places = rows_of(ids, before)

    def sentence(row: int) -> str:
        return (
            f"number {numbers[row]} of submitter {submitters[row]} is execution {ids[row]}, but number"
            f" {numbers[places[row]]}, which it sent before, is execution {before[row]}"
        )

    return finding(Rule.ADMITTED_IN_ORDER, len(numbers), breach(before > ids, sentence))


def arrivals(recording: Recording) -> Instants:
    """Return for each order the id under which it first arrived; NONE: it has no execution."""
    numbers = column(recording.executions, "number")
    rows = rows_of(numbers, np.arange(len(recording.orders), dtype=np.int64))
    ids = column(recording.executions, "execution_id")
    return np.where(rows == NONE, NONE, ids[rows]) if len(ids) else rows


def highest_sent_before(
    groups: Instants, values: Instants, repeated: NDArray[np.bool_], *, places: Instants | None = None
) -> Instants:
    """Return the highest value among those sent before; what was repeated looks at the others only."""
    return np.where(
        repeated,
        highest_before(groups, values, counts=~repeated, places=places),
        highest_before(groups, values, places=places),
    )


class _Move(NamedTuple):
    queue: int
    at: int
    execution_id: int
    place: int
    """In the order of grants."""


def _moves(places: Instants, queues: Instants, at: Instants, ids: Instants) -> list[_Move]:
    columns = (queues[places], at[places], ids[places], places)
    return list(map(_Move, *(values.tolist() for values in columns)))


def _passed_by(granted: Iterable[_Move], waiting: list[_Move]) -> dict[int, int]:
    """Return, by the place of each grant that passed somebody, the smallest id that it passed.

    Both in the order of queues and instants. One walk with a heap of those in line: its cost does not depend
    on how much is broken.
    """
    passed: dict[int, int] = {}
    line: list[tuple[int, int]] = []
    joined = 0
    for grant in granted:
        while joined < len(waiting) and waiting[joined][:2] <= grant[:2]:
            heapq.heappush(line, (waiting[joined].execution_id, waiting[joined].place))
            joined += 1
        # Who was granted before has left the line, and so has everybody of an earlier queue.
        while line and line[0][1] <= grant.place:
            heapq.heappop(line)
        if line and line[0][0] < grant.execution_id:
            passed[grant.place] = line[0][0]
    return passed
