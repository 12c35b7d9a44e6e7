"""Chooses and draws the pictures of a run and of each scenario, in display order."""

from collections.abc import Iterator
from typing import Final

from turnstile.stress.metrics.scenario import handovers
from turnstile.stress.report.charts.fault import draw_fault
from turnstile.stress.report.charts.latency import draw_cost, draw_handovers
from turnstile.stress.report.charts.scenario import draw_flow, draw_occupancy
from turnstile.stress.report.charts.style import Picture, picture_style
from turnstile.stress.report.run_report import RunReport, ScenarioReport

_MILLISECOND_NS: Final = 1_000_000
FAULTS_MAX: Final = 12
"""The maximum number of fault pictures per scenario, which bounds the size of the page."""


def pictures_of_run(report: RunReport) -> tuple[Picture, ...]:
    """Draw the pictures of the whole run."""
    with picture_style():
        cost = draw_cost(report.metrics)
    return () if cost is None else (cost,)


def pictures_of_scenario(report: ScenarioReport) -> tuple[Picture, ...]:
    """Draw one scenario."""
    with picture_style():
        return tuple(_pictures(report))


def _pictures(report: ScenarioReport) -> Iterator[Picture]:
    yield draw_flow(report)
    yield draw_occupancy(report)
    handed_ns = handovers(report.recording).stop_to_start_ns
    if len(handed_ns):
        yield draw_handovers(report, handed_ns / _MILLISECOND_NS)
    for number in faults_to_draw(report):
        yield draw_fault(report, number)


def faults_to_draw(report: ScenarioReport) -> list[int]:
    """Return the indices of the faults with a picture: the first ones of each kind."""
    faults = report.recording.faults
    counts: dict[str, int] = {}
    by_occurrence = []
    for number, fault in enumerate(faults):
        counts[fault.kind] = counts.get(fault.kind, 0) + 1
        by_occurrence.append((counts[fault.kind], number))
    return sorted(number for _, number in sorted(by_occurrence)[:FAULTS_MAX])
