"""What a recording measures beside its verdict: the worst times, and how often what happened."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from tests.proof.history.healing import idle_spells, reclaims
from tests.proof.history.lives import lives_of, stories_of
from tests.proof.history.recording import Recording, WorkerEvent, WorkerMove
from turnstile.common.domain.states import is_terminal
from turnstile.common.messages import COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All of a run, faults included."""

    executions: int
    ends: Mapping[str, int]
    """How many ended as what."""
    grants: int
    runs: int
    reclaims: int
    workers_lost: int
    completions_told: int
    """Copies included."""
    worst_slot_leak_seconds: float
    """From the end of an attempt until its slot was free."""
    worst_reclaim_seconds: float
    """From the last sign of life of a lost worker until its work was taken back."""
    worst_idle_seconds: float
    """A free slot beside somebody waiting."""


def figures(recording: Recording) -> Figures:
    """Count and measure."""
    moves = recording.moves
    lives = lives_of(moves)
    stories = stories_of(moves).values()
    taken_back = list(reclaims(moves))
    return Figures(
        executions=len(lives),
        ends=Counter(
            str(life[-1].status)
            for life in lives.values()
            if life[-1].status and is_terminal(life[-1].status)
        ),
        grants=sum(len(story.grants) for story in stories),
        runs=len(recording.runs),
        reclaims=len(taken_back),
        workers_lost=sum(isinstance(m, WorkerMove) and m.event is WorkerEvent.LOST for m in moves),
        completions_told=sum(told.type == COMPLETED for told in recording.told),
        worst_slot_leak_seconds=_worst(
            story.frees[0].stamp.at - story.over.stamp.at for story in stories if story.over and story.frees
        ),
        worst_reclaim_seconds=_worst(back_at - seen_at for _, seen_at, back_at in taken_back),
        worst_idle_seconds=_worst(until - since for _, since, until in idle_spells(moves)),
    )


def _worst(durations: Iterable[timedelta]) -> float:
    return max(durations, default=timedelta()).total_seconds()
