"""Rules about queues: the limit (P1), the order (P2), no idle slot and no lost work (P7).

Two witnesses that know nothing of each other show the limit: the log of the slots, and the runs that the
actions recorded. A limit that is lowered takes nothing away: it only forbids to grant.
"""

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tests.proof.history.recording import Bounds, QueueEvent, Recording, Run, Violation
from tests.proof.history.replay import (
    AttemptHistory,
    attempts_of,
    idle_spans,
    queue_events_of,
    reclaims,
    replayed,
    transitions_of,
)
from turnstile.common.domain.states import Status


def grants_keep_the_limit(recording: Recording, _: Bounds) -> Iterator[Violation]:
    """After each commit that granted, no more slots are held than the limit allows, and none in a pause."""
    for queue in replayed(recording.events):
        if not queue.granted:
            continue
        if queue.limit is not None and len(queue.held) > queue.limit:
            what = f"granted past the limit of {queue.limit}: {sorted(queue.held)} hold a slot"
        elif queue.paused:
            what = f"granted to {[grant.execution_id for grant in queue.granted]} while paused"
        else:
            continue
        yield Violation(promise="P1", what=what, queue_id=queue.queue_id, at=queue.at)


def runs_keep_the_limit(recording: Recording, _: Bounds) -> Iterator[Violation]:
    """At each physical start, no more run than the limit allowed since the oldest of them was granted."""
    limits = {
        queue_id: _Limits([event for event in events if isinstance(event, QueueEvent)])
        for queue_id, events in queue_events_of(recording.events).items()
    }
    for queue_id, runs in _counted(recording).items():
        running: list[tuple[datetime, datetime, int]] = []
        for run in runs:
            if run.until <= run.started_at:
                continue
            heapq.heappush(running, (run.until, run.granted_at, run.execution_id))
            while running[0][0] <= run.started_at:
                heapq.heappop(running)
            limit = limits[queue_id].most_between(min(granted for _, granted, _ in running), run.started_at)
            if limit is not None and len(running) > limit:
                ids = sorted(execution_id for *_, execution_id in running)
                what = f"{len(running)} ran at once, {ids}, under a limit of {limit}"
                yield Violation(promise="P1", what=what, queue_id=queue_id, at=run.started_at)


def grants_take_the_head(recording: Recording, _: Bounds) -> Iterator[Violation]:
    """An execution that still waits after a grant has a larger id than all that were granted in it."""
    for queue in replayed(recording.events):
        head = queue.head
        if not queue.granted or head is None:
            continue
        last = max(grant.execution_id for grant in queue.granted)
        if last > head:
            what = f"execution {last} was granted while {head} waited"
            yield Violation(promise="P2", what=what, queue_id=queue.queue_id, execution_id=last, at=queue.at)


def first_grants_follow_ids(recording: Recording, _: Bounds) -> Iterator[Violation]:
    """Among executions that were queued at once, first grants come in the order of ids.

    Only the executions' own rows are used; a delayed execution is queued only when it is due.
    """
    delayed = {
        execution_id
        for execution_id, transitions in transitions_of(recording.events).items()
        if transitions[0].status is Status.DELAYED
    }
    last: dict[int, int] = defaultdict(int)
    for queue in replayed(recording.events):
        firsts = [g.execution_id for g in queue.granted if g.attempt == 1 and g.execution_id not in delayed]
        if not firsts:
            continue
        first, before = min(firsts), last[queue.queue_id]
        if first < before:
            what = f"its first grant came after that of execution {before}"
            yield Violation(promise="P2", what=what, queue_id=queue.queue_id, execution_id=first, at=queue.at)
        last[queue.queue_id] = max(before, *firsts)


def ids_follow_arrival(recording: Recording, _: Bounds) -> Iterator[Violation]:
    """In each queue, what one submitter sent first has the smaller id."""
    inserted = {events[0].tag: events[0] for events in transitions_of(recording.events).values()}
    before: dict[tuple[str, int], tuple[int, int]] = {}
    for sent in sorted(recording.submitted, key=lambda s: (s.submitter, s.number)):
        event = inserted.get(sent.tag)
        if event is None:
            continue
        key = sent.submitter, event.queue_id
        number, smaller = before.get(key, (0, 0))
        if event.execution_id < smaller:
            what = f"{sent.submitter} sent it as number {sent.number}, after {number}: execution {smaller}"
            yield Violation(promise="P2", what=what, execution_id=event.execution_id)
        before[key] = sent.number, event.execution_id


def free_slots_are_granted(recording: Recording, bounds: Bounds) -> Iterator[Violation]:
    """No slot stays free beside a runnable waiting execution for longer than the bound."""
    for queue_id, since, until in idle_spans(recording.events):
        seconds = bounds.seconds_outside(since, until)
        if seconds > bounds.idle_seconds:
            what = f"a slot was free beside a waiting execution for {seconds:.2f} s"
            yield Violation(promise="P7", what=what, queue_id=queue_id, at=since)


def lost_work_is_reclaimed(recording: Recording, bounds: Bounds) -> Iterator[Violation]:
    """What a lost worker held is reclaimed within the bound after its last heartbeat."""
    for execution_id, seen_at, reclaimed_at in reclaims(recording.events):
        seconds = bounds.seconds_outside(seen_at, reclaimed_at)
        if seconds > bounds.reclaim_seconds:
            what = f"it was reclaimed {seconds:.2f} s after the last heartbeat of its worker"
            yield Violation(promise="P7", what=what, execution_id=execution_id, at=seen_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """A run for as long as it counts: to its stop, or to the moment at which its worker lost it."""

    execution_id: int
    granted_at: datetime
    started_at: datetime
    until: datetime


class _Limits:
    """The limits of one queue over time."""

    def __init__(self, events: Sequence[QueueEvent]) -> None:
        self._ats = [event.stamp.at for event in events]
        self._limits = [event.limit for event in events]

    def most_between(self, first: datetime, last: datetime) -> int | None:
        """Return the highest limit in force at any moment from `first` to `last`; None: there was none."""
        known = self._limits[max(0, bisect_right(self._ats, first) - 1) : bisect_right(self._ats, last)]
        limits = [limit for limit in known if limit is not None]
        return max(limits) if len(limits) == len(known) and limits else None


def _counted(recording: Recording) -> Mapping[int, list[_Counted]]:
    """Return the runs of each queue in the order of their starts."""
    attempts = attempts_of(recording.events)
    queues: dict[int, list[_Counted]] = defaultdict(list)
    for run in sorted(recording.runs, key=lambda r: r.started_ns):
        attempt = attempts.get((run.execution_id, run.attempt))
        if attempt is not None and attempt.grants:
            grant = attempt.grants[0]
            queues[grant.queue_id].append(
                _Counted(
                    execution_id=run.execution_id,
                    granted_at=grant.stamp.at,
                    started_at=recording.instant(run.started_ns),
                    until=_until(recording, run, attempt),
                )
            )
    return queues


def _until(recording: Recording, run: Run, attempt: AttemptHistory) -> datetime:
    stopped_at = None if run.stopped_ns is None else recording.instant(run.stopped_ns)
    if stopped_at is not None and not attempt.ended_by_executor:
        return stopped_at
    # Killed, or it raised: its stop was not recorded, but its attempt is over.
    ended_at = None if attempt.end is None else attempt.end.stamp.at
    never = datetime.max.replace(tzinfo=recording.booted_at.tzinfo)
    return min(at for at in (stopped_at, ended_at, never) if at)
