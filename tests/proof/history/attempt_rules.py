"""Rules about attempts and workers: one worker per attempt, fencing (P6), and no lost work (P7)."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from tests.proof.history.recording import (
    AttemptEvent,
    Bounds,
    ExecutionEvent,
    Recording,
    Stamp,
    Step,
    Violation,
    WorkerChange,
    WorkerEvent,
)
from tests.proof.history.replay import (
    EXECUTOR,
    AttemptHistory,
    AttemptKey,
    attempts_of,
    reclaims,
    transitions_of,
)
from turnstile.common.domain.states import Status, is_terminal

_RECLAIMED: Final = (Status.QUEUED, Status.ABANDONED)


def attempts_are_numbered(recording: Recording, _: Bounds) -> Iterator[Violation]:
    """The attempt number grows by one with each grant, and never otherwise."""
    for execution_id, transitions in transitions_of(recording.events).items():
        attempt = 0
        for event in transitions:
            attempt += (event.previous, event.status) == (Status.QUEUED, Status.SCHEDULED)
            if event.attempt != attempt:
                what = (
                    f"its transition to {event.status} has attempt {event.attempt}, and {attempt} was granted"
                )
                yield _broken(what, execution_id, event.stamp)
                break


def attempts_have_one_worker(recording: Recording, _: Bounds) -> Iterator[Violation]:
    """One worker claims an attempt, once; the row of the attempt names it, and never changes."""
    attempts = attempts_of(recording.events)
    for (execution_id, number), attempt in attempts.items():
        workers = {claim.worker_id for claim in attempt.claims}
        if len(attempt.claims) > 1:
            what = f"attempt {number} was claimed {len(attempt.claims)} times, by {workers}"
            yield _broken(what, execution_id, attempt.claims[-1].stamp)
        elif None in workers:
            yield _broken(
                f"attempt {number} was claimed by no worker", execution_id, attempt.claims[-1].stamp
            )
    yield from _attempt_rows(recording, attempts)


def _attempt_rows(recording: Recording, attempts: Mapping[AttemptKey, AttemptHistory]) -> Iterator[Violation]:
    written: set[AttemptKey] = set()
    for event in recording.events:
        if not isinstance(event, AttemptEvent):
            continue
        key = event.execution_id, event.attempt
        claimers = {claim.worker_id for claim in attempts[key].claims} if key in attempts else set()
        if event.step is not Step.INSERT or key in written:
            yield _broken(f"the row of attempt {event.attempt} changed", event.execution_id, event.stamp)
        elif event.worker_id not in claimers:
            what = f"attempt {event.attempt} was claimed by {claimers}, and ended by {event.worker_id}"
            yield _broken(what, event.execution_id, event.stamp)
        written.add(key)
    for key, attempt in attempts.items():
        if not attempt.claims or attempt.end is None:
            continue
        claimers = {claim.worker_id for claim in attempt.claims}
        if attempt.end.status is not None and is_terminal(attempt.end.status):
            # The last attempt is in the execution's row.
            if attempt.end.worker_id not in claimers:
                what = f"attempt {key[1]} was claimed by {claimers}, and ended by {attempt.end.worker_id}"
                yield _broken(what, key[0], attempt.end.stamp)
        elif key not in written:
            yield _broken(f"attempt {key[1]} has no row", key[0], attempt.end.stamp)


def lost_workers_change_nothing(recording: Recording, _: Bounds) -> Iterator[Violation]:
    """Once a worker is marked as lost it changes nothing; before that nothing is reclaimed from it."""
    lost: set[str | None] = set()
    stopped: set[str | None] = set()
    held_by: dict[int, str | None] = {}
    for event in recording.events:
        match event:
            case WorkerEvent(change=WorkerChange.LOST):
                lost.add(event.worker_id)
            case WorkerEvent(change=WorkerChange.STOPPED):
                stopped.add(event.worker_id)
            case ExecutionEvent() if Status.RUNNING in (event.previous, event.status):
                if event.status is Status.RUNNING:
                    held_by[event.execution_id] = event.worker_id
                worker_id = held_by.get(event.execution_id)
                by_executor = event.stamp.session == EXECUTOR
                if worker_id in lost and not by_executor:
                    what = (
                        f"worker {worker_id} was lost, and moved it from {event.previous} to {event.status}"
                    )
                    yield _broken(what, event.execution_id, event.stamp)
                if by_executor and event.status in _RECLAIMED and worker_id not in lost | stopped:
                    what = f"it was reclaimed from worker {worker_id}, which was not lost"
                    yield _broken(what, event.execution_id, event.stamp)
            case _:
                pass


def workers_register_once(recording: Recording, _: Bounds) -> Iterator[Violation]:
    """A worker registers once, before it claims; is lost once or stops once; its row is never deleted."""
    past: dict[str | None, list[WorkerChange]] = defaultdict(list)
    for event in recording.events:
        match event:
            case WorkerEvent():
                changes = past[event.worker_id]
                is_first = event.change is WorkerChange.REGISTERED
                if is_first == bool(changes) or event.change in {*changes, WorkerChange.DELETED}:
                    what = f"worker {event.worker_id} was {event.change} after {[*map(str, changes)]}"
                    yield Violation(promise="P6", what=what, at=event.stamp.at)
                changes.append(event.change)
            case ExecutionEvent(status=Status.RUNNING) if not past[event.worker_id]:
                what = f"worker {event.worker_id} had not registered"
                yield _broken(what, event.execution_id, event.stamp)
            case _:
                pass


def lost_work_is_reclaimed(recording: Recording, bounds: Bounds) -> Iterator[Violation]:
    """What a lost worker held is reclaimed within the bound after its last heartbeat."""
    for execution_id, seen_at, reclaimed_at in reclaims(recording.events):
        seconds = bounds.seconds_outside(seen_at, reclaimed_at)
        if seconds > bounds.reclaim_seconds:
            what = f"it was reclaimed {seconds:.2f} s after the last heartbeat of its worker"
            yield Violation(promise="P7", what=what, execution_id=execution_id, at=seen_at)


def _broken(what: str, execution_id: int, stamp: Stamp) -> Violation:
    return Violation(promise="P6", what=what, execution_id=execution_id, at=stamp.at)
