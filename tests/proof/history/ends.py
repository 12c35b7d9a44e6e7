"""P3: one life, one end. Each execution takes legal steps only, ends once, and is never touched again."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.proof.history.lives import lives_of
from tests.proof.history.recording import ExecutionMove, LineMove, Recording, SlotMove, Step
from tests.proof.history.tolerances import Tolerances, Violation
from turnstile.common.domain.states import INITIAL, Status, is_terminal, may_move


def lives_are_legal(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """Every step of every life is one of the table of transitions, and starts where the last one ended."""
    for execution_id, life in lives_of(recording.moves).items():
        for what, move in _faults(life):
            yield Violation(promise="P3", what=what, execution_id=execution_id, at=move.stamp.at)


def lives_stand_in_the_rows(recording: Recording, _: Tolerances) -> Iterator[Violation]:
    """Who becomes queued joins the line in the same commit, who leaves that status leaves it.

    Who is scheduled takes a slot.
    """
    lived: dict[tuple[int, int], list[str]] = defaultdict(list)
    stood: dict[tuple[int, int], list[str]] = defaultdict(list)
    for move in recording.moves:
        match move:
            case ExecutionMove() if move.previous is not move.status:
                key = move.execution_id, move.stamp.txid
                lived[key] += ["joins"] * (move.status is Status.QUEUED)
                lived[key] += ["leaves"] * (move.previous is Status.QUEUED)
                lived[key] += ["takes a slot"] * (move.status is Status.SCHEDULED)
            case LineMove(step=step) if step is not Step.UPDATE:
                word = "joins" if step is Step.INSERT else "leaves"
                stood[move.execution_id, move.stamp.txid].append(word)
            case SlotMove(step=Step.INSERT):
                stood[move.execution_id, move.stamp.txid].append("takes a slot")
            case _:
                pass
    for key in lived.keys() | stood.keys():
        if sorted(lived[key]) != sorted(stood[key]):
            what = f"by its status it {lived[key]}, by the rows it {stood[key]}"
            yield Violation(promise="P3", what=what, execution_id=key[0])


def _faults(life: Sequence[ExecutionMove]) -> Iterator[tuple[str, ExecutionMove]]:
    birth, *later = life
    if birth.previous is not None or birth.status not in INITIAL:
        yield f"its life begins with {birth.previous} to {birth.status}", birth
    before = birth
    for move in later:
        if before.status is not None and is_terminal(before.status):
            yield f"it had ended as {before.status}, and was touched: {_step(before, move)}", move
        elif move.previous is not before.status:
            yield f"it was {before.status}, and moved from {move.previous}", move
        elif move.previous is None or move.status is None:
            yield f"it was born or deleted: {move.previous} to {move.status}", move
        elif move.status is not move.previous and not may_move(move.previous, move.status):
            yield f"no transition leads from {move.previous} to {move.status}", move
        before = move


def _step(before: ExecutionMove, after: ExecutionMove) -> str:
    changed = [] if after.content == before.content else [f"{before.content} became {after.content}"]
    return ", ".join([f"{after.previous} to {after.status}", *changed])
