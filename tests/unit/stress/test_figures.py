"""Figures of histories that are small enough to know them."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.stress.hand_made import Life, at, hand_made
from tests.unit.stress.histories import MILLISECOND, Plan, lawful
from turnstile.stress.check.judge import judge
from turnstile.stress.figures.five import Judged, five_figures
from turnstile.stress.figures.measure import measure
from turnstile.stress.figures.spread import spread
from turnstile.stress.figures.values import Spread
from turnstile.stress.recording import LimitChange
from turnstile.stress.stage import Purpose
from turnstile.stress.tables import NEVER, Outcome, RunEnd


def in_milliseconds(found: Spread | None) -> tuple[int, float, float]:
    assert found is not None
    return found.count, found.p50_ms, found.max_ms


def test_a_rank_is_the_smallest_value_that_its_share_does_not_exceed() -> None:
    found = spread(np.arange(100, 0, -1) * MILLISECOND)
    assert found == Spread(count=100, p50_ms=50.0, p90_ms=90.0, p99_ms=99.0, max_ms=100.0)
    assert spread(np.array([7 * MILLISECOND])) == Spread(count=1, p50_ms=7, p90_ms=7, p99_ms=7, max_ms=7)
    assert spread(np.empty(0, np.int64)) is None


def test_a_hand_over_reaches_from_the_stop_to_the_next_start_of_who_was_waiting() -> None:
    figures = measure(
        hand_made(
            Life(id=1, since=0, granted=1, start=2, stop=10, ended=11),
            Life(id=2, since=5, granted=13, start=14, stop=20, ended=22),
            Life(id=3, since=6, granted=25, start=31, stop=40, ended=42),
            Life(id=4, since=50, granted=51, start=52, stop=60, ended=61),
        )
    )
    assert in_milliseconds(figures.hand_over) == (2, 4.0, 11.0)
    assert in_milliseconds(figures.end_to_grant) == (2, 2.0, 3.0)
    assert in_milliseconds(figures.grant_to_start) == (4, 1.0, 6.0)


def test_each_grant_takes_the_slot_that_has_been_free_for_longest() -> None:
    handed = measure(
        hand_made(
            Life(id=1, since=0, granted=1, ended=12),
            Life(id=2, since=0, granted=1, ended=10),
            Life(id=3, since=0, granted=14, ended=30),
            Life(id=4, since=0, granted=15, ended=30),
            limit=2,
        )
    ).hand_over
    assert in_milliseconds(handed) == (2, 3.0, 4.0)


@pytest.mark.parametrize("run_end", [RunEnd.KILLED, RunEnd.STOPPED])
def test_what_was_cut_off_hands_nothing_over(run_end: RunEnd) -> None:
    lost = hand_made(
        Life(id=1, since=0, granted=1, stop=5, ended=3_000, outcome=Outcome.RECLAIMED, run_end=run_end),
        Life(id=2, since=0, granted=3_014, ended=3_020),
        Life(id=3, since=0, granted=3_024, ended=3_030),
    )
    assert in_milliseconds(measure(lost).hand_over) == (1, 4.0, 4.0)


def test_without_a_limit_nothing_is_handed_over() -> None:
    figures = measure(hand_made(Life(id=1, since=0, granted=1, ended=10), limit=None))
    assert (figures.hand_over, figures.end_to_grant, figures.idle_share) == (None, None, None)


def test_grants_after_the_limit_was_changed_are_no_hand_overs() -> None:
    change = LimitChange(action=0, limit=2, asked_at=at(12), answered_at=at(13))
    lives = [Life(id=n, since=0, granted=10 * n, ended=10 * n + 8) for n in (1, 2, 3)]
    assert in_milliseconds(measure(hand_made(*lives)).hand_over) == (2, 2.0, 2.0)
    assert measure(hand_made(*lives, limit_changes=(change,))).hand_over is None


def test_the_claim_tells_the_start_where_clocks_may_be_off() -> None:
    life = Life(id=1, since=0, granted=1, start=90, ended=100)
    assert in_milliseconds(measure(hand_made(life)).grant_to_start) == (1, 89.0, 89.0)
    assert in_milliseconds(measure(hand_made(life, clock_error_ns=5)).grant_to_start) == (1, 0.0, 0.0)


def test_the_pace_counts_from_the_first_request_or_from_the_opening_to_the_last_end() -> None:
    lives = [Life(id=n, since=1_000, granted=2_000 + n, ended=3_000 * n) for n in (1, 2)]
    recording = hand_made(*lives, limit=None)
    figures = measure(recording)
    assert (figures.ended, figures.seconds, figures.executions_per_second) == (2, 5.0, 0.4)
    opened = measure(replace(recording, opened_at=at(2_000)))
    assert (opened.seconds, opened.executions_per_second) == (4.0, 0.5)


def test_sending_and_answers_are_measured_by_the_submitters() -> None:
    recording = hand_made(*(Life(id=n, since=0, granted=1, ended=2) for n in (1, 2, 3)), limit=None)
    orders = recording.orders
    orders["sent_at"], orders["confirmed_at"] = [at(0), at(100), at(200)], [at(90), at(150), NEVER]
    orders["answered_at"] = [at(7), at(103), NEVER]
    figures = measure(recording)
    assert figures.sent_per_second == pytest.approx(2 / 0.150)
    assert in_milliseconds(figures.answer) == (2, 3.0, 7.0)
    orders["answered_at"] = NEVER
    assert measure(recording).answer is None


def test_slots_are_counted_by_the_record_and_by_the_runs() -> None:
    figures = measure(
        hand_made(
            Life(id=1, since=0, granted=1, stop=5, ended=20),
            Life(id=2, since=0, granted=2, start=6, ended=20),
            Life(id=3, since=0, granted=2, start=8, ended=20),
            Life(id=4, since=0, granted=2, ended=20, queue=1),
            limit=None,
            actions=2,
        )
    )
    assert (figures.most_held, figures.most_running) == (3, 2)


def test_the_idle_share_is_the_time_without_a_run_while_somebody_waits() -> None:
    lives = (
        Life(id=1, since=0, granted=10, start=20, stop=50, ended=60),
        Life(id=2, since=0, granted=100, start=100, stop=200, ended=200),
    )
    assert measure(hand_made(*lives)).idle_share == pytest.approx(0.7)
    assert measure(hand_made(*lives, limit=2)).idle_share == pytest.approx(0.85)
    assert measure(hand_made(*lives, opened_at=at(20))).idle_share == pytest.approx(50 / 80)


def test_a_start_is_out_of_order_if_a_later_request_of_its_queue_has_started() -> None:
    figures = measure(
        hand_made(
            Life(id=1, since=0, granted=1, start=5, ended=9),
            Life(id=2, since=0, granted=1, start=4, ended=9),
            Life(id=3, since=0, granted=1, start=6, ended=9),
            Life(id=4, since=0, granted=1, start=3, ended=9, queue=1),
            limit=None,
            actions=2,
        )
    )
    assert figures.started_out_of_order == 0.25


def test_a_stage_that_lifts_its_limit_is_measured_up_to_that() -> None:
    lives = [Life(id=n, since=0, granted=10 * n, ended=10 * n + 8) for n in (1, 2)]
    rush = [Life(id=n, since=0, granted=30, ended=40) for n in range(3, 50)]
    recording = hand_made(
        *lives,
        *rush,
        limit_changes=(LimitChange(action=0, limit=None, asked_at=at(29), answered_at=at(31)),),
    )
    lifted = replace(recording, stage=replace(recording.stage, drain_without_limit_after=2))
    figures = measure(lifted)
    assert (figures.ended, figures.most_held, figures.most_running) == (2, 1, 1)
    assert figures.seconds == pytest.approx(0.028)
    assert in_milliseconds(figures.hand_over) == (1, 2.0, 2.0)
    assert measure(recording).ended == 49


def test_an_empty_stage_has_no_figures() -> None:
    figures = measure(hand_made())
    assert (figures.ended, figures.executions_per_second, figures.most_held) == (0, 0.0, 0)
    assert (figures.hand_over, figures.answer, figures.idle_share, figures.started_out_of_order) == (
        None,
    ) * 4


def judged(plan: Plan) -> Judged:
    recording = lawful(replace(plan, executions=60))
    return recording, judge(recording), measure(recording)


def test_the_five_figures_come_from_the_stages_that_are_meant_for_them() -> None:
    stages = {
        "load": judged(Plan(purpose=Purpose.LOAD)),
        "limited": judged(Plan(purpose=Purpose.THROUGHPUT, limit=2)),
        "unlimited": judged(Plan(purpose=Purpose.THROUGHPUT, limit=None)),
        "alone": judged(Plan(purpose=Purpose.HAND_OVER, limit=1, actions=1, spacing_ns=0)),
        "deep": judged(Plan(purpose=Purpose.DEPTH, limit=1)),
        "ten keys": judged(Plan(purpose=Purpose.KEYS, keys=10)),
        "one key": judged(Plan(purpose=Purpose.KEYS, keys=0)),
    }
    five = five_figures(list(stages.values()))
    assert five.limit == 2
    assert five.per_second_limited == stages["limited"][2].executions_per_second
    assert five.per_second_unlimited == stages["unlimited"][2].executions_per_second
    assert five.hand_over == stages["alone"][2].hand_over
    assert five.hand_over is not None
    assert [(point.at, point.hand_over) for point in five.by_depth] == [(60, stages["deep"][2].hand_over)]
    assert [point.at for point in five.by_keys] == [1, 10]
    assert (five.order_violations, five.limit_violations, five.other_violations) == (0, 0, 0)


def test_a_run_without_such_stages_has_no_such_figures() -> None:
    five = five_figures([judged(Plan(purpose=Purpose.LOAD))])
    assert (five.limit, five.per_second_limited, five.per_second_unlimited, five.hand_over) == (None,) * 4
    assert (five.by_depth, five.by_keys, five.recoveries) == ((), (), ())


def test_violations_are_added_up_by_what_they_break() -> None:
    two_at_once = hand_made(
        Life(id=1, since=0, granted=3, ended=9), Life(id=2, since=0, granted=2, ended=8), collapses=("it",)
    )
    five = five_figures([(two_at_once, judge(two_at_once), measure(two_at_once))] * 2)
    assert (five.order_violations, five.limit_violations, five.other_violations) == (4, 4, 2)
