"""P6: whoever lost its lease changes nothing. One attempt has one worker, and each grant a new number."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.proof.history.lives import EXECUTOR, lives_of, stories_of
from tests.proof.history.recording import (
    AttemptMove,
    ExecutionMove,
    Recording,
    Stamp,
    Step,
    WorkerEvent,
    WorkerMove,
)
from tests.proof.history.tolerances import Tolerances, Violation
from turnstile.common.domain.states import Status

_TAKEN_BACK: Final = (Status.QUEUED, Status.ABANDONED)


def attempts_are_numbered(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """An attempt's number grows by one with each grant, and never otherwise."""
    for execution_id, life in lives_of(recording.moves).items():
        attempt = 0
        for move in life:
            attempt += (move.previous, move.status) == (Status.QUEUED, Status.SCHEDULED)
            if move.attempt != attempt:
                what = f"its move to {move.status} bears attempt {move.attempt}, and {attempt} was granted"
                yield Violation(promise="P6", what=what, execution_id=execution_id, at=move.stamp.at)
                break


def attempts_have_one_worker(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """One worker claims an attempt, once, and nobody else ends it or stands in its history."""
    stories = stories_of(recording.moves)
    for (execution_id, attempt), story in stories.items():
        workers = {claim.worker_id for claim in story.claims}
        if len(story.claims) > 1:
            what = f"attempt {attempt} was claimed {len(story.claims)} times, by {workers}"
            yield _broken(what, execution_id, story.claims[-1].stamp)
        elif None in workers:
            yield _broken(f"attempt {attempt} was claimed by nobody", execution_id, story.claims[-1].stamp)
    written: set[tuple[int, int]] = set()
    for move in recording.moves:
        if not isinstance(move, AttemptMove):
            continue
        key = move.execution_id, move.attempt
        claimers = {claim.worker_id for claim in stories[key].claims} if key in stories else set()
        if move.step is not Step.INSERT or key in written:
            yield _broken(f"the history of attempt {move.attempt} changed", move.execution_id, move.stamp)
        elif move.worker_id not in claimers:
            what = f"attempt {move.attempt} was claimed by {claimers}, and ended by {move.worker_id}"
            yield _broken(what, move.execution_id, move.stamp)
        written.add(key)
    for key, story in stories.items():
        if story.claims and story.over is not None and key not in written:
            yield _broken(f"attempt {key[1]} stands in no history", key[0], story.over.stamp)


def lost_workers_change_nothing(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """From when a worker is marked as lost it moves nothing; until then nothing is taken from it."""
    lost: set[str | None] = set()
    stopped: set[str | None] = set()
    held_by: dict[int, str | None] = {}
    for move in recording.moves:
        match move:
            case WorkerMove(event=WorkerEvent.LOST):
                lost.add(move.worker_id)
            case WorkerMove(event=WorkerEvent.STOPPED):
                stopped.add(move.worker_id)
            case ExecutionMove() if Status.RUNNING in (move.previous, move.status):
                if move.status is Status.RUNNING:
                    held_by[move.execution_id] = move.worker_id
                worker_id = held_by.get(move.execution_id)
                if worker_id in lost and move.stamp.session != EXECUTOR:
                    what = f"worker {worker_id} was lost, and moved it from {move.previous} to {move.status}"
                    yield _broken(what, move.execution_id, move.stamp)
                if (
                    move.status in _TAKEN_BACK
                    and move.stamp.session == EXECUTOR
                    and worker_id not in lost | stopped
                ):
                    what = f"it was taken from worker {worker_id}, which was not lost"
                    yield _broken(what, move.execution_id, move.stamp)
            case _:
                pass


def workers_live_once(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """A worker registers once, before it claims; is lost once or stops once; its row is never deleted."""
    past: dict[str | None, list[WorkerEvent]] = defaultdict(list)
    for move in recording.moves:
        match move:
            case WorkerMove():
                events = past[move.worker_id]
                is_first = move.event is WorkerEvent.REGISTERED
                if is_first == bool(events) or move.event in events or move.event is WorkerEvent.FORGOTTEN:
                    what = f"worker {move.worker_id} was {move.event} after {[*map(str, events)]}"
                    yield Violation(promise="P6", what=what, at=move.stamp.at)
                events.append(move.event)
            case ExecutionMove(status=Status.RUNNING) if not past[move.worker_id]:
                what = f"worker {move.worker_id} had not registered"
                yield _broken(what, move.execution_id, move.stamp)
            case _:
                pass


def _broken(what: str, execution_id: int, stamp: Stamp) -> Violation:
    return Violation(promise="P6", what=what, execution_id=execution_id, at=stamp.at)
