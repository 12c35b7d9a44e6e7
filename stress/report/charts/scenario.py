"""Draws a scenario: throughput and queue length over time, slots against the limit, and hand-over latencies.

The time axis shows seconds from the first request. Red bands are faults, from their beginning to their
repair; a green line marks the recovery.
"""

from math import isnan, nan
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from turnstile.stress.check.timelines import queue_entries
from turnstile.stress.metrics.scenario import measured_until
from turnstile.stress.metrics.values import Spread
from turnstile.stress.recording import NEVER, SECOND, Instants, Recording
from turnstile.stress.report.charts.style import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    RED,
    SERIES,
    SKY,
    Picture,
    as_picture,
    count_axis,
    new_figure,
    show_empty,
)
from turnstile.stress.report.run_report import ScenarioReport
from turnstile.stress.report.wording import counted, duration
from turnstile.stress.scenario import Load
from turnstile.stress.trace import action_ref

Floats = NDArray[np.float64]

_BINS: Final = 500
_RATE_BINS: Final = 150
_QUEUES_MAX: Final = 12
_LABELS_MAX: Final = 12
_HAND_OVER_BARS: Final = 60
_SHORTEST_MS: Final = 0.01
_FLOW_CAPTION: Final = (
    "Above: executions ended per second, and (dotted) requests confirmed by the broker. Below: executions "
    "waiting for a slot, in all queues (dark line) and in the busiest ones. Red areas are faults; a green "
    "line marks the recovery."
)
_SLOTS_CAPTION: Final = (
    "Slots of each queue over time. The blue line is the peak number of held slots, by the history (what is "
    "granted ahead, in a run, has none yet); the "
    "area is the peak number of running executions, by the actions' own clocks. Nothing may exceed the "
    "dashed line, the limit, except executions that started before it was lowered."
)
_HAND_OVER_CAPTION: Final = (
    "The time from the stop of a run to the start of the next one, which waited for its slot, by the clocks "
    "of the actions."
)


def draw_flow(report: ScenarioReport) -> Picture:
    """Draw throughput and queue length of a scenario over time."""
    recording, metrics = report.recording, report.metrics
    figure, (rate, depth) = _panels(report, "throughput and queue length", [1.9, 1.7])
    _draw_rate(rate, recording)
    most = _draw_depth(depth, recording)
    return as_picture(
        figure,
        name=f"{report.scenario.name}-flow",
        caption=_FLOW_CAPTION,
        alt=f"{metrics.ended:,} executions ended, {metrics.executions_per_second:,.0f} per second; at most "
        f"{most:,} waited at once; {counted(len(metrics.recoveries), 'fault')}.",
    )


def draw_occupancy(report: ScenarioReport) -> Picture:
    """Draw the slots of the busiest queues over time, against their limit."""
    recording, limit = report.recording, report.scenario.limit
    queues = busiest_queues(recording, _QUEUES_MAX)
    figure, panels = _panels(report, "slots held and running", [0.72] * max(len(queues), 1))
    # Without the time before the resume, and after the limit was lifted.
    began_at = recording.began_at if recording.opened_at == NEVER else recording.opened_at
    ended_at = min(measured_until(recording), _ended_at(recording))
    edges = np.linspace(began_at, max(ended_at, began_at + SECOND // 100), _BINS + 1).astype(np.int64)
    panels[0].set_xlim(*((edges[[0, -1]] - recording.began_at) / SECOND))
    for panel, queue in zip(panels, queues, strict=False):
        _draw_queue(panel, recording, queue, edges)
    if queues:
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=3)
    else:
        show_empty(panels[0], "No slot was held")
    every = report.scenario.load.queues
    return as_picture(
        figure,
        name=f"{report.scenario.name}-slots",
        caption=_SLOTS_CAPTION
        + (f" Shown are the {_QUEUES_MAX} busiest of {every:,} queues." if every > _QUEUES_MAX else ""),
        alt=f"Slots held and running in {len(queues)} queues. Peak slots of one queue: "
        f"{report.metrics.peak_slots}; peak running: {report.metrics.peak_runs}; "
        f"limit: {'none' if limit is None else limit}.",
    )


def draw_hand_overs(report: ScenarioReport, hand_overs_ms: Floats, spread: Spread) -> Picture:
    """Draw a histogram of the hand-overs of a scenario, with their percentiles."""
    figure = new_figure(f"{report.scenario.title}: hand-overs", 3.1)
    axes = figure.subplots()
    shown_ms = np.maximum(hand_overs_ms, _SHORTEST_MS)
    edges = np.geomspace(float(shown_ms.min()) / 1.15, float(shown_ms.max()) * 1.15, _HAND_OVER_BARS + 1)
    axes.stairs(np.histogram(shown_ms, edges)[0], edges, fill=True, color=SKY, alpha=0.75, linewidth=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=15))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    count_axis(axes)
    axes.set_ylabel("hand-overs")
    for name, value, color in (
        ("p50", spread.p50_ms, GREEN),
        ("p90", spread.p90_ms, ORANGE),
        ("p99", spread.p99_ms, PURPLE),
        ("max", spread.max_ms, RED),
    ):
        axes.axvline(max(value, _SHORTEST_MS), color=color, linewidth=1.4, label=f"{name} {duration(value)}")
    axes.legend(loc="upper right")
    return as_picture(
        figure,
        name=f"{report.scenario.name}-hand-over",
        caption=_HAND_OVER_CAPTION,
        alt=f"{counted(spread.count, 'hand-over')}: half within {duration(spread.p50_ms)}, 99 % within "
        f"{duration(spread.p99_ms)}, maximum {duration(spread.max_ms)}.",
    )


