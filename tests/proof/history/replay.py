"""The event log, grouped: per execution, per attempt, and per queue.

In: events. Out: the transitions of each execution, an `AttemptHistory` for each attempt, and the moves of
each queue for `stress.check.gates`. Per row, the order of the numbers is the order of the commits. The
numbers of two transactions on one queue never interleave (see `event_log`), so the events of one transaction
are adjacent; within it, their order is that of the server's plan and means nothing.
"""

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TypeAlias

from tests.proof.history.pools import FAR, Period, closed_periods
from tests.proof.history.recording import (
    Event,
    ExecutionEvent,
    QueueEvent,
    SlotEvent,
    Step,
    WaitingEvent,
    WorkerChange,
    WorkerEvent,
    nanoseconds,
)
from tests.support.states import HOLDS_SLOT
from turnstile.common.domain.states import Status
from turnstile.stress.check.gates import UNLIMITED, Gate, GateStep, IdleAllowance, Move, replayed

AttemptKey: TypeAlias = tuple[int, int]
"""An execution's id and the attempt's number."""
Span: TypeAlias = tuple[int, datetime, datetime]
"""The id of a queue or an execution, a beginning and an end."""

EXECUTOR = "turnstile executor"
_CLOSED, _OPEN = -1, -2
"""In place of a limit: the pool can start nothing, or something again."""
_BY_INSTANT = attrgetter("at")


@dataclass(slots=True, kw_only=True)
class AttemptHistory:
    """One attempt from its grant to its end, and its slot."""

    grants: list[SlotEvent] = field(default_factory=list)
    claims: list[ExecutionEvent] = field(default_factory=list)
    end: ExecutionEvent | None = None
    """The transition by which the execution stopped holding this attempt."""
    slot_ended: SlotEvent | None = None
    """When the slot was first marked as waiting to be settled."""
    frees: list[SlotEvent] = field(default_factory=list)

    @property
    def ended_by_executor(self) -> bool:
        """The worker did not end it: it was lost, or did not stop in time."""
        return self.end is not None and self.end.stamp.session == EXECUTOR


def transitions_of(events: Sequence[Event]) -> Mapping[int, list[ExecutionEvent]]:
    """Return the events of each execution."""
    found: dict[int, list[ExecutionEvent]] = defaultdict(list)
    for event in events:
        if isinstance(event, ExecutionEvent):
            found[event.execution_id].append(event)
    return found


def attempts_of(events: Sequence[Event]) -> Mapping[AttemptKey, AttemptHistory]:
    """Return the history of each attempt that was granted, or that any row mentions."""
    attempts: dict[AttemptKey, AttemptHistory] = defaultdict(AttemptHistory)
    for event in events:
        match event:
            case SlotEvent(step=Step.INSERT):
                attempts[event.execution_id, event.attempt].grants.append(event)
            case SlotEvent(step=Step.UPDATE, is_over=True):
                attempt = attempts[event.execution_id, event.attempt]
                attempt.slot_ended = attempt.slot_ended or event
            case SlotEvent(step=Step.DELETE):
                attempts[event.execution_id, event.attempt].frees.append(event)
            case ExecutionEvent(previous=Status.SCHEDULED, status=Status.RUNNING):
                attempts[event.execution_id, event.attempt].claims.append(event)
            case ExecutionEvent() if event.previous in HOLDS_SLOT and event.status not in HOLDS_SLOT:
                attempt = attempts[event.execution_id, event.attempt]
                attempt.end = attempt.end or event
            case _:
                pass
    return attempts


def gated_queues(events: Sequence[Event]) -> frozenset[int]:
    """Return the queues before other gates: slots are acquired before the grant there.

    `stress.check.passages` replays them.
    """
    return frozenset(
        event.queue_id
        for event in events
        if (isinstance(event, WaitingEvent) and event.is_at_gate)
        or (isinstance(event, SlotEvent) and event.has_gates)
    )


def queue_events_of(events: Sequence[Event]) -> Mapping[int, list[Event]]:
    """Return the events that change each queue; the marking of a slot as ended changes none.

    Queues before other gates are left out.
    """
    queues: dict[int, list[Event]] = defaultdict(list)
    gated = gated_queues(events)
    for event in events:
        if isinstance(event, SlotEvent) and event.step is Step.UPDATE:
            continue
        if isinstance(event, QueueEvent | WaitingEvent | SlotEvent) and event.queue_id not in gated:
            queues[event.queue_id].append(event)
    return queues


