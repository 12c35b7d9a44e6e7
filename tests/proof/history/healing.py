"""P7: nothing stays as it must not for longer than the watchdog needs, outside all faults."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from tests.proof.history.lines import replayed
from tests.proof.history.lives import stories_of
from tests.proof.history.recording import Move, Recording, WorkerEvent, WorkerMove
from tests.proof.history.tolerances import Tolerances, Violation


def free_slots_are_granted(recording: Recording, tolerances: Tolerances) -> Iterator[Violation]:
    """No free slot stands beside a runnable waiting execution for longer than the bound."""
    for queue_id, since, until in idle_spells(recording.moves):
        seconds = tolerances.seconds_outside(since, until)
        if seconds > tolerances.idle_seconds:
            what = f"a free slot stood beside somebody waiting for {seconds:.2f} s"
            yield Violation(promise="P7", what=what, queue_id=queue_id, at=since)


def lost_work_is_reclaimed(recording: Recording, tolerances: Tolerances) -> Iterator[Violation]:
    """What a lost worker held is taken back within the bound after its last sign of life."""
    for execution_id, seen_at, back_at in reclaims(recording.moves):
        seconds = tolerances.seconds_outside(seen_at, back_at)
        if seconds > tolerances.reclaim_seconds:
            what = f"it was taken back {seconds:.2f} s after the last sign of life of its worker"
            yield Violation(promise="P7", what=what, execution_id=execution_id, at=seen_at)


def idle_spells(moves: Sequence[Move]) -> Iterator[tuple[int, datetime, datetime]]:
    """Yield each line's spells in which a slot was free beside somebody waiting."""
    last_at = moves[-1].stamp.at if moves else None
    since: dict[int, datetime] = {}
    for line in replayed(moves):
        assert line.at is not None
        if line.is_idle:
            since.setdefault(line.queue_id, line.at)
        elif line.queue_id in since:
            yield line.queue_id, since.pop(line.queue_id), line.at
    for queue_id, began_at in since.items():
        assert last_at is not None
        yield queue_id, began_at, last_at


def reclaims(moves: Sequence[Move]) -> Iterator[tuple[int, datetime, datetime]]:
    """Yield what lost workers held: its id, when its worker was last seen, when it was taken back."""
    seen_at = {
        move.worker_id: move.renewed_at
        for move in moves
        if isinstance(move, WorkerMove) and move.event is WorkerEvent.LOST
    }
    for (execution_id, _), story in stories_of(moves).items():
        claimer = story.claims[0].worker_id if story.claims else None
        if claimer in seen_at and story.over is not None and story.ended_from_outside:
            # A claim or a stop asked for late may be younger than the last renewal.
            yield execution_id, max(seen_at[claimer], story.claims[0].stamp.at), story.over.stamp.at
