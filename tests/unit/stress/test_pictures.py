"""Every picture is drawn for any recording: empty, one row, or a load with a killed worker."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.stress.histories import BEGAN_AT, Plan, lawful
from tests.unit.stress.reports import (
    KILLED_AT,
    nothing_happened,
    one_execution,
    scenario_report,
)
from turnstile.stress.recording import SECOND, LimitChange, Recording
from turnstile.stress.report.charts.fault import draw_fault
from turnstile.stress.report.charts.levels import Bins, Levels, limit_spans
from turnstile.stress.report.charts.scenario import draw_flow, draw_occupancy
from turnstile.stress.report.charts.style import Picture, picture_style
from turnstile.stress.report.run_report import ScenarioReport

PNG = b"\x89PNG"
BYTES_MAX = 300_000

every_size = pytest.mark.parametrize(
    "recording",
    [
        pytest.param(lambda: lawful(Plan(killed_at=KILLED_AT)), id="lawful"),
        pytest.param(nothing_happened, id="empty"),
        pytest.param(one_execution, id="single row"),
    ],
)


def drawn(draw: Callable[[ScenarioReport], Picture], recording: Recording) -> Picture:
    with picture_style():
        picture = draw(scenario_report(recording))
    assert picture.png.startswith(PNG)
    assert picture.alt
    assert picture.caption
    assert len(picture.png) < BYTES_MAX
    return picture


@every_size
@pytest.mark.parametrize("draw", [draw_flow, draw_occupancy, lambda report: draw_fault(report, 0)])
def test_a_recording_of_any_size_is_drawn(
    draw: Callable[[ScenarioReport], Picture], recording: Callable[[], Recording]
) -> None:
    faults = lawful(Plan(killed_at=KILLED_AT)).faults
    drawn(draw, replace(recording(), faults=faults))


def test_levels_equal_a_plain_count() -> None:
    random = np.random.default_rng(3)
    starts = random.integers(0, 1000, 300)
    ends = starts + random.integers(1, 80, 300)
    levels = Levels.of(starts, ends, Bins(np.arange(0, 1101, 50)))
    running = np.array([((starts <= at) & (ends > at)).sum() for at in range(1100)])
    assert levels.peak.tolist() == running.reshape(-1, 50).max(axis=1).tolist()
    assert levels.mean == pytest.approx(running.reshape(-1, 50).mean(axis=1))


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
