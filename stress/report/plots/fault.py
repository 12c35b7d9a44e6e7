"""Draws what happened around one fault: which runs it cut off, when they ran again, when all was as before.

In: a stage's report and one of its faults. Out: a chart of lanes, one for each slot of the queues that felt
it most.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from turnstile.stress.figures.values import Recovery
from turnstile.stress.recording import InjectedFault, Recording
from turnstile.stress.report.plots.lanes import LANES_MAX, Bar, Lanes, joined, lay_out
from turnstile.stress.report.plots.queues import name_of
from turnstile.stress.report.plots.style import (
    BLUE,
    GREEN,
    GRID,
    MUTED,
    RED,
    SERIES,
    Picture,
    as_picture,
    new_figure,
    say_nothing_there,
)
from turnstile.stress.report.run_report import StageReport
from turnstile.stress.report.wording import fault_name
from turnstile.stress.tables import SECOND

_BEFORE_SECONDS: Final = 2.0
_BEHIND_SECONDS: Final = 2.0
_UNRECOVERED_SECONDS: Final = 8.0
_LONGEST_SECONDS: Final = 120.0
_PARTS: Final = 700
_LOST: Final = "#f6c9ae"
_HELD: Final = "#fae8dd"
_LANE_INCHES: Final = 0.23
_STRIP_INCHES: Final = 0.62
_CAPTION: Final = (
    "Each row is a slot of {queues}, each bar a run, coloured by the process that ran it. What the fault cut "
    "off is red and hatched; its slot stays held (pale) until the lost worker's lease is over, and an arrow "
    "leads to where the same execution ran again. Time counts from the fault."
)


def draw_fault(report: StageReport, number: int) -> Picture:
    """Draw the runs around fault `number`, counted from 0."""
    recording = report.recording
    fault = recording.faults[number]
    recovery = report.recovery_of(fault)
    until = _until(fault, recovery)
    began_at = fault.began_at - int(_BEFORE_SECONDS * SECOND)
    lanes = lay_out(recording, fault, began_at, fault.began_at + int(until * SECOND))
    title = f"{report.stage.title}: {fault_name(fault.kind, fault.target)}"
    rows = max(sum(lanes.counts), 4)
    figure = new_figure(title, _STRIP_INCHES + _LANE_INCHES * rows + 1.25)
    strip, axes = figure.subplots(2, 1, sharex=True, height_ratios=[_STRIP_INCHES, _LANE_INCHES * rows])
    axes.set_xlim(-_BEFORE_SECONDS, until)
    _mark_moments(strip, axes, _moments(fault, recovery), until)
    axes.axvspan(0, _healed(fault), color=RED, alpha=0.08, linewidth=0, zorder=0)
    if lanes.bars:
        processes = sorted({bar.process for bar in lanes.bars})
        _draw_bars(axes, lanes, processes, narrow=(until + _BEFORE_SECONDS) / _PARTS)
        _draw_again(axes, lanes)
        figure.legend(handles=_legend(lanes, processes), loc="outside lower left", ncols=6)
    else:
        say_nothing_there(axes, "Nothing ran around it")
    _name_lanes(axes, lanes, recording)
    axes.set_xlabel("seconds from the fault")
    names = ", ".join(name_of(queue, report.stage.load) for queue in lanes.queues)
    return as_picture(
        figure,
        name=f"{report.stage.name}-fault-{number + 1}",
        title=title,
        caption=_CAPTION.format(queues=names or "no queue")
        + (
            f" Of more than {LANES_MAX} slots the first ones."
            if max(lanes.counts, default=0) == LANES_MAX
            else ""
        ),
        alt=_in_words(fault, recovery, names),
    )


def _healed(fault: InjectedFault) -> float:
    return (fault.healed_at - fault.began_at) / SECOND


def _until(fault: InjectedFault, recovery: Recovery | None) -> float:
    healed = _healed(fault)
    if recovery is None:
        return min(healed + _UNRECOVERED_SECONDS, _LONGEST_SECONDS)
    known = [healed, recovery.reclaim_seconds or 0.0]
    recovered = recovery.recovered_seconds
    last = max(*known, healed + _UNRECOVERED_SECONDS if recovered is None else recovered)
    return min(last + _BEHIND_SECONDS, _LONGEST_SECONDS)


def _moments(fault: InjectedFault, recovery: Recovery | None) -> list[tuple[float, str, str]]:
    healed = _healed(fault)
    moments = [(0.0, fault.kind.value, RED), (healed, f"whole again: {healed:.1f} s", BLUE)]
    if recovery is not None and recovery.recovered_seconds is not None:
        recovered = recovery.recovered_seconds
        moments.append((recovered, f"as before: {recovered:.1f} s", GREEN))
    return sorted(moments)


def _mark_moments(strip: Axes, axes: Axes, moments: Sequence[tuple[float, str, str]], until: float) -> None:
    """Draw a line for each moment; its label stands in a row of its own, so none meets another."""
    strip.set_ylim(len(moments) - 0.5, -0.5)
    strip.axis("off")
    for row, (second, label, color) in enumerate(moments):
        strip.plot([second, second], [row, len(moments) - 0.5], color=color, linewidth=1.4)
        axes.axvline(second, color=color, linewidth=1.4)
        left = second > 0.75 * until
        strip.annotate(
            label,
            (second, row),
            xytext=(-5 if left else 5, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            color=color,
            fontweight="bold",
        )


def _draw_bars(axes: Axes, lanes: Lanes, processes: Sequence[int], *, narrow: float) -> None:
    bars = list(joined(sorted(lanes.bars, key=lambda bar: bar.began), narrow))
    for number, process in enumerate(processes):
        mine = [bar for bar in bars if bar.process == process and not bar.cut_off]
        _add(axes, mine, narrow, color=SERIES[number % len(SERIES)], edge="white", hatch=None)
    # Too short to be seen otherwise, and what this is about.
    lost = [replace(bar, began=min(bar.began, bar.ended - 4 * narrow)) for bar in bars if bar.cut_off]
    held = [replace(bar, began=bar.ended, ended=bar.held_until) for bar in lost if bar.held_until > bar.ended]
    _add(axes, held, narrow, color=_HELD, edge=_HELD, hatch=None)
    _add(axes, lost, narrow, color=_LOST, edge=RED, hatch="////")


def _add(axes: Axes, bars: Sequence[Bar], narrow: float, *, color: str, edge: str, hatch: str | None) -> None:
    if not bars:
        return
    left = np.array([bar.began for bar in bars])
    right = np.maximum(np.array([bar.ended for bar in bars]), left + narrow)
    low = np.array([bar.lane for bar in bars]) - 0.38
    corners = np.stack(
        [
            np.stack([x, y], axis=1)
            for x, y in ((left, low), (left, low + 0.76), (right, low + 0.76), (right, low))
        ],
        axis=1,
    )
    axes.add_collection(
        PolyCollection(list(corners), facecolor=color, edgecolor=edge, linewidth=0.4, hatch=hatch, zorder=3)
    )


def _draw_again(axes: Axes, lanes: Lanes) -> None:
    for lost, next_one in lanes.again:
        axes.annotate(
            "",
            xy=(next_one.began, next_one.lane),
            # Of a paused worker a run lasts until its process is gone, long after it was taken away.
            xytext=(min(lost.ended, next_one.began), lost.lane),
            arrowprops={"arrowstyle": "-|>", "color": RED, "linewidth": 1, "shrinkA": 0, "shrinkB": 0},
            zorder=4,
        )


def _name_lanes(axes: Axes, lanes: Lanes, recording: Recording) -> None:
    lanes_in_all = max(sum(lanes.counts), 1)
    axes.set_ylim(lanes_in_all - 0.5, -0.5)
    middles, names, first = [], [], 0
    for queue, count in zip(lanes.queues, lanes.counts, strict=True):
        middles.append(first + (count - 1) / 2)
        names.append(name_of(queue, recording.stage.load))
        first += count
        axes.axhline(first - 0.5, color=MUTED, linewidth=0.8)
    axes.set_yticks(middles, names)
    axes.tick_params(left=False)
    for lane in range(lanes_in_all):
        axes.axhline(lane, color=GRID, linewidth=0.6, zorder=0)
    axes.grid(visible=False, axis="y")


def _legend(lanes: Lanes, processes: Sequence[int]) -> list[Patch]:
    known = [
        Patch(facecolor=SERIES[number % len(SERIES)], label=f"worker process {process + 1}")
        for number, process in enumerate(processes[: 2 * len(SERIES)])
    ]
    if any(bar.cut_off for bar in lanes.bars):
        known.append(Patch(facecolor=_LOST, edgecolor=RED, hatch="////", label="cut off"))
        known.append(Patch(facecolor=_HELD, label="its slot, still held"))
    return known


def _in_words(fault: InjectedFault, recovery: Recovery | None, names: str) -> str:
    healed = _healed(fault)
    words = f"{fault_name(fault.kind, fault.target)}; whole again after {healed:.1f} s"
    if recovery is None:
        return f"{words}. Runs in {names or 'no queue'}."
    recovered = recovery.recovered_seconds
    felt = (
        "not as before until the load was over" if recovered is None else f"as before after {recovered:.1f} s"
    )
    return f"{words}; {recovery.lost_runs} runs cut off; {felt}. Runs in {names or 'no queue'}."
