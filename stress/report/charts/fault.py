"""Draws the runs around one fault: which it ended, when they ran again, when the system had recovered.

Each row is a slot of an affected queue, each bar a run; seconds count from the fault.
"""

from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from turnstile.stress.check.columns import attempt_keys, column, rows_of, values_at
from turnstile.stress.metrics.values import Recovery
from turnstile.stress.recording import NEVER, SECOND, InjectedFault, Outcome, Recording, RunEnd, Table
from turnstile.stress.report.charts.scenario import queue_name
from turnstile.stress.report.charts.style import (
    BLUE,
    GREEN,
    MUTED,
    RED,
    SERIES,
    Picture,
    as_picture,
    new_figure,
    show_empty,
)
from turnstile.stress.report.run_report import ScenarioReport
from turnstile.stress.report.wording import counted, fault_name
from turnstile.stress.scenario import FaultKind

_BEFORE_SECONDS: Final = 2.0
_AFTER_SECONDS: Final = 2.0
_UNRECOVERED_SECONDS: Final = 8.0
_LONGEST_SECONDS: Final = 120.0
_LOST: Final = "#f6c9ae"
_HELD: Final = "#fae8dd"
_QUEUES_MAX: Final = 3
LANES_MAX: Final = 18
_RUNS_MAX: Final = 10_000
"""The maximum number of runs per queue."""
_CAPTION: Final = (
    f"Each row is a slot, at most {LANES_MAX} are shown; each bar is a run, coloured by worker process. Runs "
    "that the fault ended are red and hatched; their slots stay held (pale) until the lost worker's lease "
    "expires, and an arrow leads to the next run of the same execution. Time counts from the fault."
)


class Bar(NamedTuple):
    """One run; seconds from the fault."""

    lane: int
    queue: int
    execution_id: int
    attempt: int
    process: int
    began: float
    ended: float
    held_until: float
    """When its slot was free again."""
    lost: bool
    """Its worker was lost during the run."""


def draw_fault(report: ScenarioReport, number: int) -> Picture:
    """Draw the runs around fault `number`, counted from 0."""
    recording, load = report.recording, report.scenario.load
    fault, recovery = recording.faults[number], report.metrics.recoveries[number]
    until = _until(recovery)
    bars = lay_out(recording, fault, until)
    lanes = max((bar.lane for bar in bars), default=3) + 1
    name = fault_name(fault.kind, fault.target)
    figure = new_figure(f"{report.scenario.title}: {name}", 0.23 * max(lanes, 4) + 1.4)
    axes = figure.subplots()
    axes.set_xlim(-_BEFORE_SECONDS, until)
    axes.set_ylim(lanes - 0.5, -0.5)
    axes.set_xlabel("seconds from the fault")
    axes.grid(visible=False, axis="y")
    _mark_events(axes, recovery)
    if bars:
        _draw_runs(axes, bars, narrow=(until + _BEFORE_SECONDS) / 700)
        _name_queues(axes, bars, {bar.queue: queue_name(bar.queue, load) for bar in bars})
        figure.legend(loc="outside lower left", ncols=6)
    else:
        axes.set_yticks([])
        show_empty(axes, "No runs during the fault")
    recovered = recovery.recovered_seconds
    return as_picture(
        figure,
        name=f"{report.scenario.name}-fault-{number + 1}",
        caption=_CAPTION,
        alt=f"{name}; repaired after {recovery.healed_seconds:.1f} s; "
        f"{counted(recovery.lost_runs, 'lost run')}; "
        + ("not recovered" if recovered is None else f"recovered after {recovered:.1f} s"),
    )


def lay_out(recording: Recording, fault: InjectedFault, until: float) -> list[Bar]:
    """Return the runs around a fault, in the queues that it affected most; each lane is a slot."""
    ended_at = fault.began_at + int(until * SECOND)
    runs = recording.runs
    runs = runs[runs["started_at"] < ended_at]
    attempts = recording.attempts[recording.attempts["outcome"] == Outcome.RECLAIMED]
    reclaimed_at = values_at(
        column(attempts, "ended_at"), rows_of(attempt_keys(attempts), attempt_keys(runs)), 0
    )
    # A run with an unknown end is drawn until its slot was reclaimed, or to the end.
    stopped_at = column(runs, "stopped_at")
    unknown = stopped_at == NEVER
    stopped_at[unknown] = np.where(reclaimed_at > 0, reclaimed_at, ended_at)[unknown]
    held_until = np.maximum(reclaimed_at, stopped_at)
    lost = (reclaimed_at > 0) | (runs["end"] == RunEnd.KILLED)
    near = held_until > fault.began_at - int(_BEFORE_SECONDS * SECOND)
    affected = runs[near & lost] if (near & lost).any() else runs[near]
    bars: list[Bar] = []
    lanes = 0
    for queue in _affected_queues(recording, fault, affected, runs[near]):
        rows = np.flatnonzero(near & (runs["queue"] == queue))
        free_from: list[float] = []
        of_queue = []
        for row in rows[np.argsort(runs["started_at"][rows], kind="stable")][:_RUNS_MAX].tolist():
            began, ended, held = (
                (int(at) - fault.began_at) / SECOND
                for at in (runs["started_at"][row], stopped_at[row], held_until[row])
            )
            lane = next((lane for lane, free in enumerate(free_from) if free <= began), len(free_from))
            free_from[lane : lane + 1] = [held]
            execution_id, attempt, process = (
                int(runs[name][row]) for name in ("execution_id", "attempt", "process")
            )
            of_queue.append(
                Bar(lanes + lane, queue, execution_id, attempt, process, began, ended, held, bool(lost[row]))
            )
        if bars and lanes + len(free_from) > LANES_MAX:
            break
        bars += [bar for bar in of_queue if bar.lane < LANES_MAX]
        lanes += len(free_from)
    return bars


