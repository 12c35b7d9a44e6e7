"""P5: nothing is lost, nothing is made up. What was confirmed is one execution, and has its end."""

from collections import defaultdict
from collections.abc import Iterator

from tests.proof.history.lives import lives_of
from tests.proof.history.recording import Recording
from tests.proof.history.tolerances import Tolerances, Violation
from turnstile.common.domain.states import is_terminal


def submits_are_kept(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """A confirmed request is one execution; one whose fate is unknown at most one; a refused one none."""
    taken: dict[str, list[int]] = defaultdict(list)
    for execution_id, life in lives_of(recording.moves).items():
        mark = life[0].mark
        if mark is not None:
            taken[mark].append(execution_id)
    for sent in recording.submitted:
        ids = taken.pop(sent.mark, [])
        who = f"number {sent.number} of {sent.submitter}, {sent.mark}"
        if len(ids) > 1:
            yield Violation(promise="P5", what=f"{who}, is {len(ids)} executions: {ids}")
        elif ids and sent.refused:
            yield Violation(promise="P5", what=f"{who}, was refused and taken", execution_id=ids[0])
        elif not ids and sent.confirmed and not sent.refused:
            yield Violation(promise="P5", what=f"{who}, was confirmed and is nowhere")
        elif sent.execution_id is not None and sent.execution_id not in ids:
            what = f"{who}, was answered with another execution than {ids}"
            yield Violation(promise="P5", what=what, execution_id=sent.execution_id)
    for mark, ids in taken.items():
        yield Violation(promise="P5", what=f"nobody has sent {mark}", execution_id=ids[0])


def executions_end(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """When all has drained, each execution has its end."""
    for execution_id, life in lives_of(recording.moves).items():
        status = life[-1].status
        if status is not None and not is_terminal(status):
            at = life[-1].stamp.at
            yield Violation(promise="P5", what=f"it is still {status}", execution_id=execution_id, at=at)
