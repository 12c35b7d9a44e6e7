"""Every picture is drawn for any recording: empty, one row, or a few hundred thousand."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.unit.stress.histories import BEGAN_AT, NewLimit, Plan, enlarged, lawful
from tests.unit.stress.reports import (
    KILLED_AT,
    nothing_happened,
    one_execution,
    run_report,
    scenario_report,
)
from turnstile.stress.metrics.values import Spread
from turnstile.stress.recording import SECOND, LimitChange, Recording, RunEnd
from turnstile.stress.report.charts.fault import LANES_MAX, Lanes, draw_fault, lay_out
from turnstile.stress.report.charts.gallery import FAULTS_MAX, faults_to_draw
from turnstile.stress.report.charts.latency import draw_cost, draw_handovers
from turnstile.stress.report.charts.levels import Bins, Levels, limit_spans
from turnstile.stress.report.charts.scenario import draw_flow, draw_occupancy
from turnstile.stress.report.charts.style import Picture, picture_style
from turnstile.stress.report.run_report import ScenarioReport
from turnstile.stress.scenario import FaultKind

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
        pytest.param(
            cache(lambda: enlarged(lawful(Plan(killed_at=KILLED_AT)), MANY // 400)), id="200,000 rows"
        ),
    ],
)


def drawn(draw: Callable[[ScenarioReport], Picture], recording: Recording) -> Picture:
    began = time.process_time()
    with picture_style():
        picture = draw(scenario_report(recording))
    assert picture.png.startswith(PNG)
    assert picture.alt
    assert picture.caption
    assert len(picture.png) < BYTES_MAX
    assert time.process_time() - began < SECONDS_MAX
    return picture


@every_size
@pytest.mark.parametrize("draw", [draw_flow, draw_occupancy, lambda report: draw_fault(report, 0)])
def test_a_recording_of_any_size_is_drawn(
    draw: Callable[[ScenarioReport], Picture], recording: Callable[[], Recording]
) -> None:
    faults = lawful(Plan(killed_at=KILLED_AT)).faults
    drawn(draw, replace(recording(), faults=faults))


@pytest.mark.parametrize("count", [0, 1, 4, MANY])
def test_handovers_are_drawn(count: int) -> None:
    handovers = np.random.default_rng(1).lognormal(1.0, 1.0, count)
    drawn(lambda report: draw_handovers(report, handovers), lawful() if count else nothing_happened())


def test_handovers_of_zero_duration_are_drawn() -> None:
    drawn(lambda report: draw_handovers(_without_latency(report), np.zeros(3)), lawful())


def _without_latency(report: ScenarioReport) -> ScenarioReport:
    nothing = Spread(count=3, p50_ms=0.0, p90_ms=0.0, p99_ms=0.0, max_ms=0.0)
    return replace(report, metrics=replace(report.metrics, hand_over=nothing))


def test_cost_needs_two_points() -> None:
    metrics = run_report().metrics
    with picture_style():
        assert draw_cost(replace(metrics, by_depth=metrics.by_depth[:1], by_keys=())) is None
        both = draw_cost(metrics)
        one = draw_cost(replace(metrics, by_keys=()))
    assert both is not None
    assert one is not None
    assert both.png.startswith(PNG)
    assert "concurrency keys" in both.alt
    assert "concurrency keys" not in one.alt


def test_a_scenario_of_many_queues_without_limit_is_drawn() -> None:
    drawn(draw_occupancy, lawful(Plan(actions=2, keys=40, limit=None)))


def test_the_number_of_drawn_faults_is_bounded_and_every_kind_is_included() -> None:
    report = scenario_report()
    (fault,) = report.recording.faults
    often = [replace(fault, target=f"worker-{number}") for number in range(2 * FAULTS_MAX)]
    faults = (*often, replace(fault, kind=FaultKind.RESTART_BROKER))
    chosen = faults_to_draw(scenario_report(replace(report.recording, faults=faults)))
    assert chosen == [*range(FAULTS_MAX - 1), len(faults) - 1]


def test_levels_equal_a_plain_count() -> None:
    random = np.random.default_rng(3)
    starts = random.integers(0, 1000, 300)
    ends = starts + random.integers(1, 80, 300)
    levels = Levels.of(starts, ends, Bins(np.arange(0, 1101, 50)))
    running = np.array([((starts <= at) & (ends > at)).sum() for at in range(1100)])
    assert levels.peak.tolist() == running.reshape(-1, 50).max(axis=1).tolist()
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
    shown = sorted((bar.execution_id, bar.attempt) for bar in lanes.bars if bar.lost)
    assert set(shown) >= {(int(run["execution_id"]), int(run["attempt"])) for run in lost}


def test_the_number_of_lanes_is_bounded() -> None:
    recording = lawful(Plan(killed_at=KILLED_AT, limit=None, spacing_ns=10_000, actions=1))
    assert around(recording).counts == (LANES_MAX,)


def test_a_changed_limit_shows_its_queue() -> None:
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


def test_a_correct_scenario_shows_no_excess() -> None:
    at = SECOND // 4
    recording = lawful(Plan(actions=1, limit=4, new_limits=(NewLimit(0, 1, at), NewLimit(0, 3, 2 * at))))
    attempts = recording.attempts
    bins = Bins.over(recording.began_at, recording.ended_at, 300)
    most = Levels.of(attempts["granted_at"], attempts["ended_at"], bins).peak
    spans = limit_spans(recording, 0)
    assert [span.lowered for span in spans] == [False, True, False]
    edges = bins.seconds_since(recording.began_at)
    assert not any(span.excess(edges, most).any() for span in spans)
    assert spans[1].excess(edges, np.where(edges[:-1] > 0.4, 2, most)).any()
