"""The event log, grouped: per execution, per attempt, and per queue replayed commit by commit.

In: events. Out: the transitions of each execution, an `AttemptHistory` for each attempt, and a `QueueState`
after each transaction that changed a queue. Per row, the order of the numbers is the order of the commits.
The numbers of two transactions on one queue never interleave (see `event_log`), so the events of one
transaction are adjacent; within it, their order is that of the server's plan and means nothing.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import TypeAlias

from tests.proof.history.recording import (
    Event,
    ExecutionEvent,
    QueueEvent,
    SlotEvent,
    Step,
    WaitingEvent,
    WorkerChange,
    WorkerEvent,
)
from turnstile.common.domain.states import HOLDS_SLOT, Status

AttemptKey: TypeAlias = tuple[int, int]
"""An execution's id and the attempt's number."""
Span: TypeAlias = tuple[int, datetime, datetime]
"""The id of a queue or an execution, a beginning and an end."""

EXECUTOR = "turnstile executor"


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


@dataclass(slots=True, kw_only=True)
class QueueState:
    """One queue after a commit."""

    queue_id: int
    at: datetime | None = None
    limit: int | None = None
    paused: bool = False
    waiting: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    granted: list[SlotEvent] = field(default_factory=list)
    """The slots that the last transaction granted."""
    _ids: list[int] = field(default_factory=list)

    @property
    def head(self) -> int | None:
        """The smallest waiting id."""
        while self._ids and self._ids[0] not in self.waiting:
            heapq.heappop(self._ids)
        return self._ids[0] if self._ids else None

    @property
    def is_idle(self) -> bool:
        """A slot is free beside a runnable waiting execution."""
        return bool(self.waiting) and not self.paused and (self.limit is None or len(self.held) < self.limit)

    def commit(self, events: Sequence[Event]) -> None:
        """Apply the events of one transaction."""
        self.at = events[-1].stamp.at
        self.granted = []
        for event in events:
            match event:
                case QueueEvent():
                    self.limit, self.paused = event.limit, event.paused
                case WaitingEvent(step=Step.INSERT):
                    self.waiting.add(event.execution_id)
                    heapq.heappush(self._ids, event.execution_id)
                case WaitingEvent():
                    self.waiting.discard(event.execution_id)
                case SlotEvent(step=Step.INSERT):
                    self.held.add(event.execution_id)
                    self.granted.append(event)
                case SlotEvent(step=Step.DELETE):
                    self.held.discard(event.execution_id)
                case _:
                    pass


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


def queue_events_of(events: Sequence[Event]) -> Mapping[int, list[Event]]:
    """Return the events that change each queue; the marking of a slot as ended changes none."""
    queues: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if isinstance(event, QueueEvent | WaitingEvent) or (
            isinstance(event, SlotEvent) and event.step is not Step.UPDATE
        ):
            queues[event.queue_id].append(event)
    return queues


def replayed(events: Sequence[Event]) -> Iterator[QueueState]:
    """Yield each queue after each of its commits, queue by queue: one object per queue, changed in place."""
    for queue_id, own in queue_events_of(events).items():
        state = QueueState(queue_id=queue_id)
        for _, committed_together in groupby(own, key=lambda event: event.stamp.txid):
            state.commit(list(committed_together))
            yield state


def idle_spans(events: Sequence[Event]) -> Iterator[Span]:
    """Yield each queue's spans in which a slot was free beside a runnable waiting execution."""
    last_at = events[-1].stamp.at if events else None
    since: dict[int, datetime] = {}
    for state in replayed(events):
        assert state.at is not None
        if state.is_idle:
            since.setdefault(state.queue_id, state.at)
        elif state.queue_id in since:
            yield state.queue_id, since.pop(state.queue_id), state.at
    for queue_id, began_at in since.items():
        assert last_at is not None
        yield queue_id, began_at, last_at


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