def queue_name(queue: int, load: Load) -> str:
    """Return the display name of a queue."""
    action, key = divmod(queue, max(load.keys, 1))
    return action_ref(action) if load.keys == 0 else f"{action_ref(action)} key {key}"


def busiest_queues(recording: Recording, count: int) -> list[int]:
    """Return the queues with the most attempts, in ascending order."""
    queues = recording.attempts["queue"]
    total = np.bincount(queues[queues >= 0], minlength=1)
    most = np.argsort(-total, kind="stable")[:count]
    return sorted(int(queue) for queue in most if total[queue])


def peaks(starts: Instants, ends: Instants, edges: Instants) -> NDArray[np.int64]:
    """Return the highest number of overlapping intervals in each bin; NEVER is an open end."""
    starts = starts[starts != NEVER]
    # Ends first: an interval that ends when another starts does not overlap it.
    instants = np.concatenate((ends, starts))
    order = np.argsort(instants, kind="stable")
    steps = np.repeat([-1, 1], [len(ends), len(starts)])[order]
    level = np.concatenate(([0], np.cumsum(steps)))
    at_edge = np.searchsorted(instants[order], edges, side="right")
    inside = np.maximum.reduceat(level, at_edge)[:-1]
    highest: NDArray[np.int64] = np.maximum(inside, level[at_edge[1:]])
    return highest


def limit_steps(recording: Recording, queue: int) -> tuple[list[float], list[float]]:
    """Return seconds and limits of a queue, one of each per change; NaN: no limit."""
    action = queue // max(recording.scenario.load.keys, 1)
    changes = [change for change in recording.limit_changes if change.action == action]
    seconds = [0.0, *((change.answered_at - recording.began_at) / SECOND for change in changes)]
    limits = [recording.scenario.limit, *(change.limit for change in changes)]
    return seconds, [nan if limit is None else float(limit) for limit in limits]


