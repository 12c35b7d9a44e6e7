"""Every picture comes out, whatever a recording holds: nothing, one row, or a few hundred thousand."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import matplotlib as mpl
import numpy as np
import pytest

from tests.unit.stress.histories import BEGAN_AT, NewLimit, Plan, lawful
from tests.unit.stress.reports import (
    KILLED_AT,
    many,
    nothing_happened,
    one_execution,
    run_report,
    stage_report,
)
from turnstile.stress.figures.values import Spread
from turnstile.stress.recording import LimitChange, Recording
from turnstile.stress.report.plots.cost import draw_cost
from turnstile.stress.report.plots.fault import draw_fault
from turnstile.stress.report.plots.flow import draw_flow
from turnstile.stress.report.plots.gallery import FAULTS_MAX, faults_to_draw
from turnstile.stress.report.plots.handover import draw_hand_over
from turnstile.stress.report.plots.lanes import LANES_MAX, Lanes, lay_out
from turnstile.stress.report.plots.levels import Bins, Levels
from turnstile.stress.report.plots.limits import LimitSpan, limit_spans
from turnstile.stress.report.plots.occupancy import draw_occupancy
from turnstile.stress.report.plots.style import Picture, look
from turnstile.stress.report.run_report import StageReport
from turnstile.stress.stage import FaultKind
from turnstile.stress.tables import NEVER, SECOND, RunEnd

MANY = 200_000
PNG = b"\x89PNG"
SECONDS_MAX = 4.0
BYTES_MAX = 300_000

every_size = pytest.mark.parametrize(
    "recording",
    [
        pytest.param(lambda: lawful(Plan(killed_at=KILLED_AT)), id="lawful"),
        pytest.param(nothing_happened, id="empty"),
        pytest.param(one_execution, id="single row"),
        pytest.param(cache(lambda: many(MANY)), id="200,000 rows"),
    ],
)


def drawn(draw: Callable[[StageReport], Picture], recording: Recording) -> Picture:
    began = time.process_time()
    with look():
        picture = draw(stage_report(recording))
    assert picture.png.startswith(PNG)
    assert picture.alt
    assert picture.caption
    assert len(picture.png) < BYTES_MAX
    assert time.process_time() - began < SECONDS_MAX
    return picture


@every_size
def test_the_flow_is_drawn(recording: Callable[[], Recording]) -> None:
    drawn(draw_flow, recording())


@every_size
def test_the_slots_are_drawn(recording: Callable[[], Recording]) -> None:
    drawn(draw_occupancy, recording())


@every_size
def test_a_fault_is_drawn(recording: Callable[[], Recording]) -> None:
    faults = lawful(Plan(killed_at=KILLED_AT)).faults
    drawn(lambda report: draw_fault(report, 0), replace(recording(), faults=faults))


@pytest.mark.parametrize("count", [0, 1, 4, MANY])
def test_hand_overs_are_drawn(count: int) -> None:
    hand_overs = np.random.default_rng(1).lognormal(1.0, 1.0, count)
    drawn(lambda report: draw_hand_over(report, hand_overs), lawful() if count else nothing_happened())


def test_hand_overs_that_took_no_time_are_drawn() -> None:
    drawn(lambda report: draw_hand_over(_without_latency(report), np.zeros(3)), lawful())


def _without_latency(report: StageReport) -> StageReport:
    nothing = Spread(count=3, p50_ms=0.0, p90_ms=0.0, p99_ms=0.0, max_ms=0.0)
    return replace(report, figures=replace(report.figures, hand_over=nothing))


def test_cost_needs_two_points_to_be_a_line() -> None:
    five = run_report().five
    with look():
        assert draw_cost(replace(five, by_depth=five.by_depth[:1], by_keys=())) is None
        both = draw_cost(five)
        one = draw_cost(replace(five, by_keys=()))
    assert both is not None
    assert one is not None
    assert both.png.startswith(PNG)
    assert "concurrency keys" in both.alt
    assert "concurrency keys" not in one.alt


def test_a_stage_of_many_queues_without_limit_is_drawn() -> None:
    drawn(draw_occupancy, lawful(Plan(actions=2, keys=40, limit=None)))


def test_no_more_faults_are_drawn_than_a_page_can_bear_and_every_kind_comes_first() -> None:
    report = stage_report()
    (fault,) = report.recording.faults
    often = [replace(fault, target=f"worker-{number}") for number in range(2 * FAULTS_MAX)]
    faults = (*often, replace(fault, kind=FaultKind.RESTART_BROKER))
    chosen = faults_to_draw(stage_report(replace(report.recording, faults=faults)))
    assert chosen == [*range(FAULTS_MAX - 1), len(faults) - 1]


def test_drawing_leaves_the_settings_of_matplotlib_alone() -> None:
    before = dict(mpl.rcParams)
    drawn(draw_flow, one_execution())
    assert dict(mpl.rcParams) == before


def test_a_place_that_is_handed_on_is_not_counted_twice() -> None:
    starts, ends = np.array([0, 10, 20, 30]), np.array([10, 20, 30, NEVER])
    levels = Levels.of(starts, ends, Bins(np.array([0, 20, 40])))
    assert levels.most.tolist() == [1, 1]
    assert levels.mean.tolist() == [1, 1]


def test_the_most_in_a_bin_is_not_averaged_away() -> None:
    starts, ends = np.array([0, 50, 51, NEVER]), np.array([100, 52, 52, NEVER])
    levels = Levels.of(starts, ends, Bins(np.array([0, 40, 80, 200])))
    assert levels.most.tolist() == [1, 3, 1]
    assert levels.mean == pytest.approx([1, 43 / 40, 20 / 120])


def test_levels_agree_with_a_plain_count() -> None:
    random = np.random.default_rng(3)
    starts = random.integers(0, 1000, 300)
    ends = starts + random.integers(1, 80, 300)
    levels = Levels.of(starts, ends, Bins(np.arange(0, 1101, 50)))
    running = np.array([((starts <= at) & (ends > at)).sum() for at in range(1100)])
    assert levels.most.tolist() == running.reshape(-1, 50).max(axis=1).tolist()
    assert levels.mean == pytest.approx(running.reshape(-1, 50).mean(axis=1))


def around(recording: Recording) -> Lanes:
    fault = recording.faults[0]
    return lay_out(recording, fault, fault.began_at - 2 * SECOND, fault.began_at + 5 * SECOND)


def test_lanes_are_the_slots_of_the_queues_that_lost_runs() -> None:
    recording = lawful(Plan(killed_at=KILLED_AT, limit=2))
    lanes = around(recording)
    lost = recording.runs[recording.runs["end"] == RunEnd.KILLED]
    assert set(lanes.queues) == {int(queue) for queue in lost["queue"]}
    assert lanes.counts == (2,) * len(lanes.queues)
    shown = sorted((bar.execution_id, bar.attempt) for bar in lanes.bars if bar.cut_off)
    assert set(shown) >= {(int(run["execution_id"]), int(run["attempt"])) for run in lost}


def test_a_slot_of_a_lost_worker_stays_empty_until_its_lease_is_over() -> None:
    lanes = around(lawful(Plan(killed_at=KILLED_AT)))
    for one in lanes.bars:
        after = [other.began for other in lanes.bars if other.lane == one.lane and other.began > one.began]
        assert min(after, default=one.held_until) >= one.held_until


def test_a_run_that_was_cut_off_leads_to_the_next_of_its_execution() -> None:
    lanes = around(lawful(Plan(killed_at=KILLED_AT)))
    again = list(lanes.again)
    assert len(again) == sum(bar.cut_off for bar in lanes.bars) > 0
    assert all(
        (other.execution_id, other.attempt) == (one.execution_id, one.attempt + 1)
        and other.began >= one.held_until
        for one, other in again
    )


def test_a_run_whose_end_nobody_saw_lasts_until_it_ran_again() -> None:
    recording = lawful(Plan(killed_at=KILLED_AT))
    lost = recording.runs["end"] == RunEnd.KILLED
    recording.runs["end"][lost], recording.runs["stopped_at"][lost] = RunEnd.UNKNOWN, NEVER
    lanes = around(recording)
    ends = [one.ended - other.began for one, other in lanes.again if one.ended > 0.1]
    assert ends == pytest.approx([0.0] * int(lost.sum()))


def test_slots_without_end_are_cut_at_what_a_picture_can_hold() -> None:
    recording = lawful(Plan(killed_at=KILLED_AT, limit=None, spacing_ns=10_000, actions=1))
    assert around(recording).counts == (LANES_MAX,)


def test_a_changed_limit_shows_the_queue_that_it_was_changed_for() -> None:
    recording = lawful(Plan(killed_at=KILLED_AT, new_limits=(NewLimit(action=1, limit=4, at=KILLED_AT),)))
    fault = replace(recording.faults[0], kind=FaultKind.CHANGE_LIMIT, target="stress.01")
    assert around(replace(recording, faults=(fault,))).queues == (1,)


def test_the_limit_line_follows_every_change() -> None:
    plan = Plan(keys=2, limit=4, opened_at=SECOND)
    change = LimitChange(action=1, limit=None, asked_at=BEGAN_AT, answered_at=BEGAN_AT + 2 * SECOND)
    recording = replace(lawful(plan), limit_changes=(change,))
    assert [(span.began, span.limit) for span in limit_spans(recording, 3)] == [
        (0.0, 0),
        (1.0, 4),
        (2.0, None),
    ]
    assert [(span.began, span.limit) for span in limit_spans(recording, 1)] == [(0.0, 0), (1.0, 4)]


EDGES = np.arange(8.0)


def test_what_stands_above_a_limit_is_shown_but_in_the_bin_of_its_change() -> None:
    span = LimitSpan(began=1.5, ended=5.5, limit=2)
    assert span.excess(EDGES, np.array([9.0, 9, 3, 2, 4, 9, 9])).tolist() == [0, 0, 1, 0, 2, 0, 0]


def test_what_was_begun_under_a_higher_limit_may_end_but_not_be_replaced() -> None:
    span = LimitSpan(began=0.0, ended=9.0, limit=2, lowered=True)
    assert span.excess(EDGES, np.array([4.0, 4, 3, 4, 3, 2, 3])).tolist() == [0, 0, 0, 2, 0, 0, 1]


def test_a_lawful_stage_shows_no_excess() -> None:
    at = SECOND // 4
    recording = lawful(Plan(actions=1, limit=4, new_limits=(NewLimit(0, 1, at), NewLimit(0, 3, 2 * at))))
    attempts = recording.attempts
    bins = Bins.over(recording.began_at, recording.ended_at, 300)
    most = Levels.of(attempts["granted_at"], attempts["ended_at"], bins).most
    spans = limit_spans(recording, 0)
    assert [span.lowered for span in spans] == [False, True, False]
    edges = bins.seconds_since(recording.began_at)
    assert not any(span.excess(edges, most).any() for span in spans)
    assert spans[1].excess(edges, np.where(edges[:-1] > 0.4, 2, most)).any()
