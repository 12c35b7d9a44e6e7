"""Draws how full each queue was against its limit: the proof that a limit held, and what of it was used.

In: the attempts (slots held, by the record) and runs (what really ran) of a stage. Out: one panel for each of
the busiest queues, all over the same time.
"""

from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from turnstile.stress.report.plots.levels import Bins, Floats, Levels
from turnstile.stress.report.plots.limits import LimitSpan, limit_spans
from turnstile.stress.report.plots.queues import busiest, name_of
from turnstile.stress.report.plots.style import (
    BLUE,
    INK,
    RED,
    SKY,
    Picture,
    as_picture,
    counted,
    say_nothing_there,
)
from turnstile.stress.report.plots.timeline import Timeline, panels
from turnstile.stress.report.run_report import StageReport
from turnstile.stress.tables import Table

QUEUES_MAX: Final = 12
_BINS: Final = 500
_PANEL_INCHES: Final = 0.72
_CAPTION: Final = (
    "Slots of each queue over time. The blue line is the most that were held at once in each moment, by the "
    "record; the light area is the most that really ran, by the actions' own clocks, the dark area how many "
    "ran on average. Nothing may rise above the dashed line, which is the limit; what does is red. What had "
    "begun before a limit was lowered may end above it."
)


def draw_occupancy(report: StageReport) -> Picture:
    """Draw the slots of the busiest queues over time."""
    recording = report.recording
    timeline = Timeline.of(report)
    queues = busiest(recording, QUEUES_MAX)
    title = f"{report.stage.title}: slots held and running"
    figure, axes = panels(title, timeline, [_PANEL_INCHES] * max(len(queues), 1))
    # What was held back, and what ran without its limit in the end, would leave no room for what matters.
    began, ended = timeline.opened or 0.0, timeline.lifted or timeline.seconds
    bins = Bins.over(timeline.at(began), timeline.at(ended), _BINS)
    axes[0].set_xlim(began, ended)
    held = _by_queue(recording.attempts, queues)
    ran = _by_queue(recording.runs, queues)
    for panel, queue in zip(axes, queues, strict=False):
        _draw_queue(
            panel,
            bins.seconds_since(timeline.began_at),
            Levels.of(held[queue]["granted_at"], held[queue]["ended_at"], bins),
            Levels.of(ran[queue]["started_at"], ran[queue]["stopped_at"], bins),
            limit_spans(recording, queue),
        )
        panel.set_ylabel(name_of(queue, report.stage.load), rotation=0, ha="right", va="center", fontsize=8.5)
    if queues:
        figure.legend(
            handles=_legend(limited=report.stage.limit is not None), loc="outside upper right", ncols=4
        )
    else:
        say_nothing_there(axes[0], "No slot was ever held")
    all_of = report.stage.load.queues
    return as_picture(
        figure,
        name=f"{report.stage.name}-slots",
        title=title,
        caption=_CAPTION
        + (f" The {QUEUES_MAX} busiest of {all_of:,} queues." if all_of > QUEUES_MAX else ""),
        alt=f"Slots held and running over {timeline.seconds:.1f} s in {len(queues)} queues. Most held in one "
        f"queue: {report.figures.most_held}; most running: {report.figures.most_running}; "
        f"limit: {'none' if report.stage.limit is None else report.stage.limit}.",
    )


def _by_queue(table: Table, queues: list[int]) -> dict[int, Table]:
    return {queue: table[table["queue"] == queue] for queue in queues}


def _draw_queue(panel: Axes, edges: Floats, held: Levels, running: Levels, spans: list[LimitSpan]) -> None:
    panel.stairs(running.most, edges, fill=True, color=SKY, alpha=0.45, linewidth=0)
    panel.stairs(running.mean, edges, fill=True, color=BLUE, alpha=0.55, linewidth=0)
    panel.stairs(held.most, edges, baseline=None, color=BLUE, linewidth=1)
    limits = [span.limit for span in spans if span.limit is not None]
    top = max(*limits, 1, held.most.max(), running.most.max())
    counted(panel, ticks=2)
    panel.set_ylim(0, top * 1.22)
    if limits:
        panel.set_yticks([0, top])
    for span in spans:
        if span.limit is None:
            continue
        end = min(span.ended, float(edges[-1]))
        panel.hlines(span.limit, span.began, end, color=INK, linewidth=1.1, linestyle=(0, (5, 2)))
        over = span.excess(edges, np.maximum(held.most, running.most))
        if over.any():
            panel.stairs(
                over + span.limit, edges, baseline=span.limit, fill=True, color=RED, hatch="////", linewidth=0
            )


def _legend(*, limited: bool) -> list[Line2D | Patch]:
    limit = Line2D([], [], color=INK, linestyle=(0, (5, 2)), linewidth=1.1, label="limit")
    return [
        *([limit] if limited else []),
        Line2D([], [], color=BLUE, linewidth=1.2, label="held, most"),
        Patch(color=SKY, alpha=0.45, linewidth=0, label="running, most"),
        Patch(color=BLUE, alpha=0.55, linewidth=0, label="running, mean"),
    ]
