"""Draws a scenario over time: throughput and queue length, and the slots of each queue against its limit."""

from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from turnstile.stress.recording import NEVER, Instants, Recording, Table
from turnstile.stress.report.charts.levels import (
    Bins,
    Floats,
    Levels,
    LimitSpan,
    busiest_queues,
    limit_spans,
    queue_name,
)
from turnstile.stress.report.charts.style import (
    BLUE,
    INK,
    MUTED,
    RED,
    SERIES,
    SKY,
    Picture,
    as_picture,
    count_axis,
    show_empty,
)
from turnstile.stress.report.charts.timeline import Timeline, panels
from turnstile.stress.report.run_report import ScenarioReport

_BINS: Final = 500
_RATE_BINS: Final = 150
_WIDTHS_SECONDS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 600)
_LINES_MAX: Final = 12
_FLOW_CAPTION: Final = (
    "Above: executions ended per second, and (dotted) requests confirmed by the broker. Below: executions "
    "waiting for a slot, in all queues (dark line) and in single queues. Red areas are faults; a green line "
    "marks the recovery."
)
QUEUES_MAX: Final = 12
_PANEL_INCHES: Final = 0.72
_SLOTS_CAPTION: Final = (
    "Slots of each queue over time. The blue line is the peak number of held slots, by the history; the "
    "light area is the peak number of running executions, by the actions' own clocks, the dark area their "
    "mean. Nothing may exceed the dashed line, the limit; violations are red. Executions that started before "
    "a limit was lowered may end above it."
)


def draw_flow(report: ScenarioReport) -> Picture:
    """Draw throughput and queue length of a scenario over time."""
    recording = report.recording
    timeline = Timeline.of(report)
    title = f"{report.scenario.title}: throughput and queue length"
    figure, (rate, depth) = panels(title, timeline, [1.9, 1.7])
    ended = recording.executions["completed_at"]
    _draw_rate(rate, timeline, ended[ended != NEVER], recording.orders["confirmed_at"])
    most = _draw_depth(depth, recording, Bins.over(timeline.began_at, timeline.ended_at, _BINS))
    figure.align_ylabels()
    metrics = report.metrics
    return as_picture(
        figure,
        name=f"{report.scenario.name}-flow",
        title=title,
        caption=_FLOW_CAPTION,
        alt=f"{metrics.ended:,} executions ended, {metrics.executions_per_second:,.0f} per second; at most "
        f"{most:,.0f} waited at once; {len(timeline.faults)} fault{'s' * (len(timeline.faults) != 1)}.",
    )


def _draw_rate(axes: Axes, timeline: Timeline, ended: Instants, confirmed: Instants) -> None:
    width = next(
        (w for w in _WIDTHS_SECONDS if timeline.seconds / w <= _RATE_BINS), timeline.seconds / _RATE_BINS
    )
    bins = Bins.of_seconds(timeline.began_at, timeline.ended_at, width)
    edges = bins.seconds_since(timeline.began_at)
    per_second = bins.counts(ended) / width
    axes.stairs(per_second, edges, fill=True, color=SKY, alpha=0.5, linewidth=0)
    axes.stairs(per_second, edges, baseline=None, color=BLUE, linewidth=1, label="ended")
    sent = bins.counts(confirmed[confirmed != NEVER]) / width
    axes.stairs(sent, edges, baseline=None, color=INK, linewidth=1, linestyle=":", label="requested")
    count_axis(axes)
    # A burst of requests must not flatten the curve of ended executions.
    top = max(float(per_second.max()), 1.0)
    axes.set_ylim(0, 1.12 * max(top, min(float(sent.max()), 1.6 * top)))
    axes.set_ylabel("per second")
    axes.legend(loc="upper right", ncols=2)
    if not len(ended):
        show_empty(axes, "No execution ended")


