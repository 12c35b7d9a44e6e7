"""The log sorted by what it is about: the life of each execution, the story of each attempt.

Per row the order of the numbers is the order of the commits (see `log`), so these need no transactions.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.proof.history.recording import ExecutionMove, Move, SlotMove, Step
from turnstile.common.domain.states import HOLDS_SLOT, Status

AttemptKey: TypeAlias = tuple[int, int]
"""An execution's id and the attempt's number."""

EXECUTOR = "turnstile executor"


@dataclass(slots=True, kw_only=True)
class Story:
    """One attempt, from its grant to its end, and what became of its slot."""

    grants: list[SlotMove] = field(default_factory=list)
    claims: list[ExecutionMove] = field(default_factory=list)
    over: ExecutionMove | None = None
    """The move by which the execution stopped holding this attempt."""
    slot_over: SlotMove | None = None
    """When the slot was first seen to wait for its settling."""
    frees: list[SlotMove] = field(default_factory=list)

    @property
    def ended_from_outside(self) -> bool:
        """Its worker had no say: it was lost, or did not stop when it should."""
        return self.over is not None and self.over.stamp.session == EXECUTOR


def lives_of(moves: Sequence[Move]) -> Mapping[int, list[ExecutionMove]]:
    """Return what each execution went through."""
    lives: dict[int, list[ExecutionMove]] = defaultdict(list)
    for move in moves:
        if isinstance(move, ExecutionMove):
            lives[move.execution_id].append(move)
    return lives


def stories_of(moves: Sequence[Move]) -> Mapping[AttemptKey, Story]:
    """Return the story of each attempt that was granted, or claims to have been."""
    stories: dict[AttemptKey, Story] = defaultdict(Story)
    for move in moves:
        match move:
            case SlotMove(step=Step.INSERT):
                stories[move.execution_id, move.attempt].grants.append(move)
            case SlotMove(step=Step.UPDATE, is_over=True):
                story = stories[move.execution_id, move.attempt]
                story.slot_over = story.slot_over or move
            case SlotMove(step=Step.DELETE):
                stories[move.execution_id, move.attempt].frees.append(move)
            case ExecutionMove(previous=Status.SCHEDULED, status=Status.RUNNING):
                stories[move.execution_id, move.attempt].claims.append(move)
            case ExecutionMove() if move.previous in HOLDS_SLOT and move.status not in HOLDS_SLOT:
                story = stories[move.execution_id, move.attempt]
                story.over = story.over or move
            case _:
                pass
    return stories
