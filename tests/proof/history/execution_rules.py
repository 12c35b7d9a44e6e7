"""Rules about executions: one outcome (P3), always published, and one slot freed (P4)."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.proof.history.recording import (
    Bounds,
    ExecutionEvent,
    Published,
    Recording,
    SlotEvent,
    Step,
    Violation,
    WaitingEvent,
)
from tests.proof.history.replay import AttemptHistory, attempts_of, transitions_of
from tests.support.states import INITIAL, may_move
from turnstile.common.broker.topology import EXECUTION_COMPLETED
from turnstile.common.domain.states import Status, is_terminal


def transitions_are_legal(recording: Recording, _: Bounds) -> Iterator[Violation]:
    """Each transition is in the table and starts where the last one ended; none follows a terminal one."""
    for execution_id, transitions in transitions_of(recording.events).items():
        for what, event in _illegal(transitions):
            yield Violation(promise="P3", what=what, execution_id=execution_id, at=event.stamp.at)


def _illegal(transitions: Sequence[ExecutionEvent]) -> Iterator[tuple[str, ExecutionEvent]]:
    first, *later = transitions
    if first.previous is not None or first.status not in INITIAL:
        yield f"its first transition is {first.previous} to {first.status}", first
    before = first
    for event in later:
        if before.status is not None and is_terminal(before.status):
            changed = "" if event.content == before.content else f", {before.content} became {event.content}"
            yield f"it had ended as {before.status}, then {event.previous} to {event.status}{changed}", event
        elif event.previous is not before.status:
            yield f"it was {before.status}, and moved from {event.previous}", event
        elif event.previous is None or event.status is None:
            yield f"it was inserted or deleted: {event.previous} to {event.status}", event
        elif event.status is not event.previous and not may_move(event.previous, event.status):
            yield f"no transition leads from {event.previous} to {event.status}", event
        before = event


def statuses_agree_with_rows(recording: Recording, _: Bounds) -> Iterator[Violation]:
    """An execution joins and leaves its queue, and takes a slot, in the commit that changes its status."""
    by_status: dict[tuple[int, int], list[str]] = defaultdict(list)
    by_rows: dict[tuple[int, int], list[str]] = defaultdict(list)
    for event in recording.events:
        match event:
            case ExecutionEvent() if event.previous is not event.status:
                key = event.execution_id, event.stamp.txid
                by_status[key] += ["joins"] * (event.status is Status.QUEUED)
                by_status[key] += ["leaves"] * (event.previous is Status.QUEUED)
                by_status[key] += ["takes a slot"] * (event.status is Status.SCHEDULED)
            case WaitingEvent(step=step) if step is not Step.UPDATE:
                word = "joins" if step is Step.INSERT else "leaves"
                by_rows[event.execution_id, event.stamp.txid].append(word)
            case SlotEvent(step=Step.INSERT):
                by_rows[event.execution_id, event.stamp.txid].append("takes a slot")
            case _:
                pass
    for key in by_status.keys() | by_rows.keys():
        # What starts in the commit of its admission was never in `waiting`. A gate's line is part of it.
        for words in (by_status[key], by_rows[key]):
            while {"joins", "leaves"} <= {*words}:
                words.remove("joins")
                words.remove("leaves")
        if sorted(by_status[key]) != sorted(by_rows[key]):
            what = f"by its status it {by_status[key]}, by the rows it {by_rows[key]}"
            yield Violation(promise="P3", what=what, execution_id=key[0])


def ends_are_published(recording: Recording, _: Bounds) -> Iterator[Violation]:
    """Each end was published at least once, with its status and attempt, and no other end of it."""
    published: dict[int, list[Published]] = defaultdict(list)
    for message in recording.published:
        if message.type == EXECUTION_COMPLETED:
            published[message.execution_id].append(message)
    ends = {
        execution_id: event
        for execution_id, transitions in transitions_of(recording.events).items()
        # The first one: what follows a terminal status is P3's.
        for event in reversed(transitions)
        if event.status is not None and is_terminal(event.status)
    }
    for execution_id in ends.keys() | published.keys():
        end = ends.get(execution_id)
        for message in published[execution_id]:
            if end is None or (message.status, message.attempt) != (end.status, end.attempt):
                what = f"{message.status} of attempt {message.attempt} was published, which is not its end"
                yield Violation(promise="P4", what=what, execution_id=execution_id)
        if end is not None and not published[execution_id]:
            what = f"its end as {end.status} was never published"
            yield Violation(promise="P4", what=what, execution_id=execution_id, at=end.stamp.at)


def slots_are_freed_once(recording: Recording, _: Bounds) -> Iterator[Violation]:
    """Each attempt was granted one slot, and freed it once, after its end."""
    for (execution_id, number), attempt in attempts_of(recording.events).items():
        at = attempt.frees[-1].stamp.at if attempt.frees else None
        for what in _slot_faults(number, attempt):
            yield Violation(promise="P4", what=what, execution_id=execution_id, at=at)


def _slot_faults(number: int, attempt: AttemptHistory) -> Iterator[str]:
    slot = f"the slot of attempt {number} was freed"
    if len(attempt.grants) != 1:
        yield f"attempt {number} was granted {len(attempt.grants)} slots"
    if len(attempt.frees) != 1:
        yield f"{slot} {len(attempt.frees)} times"
    elif attempt.end is None:
        yield f"{slot}, and it never ended"
    elif attempt.frees[0].stamp.txid != attempt.end.stamp.txid:
        if attempt.frees[0].stamp.seq < attempt.end.stamp.seq:
            yield f"{slot} before its end"
        elif attempt.slot_ended is None:
            yield f"{slot}, and was not marked as ended"


def slots_are_freed_in_time(recording: Recording, bounds: Bounds) -> Iterator[Violation]:
    """From the end of an attempt until its slot is free the time is bounded, outside all faults."""
    for (execution_id, number), attempt in attempts_of(recording.events).items():
        if attempt.end is None or not attempt.frees:
            continue
        seconds = bounds.seconds_outside(attempt.end.stamp.at, attempt.frees[0].stamp.at)
        if seconds > bounds.leak_seconds:
            what = f"the slot of attempt {number} was free only {seconds:.2f} s after its end"
            yield Violation(promise="P4", what=what, execution_id=execution_id, at=attempt.end.stamp.at)
