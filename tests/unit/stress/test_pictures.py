"""Every picture is drawn for a recording without rows, with one, or with many; `test_report` draws others."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.unit.stress.histories import BEGAN_AT, NewLimit, Plan, enlarged, valid_recording
from tests.unit.stress.reports import KILLED_AT, SPREAD, nothing_happened, one_execution, scenario_report
from turnstile.stress.recording import NEVER, SECOND, LimitChange, Recording, RunEnd
from turnstile.stress.report.charts import FAULTS_MAX, faults_to_draw
from turnstile.stress.report.charts.fault import LANES_MAX, Bar, draw_fault, lay_out
from turnstile.stress.report.charts.scenario import (
    draw_flow,
    draw_hand_overs,
    draw_occupancy,
    limit_steps,
    peaks,
)
from turnstile.stress.report.charts.style import Picture, picture_style
from turnstile.stress.report.run_report import ScenarioReport
from turnstile.stress.scenario import FaultKind

MANY = 50_000
PNG = b"\x89PNG"
SECONDS_MAX = 3.0
BYTES_MAX = 300_000

every_size = pytest.mark.parametrize(
    "recording",
    [
        pytest.param(nothing_happened, id="empty"),
        pytest.param(one_execution, id="single row"),
        pytest.param(
            cache(lambda: enlarged(valid_recording(Plan(killed_at=KILLED_AT)), MANY // 400)),
            id="50,000 rows",
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
    faults = valid_recording(Plan(killed_at=KILLED_AT)).faults
    drawn(draw, replace(recording(), faults=faults))


@pytest.mark.parametrize(
    "hand_overs", [[0.0, 0.0], [4.0], np.random.default_rng(1).lognormal(1.0, 1.0, MANY)]
)
def test_hand_overs_are_drawn(hand_overs: list[float]) -> None:
    drawn(lambda report: draw_hand_overs(report, np.array(hand_overs), SPREAD), valid_recording())


def test_the_number_of_drawn_faults_is_bounded_and_every_kind_is_included() -> None:
    report = scenario_report()
    (fault,) = report.recording.faults
    often = [replace(fault, target=f"worker-{number}") for number in range(2 * FAULTS_MAX)]
    faults = (*often, replace(fault, kind=FaultKind.RESTART_BROKER))
    chosen = faults_to_draw(scenario_report(replace(report.recording, faults=faults)))
    assert chosen == [*range(FAULTS_MAX - 1), len(faults) - 1]


def test_peaks_equal_a_plain_count() -> None:
    random = np.random.default_rng(3)
    starts = random.integers(0, 1000, 300)
    ends = starts + random.integers(1, 80, 300)
    edges = np.arange(0, 1101, 50)
    running = np.array([((starts <= at) & (ends > at)).sum() for at in range(1101)])
    assert peaks(starts, ends, edges).tolist() == [running[at : at + 51].max() for at in edges[:-1]]
    # One that ends when another starts does not overlap it, and one may never end or never start.
    touching = np.array([0, 10, NEVER]), np.array([10, NEVER, NEVER])
    assert peaks(*touching, np.array([0, 5, 20])).tolist() == [1, 1]


def around(recording: Recording) -> list[Bar]:
    return lay_out(recording, recording.faults[0], 5.0)


def test_lanes_are_the_slots_of_the_queues_that_lost_runs() -> None:
    recording = valid_recording(Plan(killed_at=KILLED_AT, limit=2))
    bars = around(recording)
    lost = recording.runs[recording.runs["end"] == RunEnd.KILLED]
    queues = {int(queue) for queue in lost["queue"]}
    assert {bar.queue for bar in bars} == queues
    for queue in queues:
        assert len({bar.lane for bar in bars if bar.queue == queue}) == 2
    shown = {(bar.execution_id, bar.attempt) for bar in bars if bar.lost}
    assert shown >= {(int(run["execution_id"]), int(run["attempt"])) for run in lost}


def test_the_number_of_lanes_is_bounded() -> None:
    recording = valid_recording(Plan(killed_at=KILLED_AT, limit=None, spacing_ns=10_000, actions=1))
    assert {bar.lane for bar in around(recording)} == set(range(LANES_MAX))


def test_a_changed_limit_shows_its_queue() -> None:
    recording = valid_recording(
        Plan(killed_at=KILLED_AT, new_limits=(NewLimit(action=1, limit=4, at=KILLED_AT),))
    )
    fault = replace(recording.faults[0], kind=FaultKind.CHANGE_LIMIT, target="stress.01")
    assert {bar.queue for bar in around(replace(recording, faults=(fault,)))} == {1}


def test_the_limit_line_follows_every_change() -> None:
    change = LimitChange(action=1, limit=2, asked_at=BEGAN_AT, answered_at=BEGAN_AT + 2 * SECOND)
    recording = replace(valid_recording(Plan(keys=2, limit=4)), limit_changes=(change,))
    assert limit_steps(recording, 3) == ([0.0, 2.0], [4.0, 2.0])
    assert limit_steps(recording, 1) == ([0.0], [4.0])
