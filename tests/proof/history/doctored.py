"""Ways to break a history: each is a promise, words that the verdict must contain, and what to do to it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from tests.proof.history.clean import A, B, as_it_should_be
from tests.proof.history.recording import (
    AttemptMove,
    ExecutionMove,
    LineMove,
    Move,
    QueueMove,
    Recording,
    SlotMove,
    Step,
    WorkerEvent,
    WorkerMove,
)
from tests.proof.history.story import BOOTED_AT, Story
from tests.proof.history.tolerances import Tolerances
from tests.proof.history.verdict import violations
from turnstile.common.domain.states import Status

TOLERANCES: Final = Tolerances(idle_seconds=1.0, leak_seconds=2.0, reclaim_seconds=5.0, overlap_seconds=0.5)

Doctor = Callable[[Recording], Recording]


def judged(recording: Recording, tolerances: Tolerances = TOLERANCES) -> list[str]:
    return [str(violation) for violation in violations(recording, tolerances=tolerances)]


def where(kind: type[Move], **fields: Any) -> Callable[[Move], bool]:
    return lambda move: isinstance(move, kind) and all(getattr(move, k) == v for k, v in fields.items())


def without(condition: Callable[[Move], bool]) -> Doctor:
    return lambda r: replace(r, moves=[move for move in r.moves if not condition(move)])


def changed(condition: Callable[[Move], bool], **fields: Any) -> Doctor:
    """Change the first move that meets the condition."""

    def doctor(r: Recording) -> Recording:
        index = next(number for number, move in enumerate(r.moves) if condition(move))
        return replace(r, moves=[*r.moves[:index], replace(r.moves[index], **fields), *r.moves[index + 1 :]])

    return doctor


def again(condition: Callable[[Move], bool], **fields: Any) -> Doctor:
    """Let what meets the condition happen once more at the end."""

    def doctor(r: Recording) -> Recording:
        move = next(move for move in r.moves if condition(move))
        last = r.moves[-1].stamp
        stamp = replace(
            move.stamp, seq=last.seq + 1, at=last.at + timedelta(milliseconds=1), txid=last.txid + 1
        )
        return replace(r, moves=[*r.moves, replace(move, **{"stamp": stamp, **fields})])

    return doctor


def slower(condition: Callable[[Move], bool], seconds: float) -> Doctor:
    """Let all from the first move on that meets the condition happen later, the runs with them."""

    def doctor(r: Recording) -> Recording:
        index = next(number for number, move in enumerate(r.moves) if condition(move))
        late = timedelta(seconds=seconds)
        moves: Sequence[Move] = [
            replace(move, stamp=replace(move.stamp, at=move.stamp.at + late)) for move in r.moves[index:]
        ]
        before_ns = (r.moves[index].stamp.at - BOOTED_AT) / timedelta(microseconds=1) * 1000
        late_ns = round(seconds * 1e9)
        runs = [
            replace(
                run,
                started_ns=run.started_ns + late_ns * (run.started_ns >= before_ns),
                stopped_ns=None
                if run.stopped_ns is None
                else run.stopped_ns + late_ns * (run.stopped_ns >= before_ns),
            )
            for run in r.runs
        ]
        return replace(r, moves=[*r.moves[:index], *moves], runs=runs)

    return doctor


def with_run(**fields: Any) -> Doctor:
    """Change the run of execution 1."""
    return lambda r: replace(
        r, runs=[replace(run, **fields) if run.execution_id == 1 else run for run in r.runs]
    )


def ending(execution_id: int, attempt: int) -> Callable[[Move], bool]:
    return lambda move: (
        isinstance(move, ExecutionMove)
        and (move.execution_id, move.attempt, move.previous) == (execution_id, attempt, Status.RUNNING)
    )


def overtaken(*, delayed: bool) -> Recording:
    """A history in which the second is granted before the first."""
    story = Story()
    story.queue(A, 1)
    story.worker("w")
    story.admit(1, A, delayed=delayed)
    story.admit(2, A, granted=True)
    if delayed:
        story.wake(1)
    for execution_id, then in ((2, 1), (1, None)):
        story.claim(execution_id, "w")
        story.finish(execution_id)
        story.settle(execution_id, then=then)
    return story.recording()


def left_idle(seconds: float) -> Recording:
    """A history in which a free slot stood beside somebody waiting for so long."""
    story = Story()
    story.queue(A, 1)
    story.worker("w")
    story.admit(1, A)
    healed = len(story.moves)
    story.grant(1)
    story.claim(1, "w")
    story.finish(1)
    story.settle(1)
    return slower(lambda move: move.stamp.seq > healed, seconds)(story.recording())


DOCTORED: Final[dict[str, tuple[str, Doctor]]] = {
    "granted past the limit": ("P1", changed(where(QueueMove, queue_id=A), limit=0)),
    "in a pause": ("P1", changed(where(QueueMove, queue_id=B), paused=True)),
    "ran at once": ("P1", with_run(stopped_ns=10**13)),
    "was granted while": ("P2", without(where(LineMove, execution_id=2, step=Step.DELETE))),
    "after that of": ("P2", lambda _: overtaken(delayed=False)),
    "sent it as number": (
        "P2",
        lambda r: replace(r, submitted=[replace(s, number=-s.number) for s in r.submitted]),
    ),
    "had ended as": ("P3", again(where(ExecutionMove, execution_id=1, status=Status.COMPLETED))),
    "became": ("P3", again(where(ExecutionMove, execution_id=1, status=Status.COMPLETED), content="[1]")),
    "and moved from": ("P3", without(where(ExecutionMove, execution_id=1, status=Status.SCHEDULED))),
    "no transition leads from": (
        "P3",
        changed(where(ExecutionMove, execution_id=2, status=Status.CANCELLED), status=Status.COMPLETED),
    ),
    "its life begins": ("P3", changed(where(ExecutionMove, execution_id=2), status=Status.RUNNING)),
    "it was born or deleted": (
        "P3",
        changed(where(ExecutionMove, execution_id=1, status=Status.RUNNING), status=None),
    ),
    "nobody was told": ("P4", lambda r: replace(r, told=r.told[1:])),
    "not how it ended": (
        "P4",
        lambda r: replace(r, told=[*r.told, replace(r.told[0], status=Status.FAILED)]),
    ),
    "freed 2 times": ("P4", again(where(SlotMove, execution_id=1, step=Step.DELETE))),
    "freed 0 times": ("P4", without(where(SlotMove, execution_id=7, step=Step.DELETE))),
    "was given 0 slots": ("P4", changed(where(SlotMove, execution_id=1, step=Step.DELETE), attempt=2)),
    "before its end": (
        "P4",
        changed(
            where(SlotMove, execution_id=1, step=Step.DELETE),
            stamp=replace(as_it_should_be().moves[0].stamp, txid=-1),
        ),
    ),
    "did not know of its end": (
        "P4",
        without(where(SlotMove, execution_id=1, is_over=True, step=Step.UPDATE)),
    ),
    "never ended": ("P4", without(ending(6, 1))),
    "was free only": ("P4", slower(where(SlotMove, execution_id=1, step=Step.DELETE), 3.0)),
    "is 2 executions": (
        "P5",
        changed(where(ExecutionMove, execution_id=1, status=Status.QUEUED), mark="mark 2"),
    ),
    "is nowhere": ("P5", without(where(ExecutionMove, execution_id=2))),
    "was refused and taken": (
        "P5",
        lambda r: replace(r, submitted=[replace(s, refused=True) for s in r.submitted]),
    ),
    "answered with another": (
        "P5",
        lambda r: replace(r, submitted=[replace(s, execution_id=9) for s in r.submitted]),
    ),
    "nobody has sent": ("P5", lambda r: replace(r, submitted=r.submitted[1:])),
    "is still running": ("P5", without(ending(6, 1))),
    "bears attempt": (
        "P6",
        changed(where(ExecutionMove, execution_id=3, status=Status.SCHEDULED), attempt=2),
    ),
    "was claimed 2 times": ("P6", again(where(ExecutionMove, execution_id=1, status=Status.RUNNING))),
    "by nobody": (
        "P6",
        changed(where(ExecutionMove, execution_id=1, status=Status.RUNNING), worker_id=None),
    ),
    "and ended by": ("P6", changed(where(AttemptMove, execution_id=1), worker_id="w2")),
    "history of attempt 1 changed": ("P6", again(where(AttemptMove, execution_id=1))),
    "was lost, and moved it": (
        "P6",
        changed(where(ExecutionMove, execution_id=3, status=Status.RUNNING, attempt=2), worker_id="w1"),
    ),
    "stands in no history": ("P6", without(where(AttemptMove, execution_id=1))),
    "had not registered": ("P6", without(where(WorkerMove, worker_id="w1"))),
    "by its status it": ("P3", without(where(LineMove, execution_id=3, step=Step.INSERT))),
    "which was not lost": ("P6", without(where(WorkerMove, event=WorkerEvent.LOST))),
    "worker w1 was registered after": ("P6", again(where(WorkerMove, worker_id="w1"))),
    "ran twice": ("P6", lambda r: replace(r, runs=[*r.runs, replace(r.runs[0], pid=2)])),
    "nobody had claimed it": ("P6", without(where(ExecutionMove, execution_id=1, status=Status.RUNNING))),
    "before it was claimed": ("P6", with_run(started_ns=0)),
    "still ran": ("P6", with_run(stopped_ns=10**13)),
    "stood beside somebody waiting": ("P7", lambda _: left_idle(3.0)),
    "last sign of life": ("P7", slower(where(WorkerMove, event="lost"), 6.0)),
}
