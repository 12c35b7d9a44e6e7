"""Rules over plain records and intervals, without numpy, for histories of any size that fit into memory.

The demo, the benchmarks and the end-to-end tests use them; `rules` applies the same rules to whole columns of
a recorded scenario. In: intervals, attempts, queues, executions. Out: numbers, violations or a `Verdict`.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from pydantic import JsonValue

from turnstile.common.domain.states import TERMINAL, Status
from turnstile.stress.check.verdict import EXAMPLES_MAX, Finding, Rule, Verdict


class _Comparable(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


InstantT = TypeVar("InstantT", bound=_Comparable)
"""An instant on any scale: a datetime, nanoseconds, seconds."""


class GrantedSlot(Protocol):
    """The attributes that decide the order of grants; any object with them can be checked."""

    @property
    def execution_id(self) -> int:
        """The execution; ids are the order of arrival."""
        ...

    @property
    def waiting_since(self) -> datetime:
        """When it entered the queue for this grant."""
        ...

    @property
    def granted_at(self) -> datetime:
        """When it got the slot."""
        ...


class OrderViolation(NamedTuple):
    """An execution got a slot while an earlier one waited in the same queue."""

    execution_id: int
    overtaken_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptHistory:
    """One slot from its grant to the end of its attempt."""

    execution_id: int
    waiting_since: datetime
    granted_at: datetime
    started_at: datetime | None
    """None: no worker claimed it."""
    ended_at: datetime | None
    """None: it has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueHistory:
    """One queue: its limit, and its attempts in the order of their grants."""

    action_ref: str
    max_concurrent: int | None
    attempts: tuple[AttemptHistory, ...]

    @property
    def slots(self) -> list[tuple[datetime, datetime | None]]:
        """When each slot was held: from the grant to the end of the attempt."""
        return [(attempt.granted_at, attempt.ended_at) for attempt in self.attempts]

    @property
    def runs(self) -> list[tuple[datetime, datetime | None]]:
        """When each attempt ran on a worker."""
        return [(a.started_at, a.ended_at) for a in self.attempts if a.started_at is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionHistory:
    """One execution; `number` is its position in the order of submission, None: it was not submitted here."""

    execution_id: int
    action_ref: str
    number: int | None
    status: Status
    result: JsonValue
    error_message: str | None
    created_at: datetime
    completed_at: datetime | None
    holds_slot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All queues, and all executions in the order of their ids."""

    queues: tuple[QueueHistory, ...]
    executions: tuple[ExecutionHistory, ...]


def peak_concurrency(intervals: Iterable[tuple[InstantT, InstantT | None]]) -> int:
    """Return the largest number of intervals that contain one instant.

    An interval holds its start and not its end; None: it is open. An interval that is empty or ends before
    its start counts nothing.
    """
    starts: list[Any] = []
    ends: list[Any] = []
    for start, end in intervals:
        if end is None:
            starts.append(start)
        elif start < end:
            starts.append(start)
            ends.append(end)
    starts.sort()
    ends.sort()
    peak = ended = 0
    for started, start in enumerate(starts, 1):
        while ended < len(ends) and not start < ends[ended]:
            ended += 1
        peak = max(peak, started - ended)
    return peak


def order_violations(grants: Iterable[GrantedSlot]) -> list[OrderViolation]:
    """Return each grant of one queue that overtook a waiting execution, with the smallest id it overtook.

    Grants of one instant are one decision; within it the ids decide.
    """
    found: list[OrderViolation] = []
    in_order = sorted(grants, key=lambda grant: (grant.granted_at, grant.execution_id))
    for index, granted in enumerate(in_order):
        overtaken = [
            later.execution_id
            for later in in_order[index + 1 :]
            if later.execution_id < granted.execution_id and later.waiting_since <= granted.granted_at
        ]
        if overtaken:
            found.append(OrderViolation(granted.execution_id, min(overtaken)))
    return found


def out_of_order(numbers: Iterable[int]) -> list[OrderViolation]:
    """Return each number that comes after a larger one, as (the largest before it, the number itself)."""
    found: list[OrderViolation] = []
    largest: int | None = None
    for number in numbers:
        if largest is not None and number < largest:
            found.append(OrderViolation(largest, number))
        else:
            largest = number
    return found


def handover_seconds(queue: QueueHistory) -> list[float]:
    """Return the seconds from the end of one attempt to the start of the next on a full queue.

    Each grant takes the slot that has been free for longest. It counts when its execution was waiting before
    the slot came free.
    """
    if queue.max_concurrent is None:
        return []
    ends = deque(sorted(a.ended_at for a in queue.attempts if a.ended_at is not None))
    free: deque[datetime | None] = deque([None] * queue.max_concurrent)
    found: list[float] = []
    for attempt in sorted(queue.attempts, key=lambda a: (a.granted_at, a.execution_id)):
        while ends and ends[0] <= attempt.granted_at:
            free.append(ends.popleft())
        free_since = free.popleft() if free else None
        if free_since and attempt.started_at and attempt.waiting_since <= free_since:
            found.append((attempt.started_at - free_since).total_seconds())
    return found


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of the values do not exceed (nearest rank)."""
    in_order = sorted(values)
    return in_order[max(math.ceil(share * len(in_order)), 1) - 1] if in_order else None


def check_history(history: History, *, submitted: int) -> Verdict:
    """Check a finished history of requests that were submitted as numbers 0, 1, ..."""
    return Verdict(
        findings=(
            _limit_held(history.queues),
            _granted_in_order(history.queues),
            _admitted_in_order(history.executions),
            _nothing_lost(history.executions, submitted),
            _nothing_twice(history.executions),
            _nothing_stuck(history.executions),
        )
    )


def _limit_held(queues: Sequence[QueueHistory]) -> Finding:
    peaks = ((queue, peak_concurrency(queue.slots)) for queue in queues)
    return _finding(
        Rule.LIMIT_HELD,
        sum(len(queue.attempts) for queue in queues),
        (
            f"{queue.action_ref}: {peak} executions held slots at once, the limit is {queue.max_concurrent}"
            for queue, peak in peaks
            if queue.max_concurrent is not None and peak > queue.max_concurrent
        ),
    )


def _granted_in_order(queues: Sequence[QueueHistory]) -> Finding:
    return _finding(
        Rule.GRANTED_IN_ORDER,
        sum(len(queue.attempts) for queue in queues),
        (
            f"execution {violation.execution_id} of {queue.action_ref} was granted a slot while execution"
            f" {violation.overtaken_id} waited"
            for queue in queues
            for violation in order_violations(queue.attempts)
        ),
    )


def _admitted_in_order(executions: Sequence[ExecutionHistory]) -> Finding:
    numbers = [execution.number for execution in executions if execution.number is not None]
    violations = out_of_order(numbers)
    return _finding(
        Rule.ADMITTED_IN_ORDER,
        len(numbers),
        (f"request {number} was admitted after request {larger}" for larger, number in violations),
    )


def _nothing_lost(executions: Sequence[ExecutionHistory], submitted: int) -> Finding:
    known = {execution.number for execution in executions}
    lost = (f"request {number} has no execution" for number in range(submitted) if number not in known)
    return _finding(Rule.NOTHING_LOST, submitted, lost)


def _nothing_twice(executions: Sequence[ExecutionHistory]) -> Finding:
    counts = Counter(execution.number for execution in executions if execution.number is not None)
    return _finding(
        Rule.NOTHING_TWICE,
        len(executions),
        (f"request {number} has {count} executions" for number, count in counts.items() if count > 1),
    )


def _nothing_stuck(executions: Sequence[ExecutionHistory]) -> Finding:
    def sentences() -> Iterator[str]:
        for execution in executions:
            name = f"execution {execution.execution_id} of {execution.action_ref}"
            if execution.status not in TERMINAL or execution.completed_at is None:
                yield f"{name} is still {execution.status}"
            elif execution.holds_slot:
                yield f"{name} has ended and still holds its slot"

    return _finding(Rule.NOTHING_STUCK, len(executions), sentences())


def _finding(rule: Rule, checked: int, sentences: Iterable[str]) -> Finding:
    found = list(sentences)
    return Finding(rule=rule, checked=checked, broken=len(found), examples=tuple(found[:EXAMPLES_MAX]))