def _draw_depth(axes: Axes, recording: Recording, bins: Bins) -> float:
    queue, since, until = _waits(recording)
    total = Levels.of(since, until, bins).peak
    edges = bins.seconds_since(recording.began_at)
    lines = busiest_queues(recording, _LINES_MAX)
    for number, each in enumerate(lines if len(lines) > 1 else ()):
        of_it = queue == each
        waiting = Levels.of(since[of_it], until[of_it], bins).peak
        color, label = MUTED, "single queues" if number == 0 else None
        if len(lines) <= len(SERIES):
            color, label = SERIES[number], queue_name(each, recording.scenario.load)
        axes.stairs(waiting, edges, baseline=None, color=color, linewidth=0.8, alpha=0.8, label=label)
    axes.stairs(total, edges, baseline=None, color=INK, linewidth=1.4, label="all queues")
    most = float(total.max())
    count_axis(axes)
    axes.set_ylim(0, 1.12 * max(most, 1.0))
    axes.set_ylabel("waiting")
    if len(lines) > 1:
        axes.legend(loc="upper right", ncols=3, fontsize=8)
    return most


def _waits(recording: Recording) -> tuple[NDArray[np.int32], Instants, Instants]:
    """Return every wait for a slot, including those without a grant."""
    attempts, executions = recording.attempts, recording.executions
    never = ~np.isin(executions["execution_id"], attempts["execution_id"])
    columns = zip(
        ("queue", "waiting_since", "granted_at"), ("queue", "created_at", "completed_at"), strict=True
    )
    queue, since, until = (
        np.concatenate((attempts[first], executions[second][never])) for first, second in columns
    )
    return queue, since, until


def draw_occupancy(report: ScenarioReport) -> Picture:
    """Draw the slots of the busiest queues over time."""
    recording = report.recording
    timeline = Timeline.of(report)
    queues = busiest_queues(recording, QUEUES_MAX)
    title = f"{report.scenario.title}: slots held and running"
    figure, axes = panels(title, timeline, [_PANEL_INCHES] * max(len(queues), 1))
    # Without the time before the resume, and after the limit was lifted.
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
        panel.set_ylabel(
            queue_name(queue, report.scenario.load), rotation=0, ha="right", va="center", fontsize=8.5
        )
    if queues:
        figure.legend(
            handles=_legend(limited=report.scenario.limit is not None), loc="outside upper right", ncols=4
        )
    else:
        show_empty(axes[0], "No slot was held")
    all_of = report.scenario.load.queues
    return as_picture(
        figure,
        name=f"{report.scenario.name}-slots",
        title=title,
        caption=_SLOTS_CAPTION
        + (f" Shown are the {QUEUES_MAX} busiest of {all_of:,} queues." if all_of > QUEUES_MAX else ""),
        alt=f"Slots held and running over {timeline.seconds:.1f} s in {len(queues)} queues. Peak slots of "
        f"one queue: {report.metrics.peak_slots}; peak running: {report.metrics.peak_runs}; "
        f"limit: {'none' if report.scenario.limit is None else report.scenario.limit}.",
    )


def _by_queue(table: Table, queues: list[int]) -> dict[int, Table]:
    return {queue: table[table["queue"] == queue] for queue in queues}


def _draw_queue(panel: Axes, edges: Floats, held: Levels, running: Levels, spans: list[LimitSpan]) -> None:
    panel.stairs(running.peak, edges, fill=True, color=SKY, alpha=0.45, linewidth=0)
    panel.stairs(running.mean, edges, fill=True, color=BLUE, alpha=0.55, linewidth=0)
    panel.stairs(held.peak, edges, baseline=None, color=BLUE, linewidth=1)
    limits = [span.limit for span in spans if span.limit is not None]
    top = max(*limits, 1, held.peak.max(), running.peak.max())
    count_axis(panel, ticks=2)
    panel.set_ylim(0, top * 1.22)
    if limits:
        panel.set_yticks([0, top])
    for span in spans:
        if span.limit is None:
            continue
        end = min(span.ended, float(edges[-1]))
        panel.hlines(span.limit, span.began, end, color=INK, linewidth=1.1, linestyle=(0, (5, 2)))
        over = span.excess(edges, np.maximum(held.peak, running.peak))
        if over.any():
            panel.stairs(
                over + span.limit, edges, baseline=span.limit, fill=True, color=RED, hatch="////", linewidth=0
            )


def _legend(*, limited: bool) -> list[Line2D | Patch]:
    limit = Line2D([], [], color=INK, linestyle=(0, (5, 2)), linewidth=1.1, label="limit")
    return [
        *([limit] if limited else []),
        Line2D([], [], color=BLUE, linewidth=1.2, label="held, peak"),
        Patch(color=SKY, alpha=0.45, linewidth=0, label="running, peak"),
        Patch(color=BLUE, alpha=0.55, linewidth=0, label="running, mean"),
    ]