def _affected_queues(recording: Recording, fault: InjectedFault, affected: Table, near: Table) -> list[int]:
    """Return the most affected queues: by a changed limit, by lost runs, or by load."""
    if fault.kind is FaultKind.CHANGE_LIMIT:
        keys = max(recording.scenario.load.keys, 1)
        changed = [
            change.action
            for change in recording.limit_changes
            if fault.began_at <= change.answered_at and change.asked_at <= fault.healed_at
        ]
        affected = near[np.isin(near["queue"] // keys, changed)]
    queues, counts = np.unique(affected["queue"][affected["queue"] >= 0], return_counts=True)
    most: list[int] = queues[np.argsort(-counts, kind="stable")][:_QUEUES_MAX].tolist()
    return most


def _until(recovery: Recovery) -> float:
    recovered = recovery.recovered_seconds
    last = recovery.healed_seconds + _UNRECOVERED_SECONDS if recovered is None else recovered
    last = max(last, recovery.healed_seconds, recovery.reclaim_seconds or 0.0)
    return min(last + _AFTER_SECONDS, _LONGEST_SECONDS)


def _mark_events(axes: Axes, recovery: Recovery) -> None:
    healed, recovered = recovery.healed_seconds, recovery.recovered_seconds
    axes.axvspan(0, healed, color=RED, alpha=0.08, linewidth=0, zorder=0)
    axes.axvline(0, color=RED, linewidth=1.4, label=recovery.kind.value)
    axes.axvline(healed, color=BLUE, linewidth=1.4, label=f"repaired: {healed:.1f} s")
    if recovered is not None:
        axes.axvline(recovered, color=GREEN, linewidth=1.4, label=f"recovered: {recovered:.1f} s")


def _draw_runs(axes: Axes, bars: list[Bar], *, narrow: float) -> None:
    """Draw the bars, none narrower than visible, and an arrow from each lost run to the next one."""
    for number, process in enumerate(sorted({bar.process for bar in bars})):
        color = SERIES[number % len(SERIES)]
        mine = [bar for bar in bars if bar.process == process and not bar.lost]
        shown = [(bar.lane, bar.began, max(bar.ended, bar.began + narrow)) for bar in mine]
        _add(axes, shown, color, f"worker process {process + 1}")
    lost = [bar for bar in bars if bar.lost]
    if lost:
        _add(axes, [(bar.lane, bar.ended, bar.held_until) for bar in lost], _HELD, "slot still held")
        shown = [(bar.lane, min(bar.began, bar.ended - 4 * narrow), bar.ended) for bar in lost]
        _add(axes, shown, _LOST, "lost run", edge=RED, hatch="////")
    in_order = sorted(bars, key=lambda bar: (bar.execution_id, bar.attempt))
    for one, following in pairwise(in_order):
        if one.lost and one.execution_id == following.execution_id:
            axes.annotate(
                "",
                xy=(following.began, following.lane),
                # The run of a paused worker lasts until its process exits, long after its reclaim.
                xytext=(min(one.ended, following.began), one.lane),
                arrowprops={"arrowstyle": "-|>", "color": RED, "linewidth": 1, "shrinkA": 0, "shrinkB": 0},
                zorder=4,
            )


def _add(
    axes: Axes,
    bars: list[tuple[int, float, float]],
    color: str,
    label: str,
    *,
    edge: str = "white",
    hatch: str | None = None,
) -> None:
    corners = [
        [(left, lane - 0.38), (left, lane + 0.38), (right, lane + 0.38), (right, lane - 0.38)]
        for lane, left, right in bars
    ]
    axes.add_collection(
        PolyCollection(
            corners, facecolor=color, edgecolor=edge, linewidth=0.4, hatch=hatch, label=label, zorder=3
        )
    )


def _name_queues(axes: Axes, bars: list[Bar], names: dict[int, str]) -> None:
    middles = []
    for queue in names:
        lanes = [bar.lane for bar in bars if bar.queue == queue]
        middles.append((min(lanes) + max(lanes)) / 2)
        axes.axhline(max(lanes) + 0.5, color=MUTED, linewidth=0.8)
    axes.set_yticks(middles, list(names.values()))
    axes.tick_params(left=False)
