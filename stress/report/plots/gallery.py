"""Chooses the pictures of a stage: what went through, how full it was, and what happened around each fault.

In: a stage's report. Out: its pictures, in the order in which they are shown.
"""

from collections.abc import Iterator
from typing import Final

from turnstile.stress.figures.hand_over import hand_overs
from turnstile.stress.report.plots.cost import draw_cost
from turnstile.stress.report.plots.fault import draw_fault
from turnstile.stress.report.plots.flow import draw_flow
from turnstile.stress.report.plots.handover import draw_hand_over
from turnstile.stress.report.plots.occupancy import draw_occupancy
from turnstile.stress.report.plots.style import Picture, look
from turnstile.stress.report.run_report import RunReport, StageReport

_MILLISECOND_NS: Final = 1_000_000
FAULTS_MAX: Final = 12
"""So many of one stage have a picture of their own; more would make a page that nobody can load."""


def pictures_of_run(report: RunReport) -> tuple[Picture, ...]:
    """Draw what all stages together show."""
    with look():
        cost = draw_cost(report.five)
    return () if cost is None else (cost,)


def pictures_of(report: StageReport) -> tuple[Picture, ...]:
    """Draw one stage."""
    with look():
        return tuple(_pictures(report))


def _pictures(report: StageReport) -> Iterator[Picture]:
    yield draw_flow(report)
    yield draw_occupancy(report)
    handed_ns = hand_overs(report.recording).stop_to_start_ns
    if len(handed_ns):
        yield draw_hand_over(report, handed_ns / _MILLISECOND_NS)
    for number in faults_to_draw(report):
        yield draw_fault(report, number)


def faults_to_draw(report: StageReport) -> list[int]:
    """Return which faults of a stage have a picture, counted from 0: of each kind the first ones."""
    faults = report.recording.faults
    seen: dict[str, int] = {}
    rounds = []
    for number, fault in enumerate(faults):
        seen[fault.kind] = seen.get(fault.kind, 0) + 1
        rounds.append((seen[fault.kind], number))
    return sorted(number for _, number in sorted(rounds)[:FAULTS_MAX])