def queue_moves(events: Sequence[Event], closed: Mapping[int, Sequence[Period]]) -> Iterator[Move]:
    """Yield the changes of each queue; a transaction has an instant of its own, a pause is a limit of 0.

    While the pool of a queue can start nothing, the queue may grant, but it need not: at least 0.
    """
    for queue_id, own in queue_events_of(events).items():
        moves = list(_moves(queue_id, own))
        limit, is_closed = UNLIMITED, False
        for move in heapq.merge(moves, _closings(queue_id, closed.get(queue_id, ()), moves), key=_BY_INSTANT):
            if move.step == GateStep.AT_LEAST:
                if move.value < 0:
                    is_closed = move.value == _CLOSED
                else:
                    limit = move.value
                yield move._replace(value=0 if is_closed else limit)
            else:
                yield move


def _moves(queue_id: int, own: Sequence[Event]) -> Iterator[Move]:
    at = 0
    for _, together in groupby(own, key=lambda event: event.stamp.txid):
        committed = list(together)
        at = max(nanoseconds(committed[-1].stamp.at), at + 1)
        for event in committed:
            for step, value in _steps(event):
                yield Move(queue_id, at, step, value)


def _closings(queue_id: int, periods: Sequence[Period], moves: Sequence[Move]) -> Iterator[Move]:
    """Yield the beginnings and ends of these periods, from the first move on."""
    if not moves:
        return
    first = bisect_left(periods, moves[0].at, key=itemgetter(1))
    for since, until in periods[first:]:
        yield Move(queue_id, since, GateStep.AT_LEAST, _CLOSED)
        if until != FAR:
            yield Move(queue_id, until, GateStep.AT_LEAST, _OPEN)


def _steps(event: Event) -> list[tuple[GateStep, int]]:
    match event:
        case QueueEvent():
            limit = 0 if event.paused else UNLIMITED if event.limit is None else event.limit
            return [(GateStep.AT_LEAST, limit), (GateStep.AT_MOST, limit)]
        case WaitingEvent():
            step = GateStep.ARRIVED if event.step is Step.INSERT else GateStep.LEFT
            return [(step, event.execution_id)]
        case SlotEvent():
            step = GateStep.GRANTED if event.step is Step.INSERT else GateStep.FREED
            return [(step, event.execution_id)]
        case _:
            return []


def replayed_queues(
    events: Sequence[Event], *, idle_seconds: float = 0.0, excused: Sequence[tuple[int, int]] = ()
) -> Iterator[Gate]:
    """Yield each queue after each of its transactions; the one that frees a slot also grants it again."""
    allowance = IdleAllowance(seconds=idle_seconds, excused=excused, exact=True)
    until = nanoseconds(events[-1].stamp.at) if events else 0
    return replayed(queue_moves(events, closed_periods(events)), until=until, allowance=allowance)


def waited_for_workers(events: Sequence[Event]) -> frozenset[int]:
    """Return the executions that waited, though their queue could start them, while the workers were busy."""
    moves = queue_moves(events, closed_periods(events, served=True))
    return frozenset(
        execution_id
        for queue in replayed(moves, until=0)
        if queue.at_least == 0
        for execution_id in sorted(queue.waiting)[: max(queue.at_most - len(queue.held), 0)]
    )


def longest_idle(events: Sequence[Event]) -> timedelta:
    """Return how long at most a slot was free beside a runnable waiting execution."""
    longest_ns = max((queue.longest_idle_ns for queue in replayed_queues(events)), default=0)
    return timedelta(microseconds=longest_ns / 1000)


def reclaims(events: Sequence[Event]) -> Iterator[Span]:
    """Yield what lost workers held: its id, the worker's last heartbeat, when it was reclaimed."""
    seen_at = {
        event.worker_id: event.renewed_at
        for event in events
        if isinstance(event, WorkerEvent) and event.change is WorkerChange.LOST
    }
    for (execution_id, _), attempt in attempts_of(events).items():
        claimer = attempt.claims[0].worker_id if attempt.claims else None
        if claimer in seen_at and attempt.end is not None and attempt.ended_by_executor:
            # A claim, or a late request to stop, may be younger than the last heartbeat.
            yield execution_id, max(seen_at[claimer], attempt.claims[0].stamp.at), attempt.end.stamp.at