def _panels(report: ScenarioReport, title: str, heights: list[float]) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels on one time axis, with faults and other events."""
    recording, recoveries = report.recording, report.metrics.recoveries
    figure = new_figure(f"{report.scenario.title}: {title}", sum(heights) + 0.95)
    panels = list(figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0])
    events = [(each.at_seconds, each.kind.value, RED) for each in recoveries]
    until = measured_until(recording)
    for at, name, happened in (
        (recording.opened_at, "resumed", recording.opened_at != NEVER),
        (until, "limit lifted", until != recording.ended_at),
    ):
        if happened:
            events.append(((at - recording.began_at) / SECOND, name, MUTED))
    for panel in panels:
        for recovery in recoveries:
            began = recovery.at_seconds
            panel.axvspan(began, began + recovery.healed_seconds, color=RED, alpha=0.13, linewidth=0)
            if recovery.recovered_seconds is not None:
                panel.axvline(began + recovery.recovered_seconds, color=GREEN, linewidth=0.8)
        for seconds, _, color in events:
            panel.axvline(seconds, color=color, linewidth=0.8)
    if 0 < len(events) <= _LABELS_MAX:
        top = panels[0].secondary_xaxis("top")
        names = [name for _, name, _ in events]
        top.set_xticks([at for at, *_ in events], names, rotation=20, ha="left", fontsize=8)
        top.spines["top"].set_visible(False)
    panels[-1].set_xlabel("seconds from the first request")
    panels[-1].set_xlim(0, (_ended_at(recording) - recording.began_at) / SECOND)
    return figure, panels


def _draw_rate(axes: Axes, recording: Recording) -> None:
    edges = np.linspace(recording.began_at, _ended_at(recording), _RATE_BINS + 1).astype(np.int64)
    bin_seconds = float(edges[1] - edges[0]) / SECOND
    shown = (edges - recording.began_at) / SECOND
    ended, sent = (
        np.diff(np.searchsorted(np.sort(instants), edges)) / bin_seconds
        for instants in (recording.executions["completed_at"], recording.orders["confirmed_at"])
    )
    axes.stairs(ended, shown, fill=True, color=SKY, alpha=0.5, linewidth=0)
    axes.stairs(ended, shown, baseline=None, color=BLUE, linewidth=1, label="ended")
    axes.stairs(sent, shown, baseline=None, color=INK, linewidth=1, linestyle=":", label="requested")
    count_axis(axes)
    # A burst of requests must not flatten the curve of ended executions.
    top = max(float(ended.max()), 1.0)
    axes.set_ylim(0, 1.12 * max(top, min(float(sent.max()), 1.6 * top)))
    axes.set_ylabel("per second")
    axes.legend(loc="upper right", ncols=2)
    if not ended.any():
        show_empty(axes, "No execution ended")


def _draw_depth(axes: Axes, recording: Recording) -> int:
    """Return the highest number of waiting executions."""
    entries = queue_entries(recording)
    edges = np.linspace(recording.began_at, _ended_at(recording), _BINS + 1).astype(np.int64)
    shown = (edges - recording.began_at) / SECOND
    queues = busiest_queues(recording, len(SERIES))
    for queue, color in zip(queues if len(queues) > 1 else (), SERIES, strict=False):
        of_it = entries.queues == queue
        waiting = peaks(entries.since[of_it], entries.granted_at[of_it], edges)
        label = queue_name(queue, recording.scenario.load)
        axes.stairs(waiting, shown, baseline=None, color=color, linewidth=0.8, label=label)
    total = peaks(entries.since, entries.granted_at, edges)
    axes.stairs(total, shown, baseline=None, color=INK, linewidth=1.4, label="all queues")
    count_axis(axes)
    axes.set_ylabel("waiting")
    if len(queues) > 1:
        axes.legend(loc="upper right", ncols=3, fontsize=8)
    return int(total.max())


def _draw_queue(panel: Axes, recording: Recording, queue: int, edges: Instants) -> None:
    attempts = recording.attempts[recording.attempts["queue"] == queue]
    runs = recording.runs[recording.runs["queue"] == queue]
    held = peaks(attempts["granted_at"], attempts["ended_at"], edges)
    running = peaks(runs["started_at"], runs["stopped_at"], edges)
    shown = (edges - recording.began_at) / SECOND
    panel.stairs(running, shown, fill=True, color=SKY, alpha=0.6, linewidth=0, label="running")
    seconds, limits = limit_steps(recording, queue)
    if not any(map(isnan, limits)):
        held = np.minimum(held, max(limits))
    panel.stairs(held, shown, baseline=None, color=BLUE, linewidth=1, label="held")
    top = max(1, int(held.max()), int(running.max()), *(int(each) for each in limits if not isnan(each)))
    panel.set_ylim(0, top * 1.22)
    panel.set_yticks([0, top])
    panel.step(
        [*seconds, shown[-1]], [*limits, limits[-1]], where="post", color=INK, linestyle=(0, (5, 2)),
        linewidth=1.1, label="limit",
    )  # fmt: skip
    name = queue_name(queue, recording.scenario.load)
    panel.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8.5)


def _ended_at(recording: Recording) -> int:
    """Return the end of the time axis: shortly after the last end, at most the end of the scenario."""
    ends = np.concatenate((recording.executions["completed_at"], recording.attempts["ended_at"]))
    last = max(int(ends.max(initial=recording.began_at)), *(fault.healed_at for fault in recording.faults), 0)
    last = min(last + (min(last, recording.ended_at) - recording.began_at) // 50, recording.ended_at)
    return max(last, recording.began_at + SECOND // 100)
