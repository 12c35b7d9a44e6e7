"""P4: every end is told, and every slot is given back once, for the attempt that held it, after its end."""

from collections import defaultdict
from collections.abc import Iterator

from tests.proof.history.lives import AttemptKey, Story, lives_of, stories_of
from tests.proof.history.recording import ExecutionMove, Recording, Told
from tests.proof.history.tolerances import Tolerances, Violation
from turnstile.common.domain.states import is_terminal
from turnstile.common.messages import COMPLETED


def ends_are_told(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """Each end was heard at least once, with its status and attempt, and nothing else was told of it."""
    heard: dict[int, list[Told]] = defaultdict(list)
    for told in recording.told:
        if told.type == COMPLETED:
            heard[told.execution_id].append(told)
    ends = _ends(recording)
    for execution_id in ends.keys() | heard.keys():
        end = ends.get(execution_id)
        for told in heard[execution_id]:
            if end is None or (told.status, told.attempt) != (end.status, end.attempt):
                what = f"{told.status} of attempt {told.attempt} was told, which is not how it ended"
                yield Violation(promise="P4", what=what, execution_id=execution_id)
        if end is not None and not heard[execution_id]:
            what = f"nobody was told that it ended as {end.status}"
            yield Violation(promise="P4", what=what, execution_id=execution_id, at=end.stamp.at)


def slots_are_freed_once(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """Each attempt was given one slot, and gave it back once, after its end."""
    for (execution_id, attempt), story in stories_of(recording.moves).items():
        for what in _slot_faults((execution_id, attempt), story):
            at = story.frees[-1].stamp.at if story.frees else None
            yield Violation(promise="P4", what=what, execution_id=execution_id, at=at)


def slots_are_freed_in_time(recording: Recording, tolerances: Tolerances) -> Iterator[Violation]:
    """From the end of an attempt its slot is free within a bound, outside all faults."""
    for (execution_id, attempt), story in stories_of(recording.moves).items():
        if story.over is None or not story.frees:
            continue
        seconds = tolerances.seconds_outside(story.over.stamp.at, story.frees[0].stamp.at)
        if seconds > tolerances.leak_seconds:
            what = f"the slot of attempt {attempt} was free only {seconds:.2f} s after its end"
            yield Violation(promise="P4", what=what, execution_id=execution_id, at=story.over.stamp.at)


def _slot_faults(key: AttemptKey, story: Story) -> Iterator[str]:
    _, attempt = key
    if len(story.grants) != 1:
        yield f"attempt {attempt} was given {len(story.grants)} slots"
    if len(story.frees) != 1:
        yield f"the slot of attempt {attempt} was freed {len(story.frees)} times"
    elif story.over is None:
        yield f"the slot of attempt {attempt} was freed, and it never ended"
    elif story.frees[0].stamp.txid != story.over.stamp.txid:
        if story.frees[0].stamp.seq < story.over.stamp.seq:
            yield f"the slot of attempt {attempt} was freed before its end"
        elif story.slot_over is None:
            yield f"the slot of attempt {attempt} was freed, and did not know of its end"


def _ends(recording: Recording) -> dict[int, ExecutionMove]:
    return {
        execution_id: move
        for execution_id, life in lives_of(recording.moves).items()
        # The first one: what comes after an end is P3's.
        for move in reversed(life)
        if move.status is not None and is_terminal(move.status)
    }
