"""The checker checked: a history as it should be passes, and each way to break a promise is named."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from tests.proof.history.clean import A, as_it_should_be
from tests.proof.history.doctored import DOCTORED, TOLERANCES, judged, left_idle, overtaken
from tests.proof.history.figures import figures
from tests.proof.history.recording import Move, QueueMove, Recording, SlotMove, Step, WorkerEvent, WorkerMove
from tests.proof.history.story import BOOTED_AT, Story
from tests.proof.history.tolerances import Window


def test_a_history_as_it_should_be_breaks_no_promise() -> None:
    assert judged(as_it_should_be()) == []


def test_what_comes_late_because_it_was_delayed_was_not_passed_by() -> None:
    assert judged(overtaken(delayed=True)) == []


@pytest.mark.parametrize("words", DOCTORED)
def test_each_way_to_break_a_promise_is_named(words: str) -> None:
    promise, doctor = DOCTORED[words]
    said = judged(doctor(as_it_should_be()))
    assert [line for line in said if line.startswith(f"{promise}: ") and words in line], said


def test_what_befalls_in_a_window_is_not_held_against_the_bounds() -> None:
    recording = left_idle(3.0)
    began_at = recording.moves[3].stamp.at
    covering = replace(
        TOLERANCES, windows=[Window(began_at=began_at, ended_at=began_at + timedelta(seconds=2.5))]
    )
    beside = replace(
        TOLERANCES,
        windows=[Window(began_at=began_at - timedelta(seconds=9), ended_at=began_at - timedelta(seconds=6))],
    )
    assert (judged(recording, covering), len(judged(recording, beside))) == ([], 1)


def test_overlapping_windows_are_counted_once() -> None:
    def second(number: float) -> datetime:
        return BOOTED_AT + timedelta(seconds=number)

    windows = [Window(began_at=second(a), ended_at=second(b)) for a, b in ((2, 5), (0, 3), (4, 4.5), (8, 99))]
    assert replace(TOLERANCES, windows=windows).seconds_outside(second(1), second(9)) == 3.0


def test_a_run_that_was_taken_away_may_go_on_for_the_bound_and_no_longer() -> None:
    recording = as_it_should_be()
    lost_at = next(m.stamp.at for m in recording.moves if isinstance(m, WorkerMove) and m.event == "lost")

    def going_on(seconds: float) -> Recording:
        stopped_ns = round((lost_at - BOOTED_AT).total_seconds() * 1e9 + seconds * 1e9)
        runs = [replace(r, stopped_ns=stopped_ns) if r.stopped_ns is None else r for r in recording.runs]
        return replace(recording, runs=runs)

    assert judged(going_on(0.4)) == []
    assert [line[:4] for line in judged(going_on(2.0))] == ["P6: "]


def test_a_lowered_limit_takes_nothing_away_and_a_raised_one_gives() -> None:
    story = Story()
    story.queue(A, 2)
    story.worker("w")
    for execution_id in (1, 2):
        story.admit(execution_id, A, granted=True)
        story.claim(execution_id, "w")
    story.queue(A, 1)
    story.admit(3, A)
    for execution_id, then in ((1, None), (2, 3)):
        story.finish(execution_id)
        story.settle(execution_id, then=then)
    story.claim(3, "w")
    story.finish(3)
    story.settle(3)
    assert judged(story.recording()) == []


def test_no_move_can_be_left_out_unnoticed() -> None:
    recording = as_it_should_be()
    unnoticed = [
        move
        for number, move in enumerate(recording.moves)
        if not judged(replace(recording, moves=[*recording.moves[:number], *recording.moves[number + 1 :]]))
    ]
    assert all(_may_be_missing(move) for move in unnoticed), unnoticed


def _may_be_missing(move: Move) -> bool:
    match move:
        # A limit that nobody wrote down; a worker that went, but nobody was waiting for that.
        case QueueMove() | WorkerMove(event=WorkerEvent.STOPPED):
            return True
        case SlotMove(step=Step.UPDATE, is_over=False):
            return True
        case _:
            return False


def test_the_figures_are_those_of_the_history() -> None:
    measured = figures(as_it_should_be())
    assert measured.ends == {"completed": 4, "failed": 1, "timeout": 1, "cancelled": 1}
    assert (measured.executions, measured.grants, measured.runs, measured.reclaims) == (7, 8, 8, 1)
    assert (measured.workers_lost, measured.completions_told) == (1, 7)
    assert 0.2 <= measured.worst_slot_leak_seconds <= 0.5
    assert 0.0 < measured.worst_reclaim_seconds < 5.0
