"""Draws what went through a stage over time: how many ended in each second, and how many waited.

In: the record of a stage. Out: two panels over the same time.
"""

from typing import Final

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from turnstile.stress.recording import Recording
from turnstile.stress.report.plots.levels import Bins, Levels
from turnstile.stress.report.plots.queues import busiest, name_of
from turnstile.stress.report.plots.style import (
    BLUE,
    INK,
    MUTED,
    SERIES,
    SKY,
    Picture,
    as_picture,
    counted,
    say_nothing_there,
)
from turnstile.stress.report.plots.timeline import Timeline, panels
from turnstile.stress.report.run_report import StageReport
from turnstile.stress.tables import NEVER, Instants

_BINS: Final = 500
_RATE_BINS: Final = 150
_WIDTHS_SECONDS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 600)
_LINES_MAX: Final = 12
_CAPTION: Final = (
    "Above, how many executions ended in each second, and (dotted) how many requests the broker confirmed. "
    "Below, how many waited for a slot: the dark line is all of them, the light ones single queues. Red "
    "shades: something was broken; a green line: from then on the system ran as before."
)


def draw_flow(report: StageReport) -> Picture:
    """Draw throughput and waiting depth of a stage."""
    recording = report.recording
    timeline = Timeline.of(report)
    title = f"{report.stage.title}: ended and waiting"
    figure, (rate, depth) = panels(title, timeline, [1.9, 1.7])
    ended = recording.executions["completed_at"]
    _draw_rate(rate, timeline, ended[ended != NEVER], recording.orders["confirmed_at"])
    most = _draw_depth(depth, recording, Bins.over(timeline.began_at, timeline.ended_at, _BINS))
    figure.align_ylabels()
    figures = report.figures
    return as_picture(
        figure,
        name=f"{report.stage.name}-flow",
        title=title,
        caption=_CAPTION,
        alt=f"{figures.ended:,} executions ended, {figures.executions_per_second:,.0f} a second; at most "
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
    counted(axes)
    # A burst of requests far above what ends would flatten what this is about.
    top = max(float(per_second.max()), 1.0)
    axes.set_ylim(0, 1.12 * max(top, min(float(sent.max()), 1.6 * top)))
    axes.set_ylabel("per second")
    axes.legend(loc="upper right", ncols=2)
    if not len(ended):
        say_nothing_there(axes, "Nothing ended")


def _draw_depth(axes: Axes, recording: Recording, bins: Bins) -> float:
    queue, since, until = _waits(recording)
    total = Levels.of(since, until, bins).most
    edges = bins.seconds_since(recording.began_at)
    lines = busiest(recording, _LINES_MAX)
    for number, each in enumerate(lines if len(lines) > 1 else ()):
        of_it = queue == each
        waiting = Levels.of(since[of_it], until[of_it], bins).most
        color, label = MUTED, "single queues" if number == 0 else None
        if len(lines) <= len(SERIES):
            color, label = SERIES[number], name_of(each, recording.stage.load)
        axes.stairs(waiting, edges, baseline=None, color=color, linewidth=0.8, alpha=0.8, label=label)
    axes.stairs(total, edges, baseline=None, color=INK, linewidth=1.4, label="all queues")
    most = float(total.max())
    counted(axes)
    axes.set_ylim(0, 1.12 * max(most, 1.0))
    axes.set_ylabel("waiting")
    if len(lines) > 1:
        axes.legend(loc="upper right", ncols=3, fontsize=8)
    return most


def _waits(recording: Recording) -> tuple[NDArray[np.int32], Instants, Instants]:
    """Return every wait for a slot, those included that no grant ended."""
    attempts, executions = recording.attempts, recording.executions
    never = ~np.isin(executions["execution_id"], attempts["execution_id"])
    columns = zip(
        ("queue", "waiting_since", "granted_at"), ("queue", "created_at", "completed_at"), strict=True
    )
    queue, since, until = (
        np.concatenate((attempts[first], executions[second][never])) for first, second in columns
    )
    return queue, since, until
