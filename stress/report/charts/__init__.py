"""Chooses and draws the pictures of a scenario, in display order.

`scenario` draws throughput, slots and hand-overs, `fault` the runs around one fault; `style` is common.
"""

from collections.abc import Iterator
from typing import Final

from turnstile.stress.metrics.scenario import hand_overs
from turnstile.stress.report.charts.fault import draw_fault
from turnstile.stress.report.charts.scenario import draw_flow, draw_hand_overs, draw_occupancy
from turnstile.stress.report.charts.style import Picture, picture_style
from turnstile.stress.report.run_report import ScenarioReport

_MILLISECOND_NS: Final = 1_000_000
FAULTS_MAX: Final = 12
"""The maximum number of fault pictures per scenario, which bounds the size of the page."""


def pictures_of(report: ScenarioReport) -> tuple[Picture, ...]:
    """Draw one scenario."""
    with picture_style():
        return tuple(_pictures(report))


def _pictures(report: ScenarioReport) -> Iterator[Picture]:
    yield draw_flow(report)
    yield draw_occupancy(report)
    handed_ns = hand_overs(report.recording).stop_to_start_ns
    if len(handed_ns) and report.metrics.hand_over is not None:
        yield draw_hand_overs(report, handed_ns / _MILLISECOND_NS, report.metrics.hand_over)
    for number in faults_to_draw(report):
        yield draw_fault(report, number)


def faults_to_draw(report: ScenarioReport) -> list[int]:
    """Return the indices of the faults with a picture: the first ones of each kind."""
    kinds = [fault.kind for fault in report.recording.faults]
    by_occurrence = sorted((kinds[:number].count(kind), number) for number, kind in enumerate(kinds))
    return sorted(number for _, number in by_occurrence[:FAULTS_MAX])
