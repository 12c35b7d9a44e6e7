"""Draws the runs around one fault: which it ended, when they ran again, when the system had recovered."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from numpy.typing import NDArray

from turnstile.stress.metrics.values import Recovery
from turnstile.stress.recording import (
    NEVER,
    SECOND,
    InjectedFault,
    Instants,
    Outcome,
    Recording,
    RunEnd,
    Table,
)
from turnstile.stress.report.charts.levels import queue_name
from turnstile.stress.report.charts.style import (
    BLUE,
    GREEN,
    GRID,
    MUTED,
    RED,
    SERIES,
    Picture,
    as_picture,
    new_figure,
    show_empty,
)
from turnstile.stress.report.run_report import ScenarioReport
from turnstile.stress.report.wording import fault_name
from turnstile.stress.scenario import FaultKind

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
    "Each row is a slot of {queues}, each bar a run, coloured by worker process. Runs that the fault ended "
    "are red and hatched; their slots stay held (pale) until the lost worker's lease expires, and an arrow "
    "leads to the next run of the same execution. Time counts from the fault."
)
_QUEUES_MAX: Final = 3
LANES_MAX: Final = 18
_RUNS_MAX: Final = 10_000
"""The maximum number of runs per queue."""
_ATTEMPTS_MAX: Final = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One run; seconds from the fault."""

    execution_id: int
    attempt: int
    process: int
    began: float
    ended: float
    lost: bool
    """Its worker was lost during the run."""
    held_until: float
    """When its slot was free again, if later."""
    lane: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The runs around a fault, each in a lane."""

    queues: tuple[int, ...]
    counts: tuple[int, ...]
    """Lanes of each queue."""
    bars: tuple[Bar, ...]

    @property
    def retries(self) -> Iterator[tuple[Bar, Bar]]:
        """Yield each lost run with the next run of the same execution."""
        by_execution: dict[int, list[Bar]] = {}
        for bar in self.bars:
            by_execution.setdefault(bar.execution_id, []).append(bar)
        for bars in by_execution.values():
            bars.sort(key=lambda bar: bar.attempt)
            yield from ((one, other) for one, other in pairwise(bars) if one.lost)


def draw_fault(report: ScenarioReport, number: int) -> Picture:
    """Draw the runs around fault `number`, counted from 0: a row of bars for each slot."""
    recording = report.recording
    fault = recording.faults[number]
    recovery = report.recovery_of(fault)
    until = _until(fault, recovery)
    began_at = fault.began_at - int(_BEFORE_SECONDS * SECOND)
    lanes = lay_out(recording, fault, began_at, fault.began_at + int(until * SECOND))
    title = f"{report.scenario.title}: {fault_name(fault.kind, fault.target)}"
    rows = max(sum(lanes.counts), 4)
    figure = new_figure(title, _STRIP_INCHES + _LANE_INCHES * rows + 1.25)
    strip, axes = figure.subplots(2, 1, sharex=True, height_ratios=[_STRIP_INCHES, _LANE_INCHES * rows])
    axes.set_xlim(-_BEFORE_SECONDS, until)
    _mark_events(strip, axes, _events(fault, recovery), until)
    axes.axvspan(0, _healed(fault), color=RED, alpha=0.08, linewidth=0, zorder=0)
    if lanes.bars:
        processes = sorted({bar.process for bar in lanes.bars})
        _draw_bars(axes, lanes, processes, narrow=(until + _BEFORE_SECONDS) / _PARTS)
        _draw_retries(axes, lanes)
        figure.legend(handles=_legend(lanes, processes), loc="outside lower left", ncols=6)
    else:
        show_empty(axes, "No runs during the fault")
    _name_lanes(axes, lanes, recording)
    axes.set_xlabel("seconds from the fault")
    names = ", ".join(queue_name(queue, report.scenario.load) for queue in lanes.queues)
    return as_picture(
        figure,
        name=f"{report.scenario.name}-fault-{number + 1}",
        title=title,
        caption=_CAPTION.format(queues=names or "no queue")
        + (
            f" Only the first {LANES_MAX} slots are shown."
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


def _events(fault: InjectedFault, recovery: Recovery | None) -> list[tuple[float, str, str]]:
    healed = _healed(fault)
    events = [(0.0, fault.kind.value, RED), (healed, f"repaired: {healed:.1f} s", BLUE)]
    if recovery is not None and recovery.recovered_seconds is not None:
        recovered = recovery.recovered_seconds
        events.append((recovered, f"recovered: {recovered:.1f} s", GREEN))
    return sorted(events)


def _mark_events(strip: Axes, axes: Axes, events: Sequence[tuple[float, str, str]], until: float) -> None:
    """Draw a line for each event, with labels in separate rows so that they do not overlap."""
    strip.set_ylim(len(events) - 0.5, -0.5)
    strip.axis("off")
    for row, (second, label, color) in enumerate(events):
        strip.plot([second, second], [row, len(events) - 0.5], color=color, linewidth=1.4)
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
    bars = list(_merged(sorted(lanes.bars, key=lambda bar: bar.began), narrow))
    for number, process in enumerate(processes):
        mine = [bar for bar in bars if bar.process == process and not bar.lost]
        _add(axes, mine, narrow, color=SERIES[number % len(SERIES)], edge="white", hatch=None)
    # Widened to be visible.
    lost = [replace(bar, began=min(bar.began, bar.ended - 4 * narrow)) for bar in bars if bar.lost]
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


def _draw_retries(axes: Axes, lanes: Lanes) -> None:
    for lost, next_one in lanes.retries:
        axes.annotate(
            "",
            xy=(next_one.began, next_one.lane),
            # The run of a paused worker lasts until its process exits, long after its reclaim.
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
        names.append(queue_name(queue, recording.scenario.load))
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
    if any(bar.lost for bar in lanes.bars):
        known.append(Patch(facecolor=_LOST, edgecolor=RED, hatch="////", label="lost run"))
        known.append(Patch(facecolor=_HELD, label="slot still held"))
    return known


def _in_words(fault: InjectedFault, recovery: Recovery | None, names: str) -> str:
    healed = _healed(fault)
    words = f"{fault_name(fault.kind, fault.target)}; repaired after {healed:.1f} s"
    if recovery is None:
        return f"{words}. Runs in {names or 'no queue'}."
    recovered = recovery.recovered_seconds
    recovery_text = (
        "not recovered before the load was over"
        if recovered is None
        else f"recovered after {recovered:.1f} s"
    )
    return f"{words}; {recovery.lost_runs} lost runs; {recovery_text}. Runs in {names or 'no queue'}."


def lay_out(recording: Recording, fault: InjectedFault, began_at: int, ended_at: int) -> Lanes:
    """Lay out the runs between two instants, in the queues that the fault affected most."""
    runs = recording.runs
    runs = runs[(runs["started_at"] < ended_at) & (runs["stopped_at"] > began_at)]
    runs, stopped_at = _closed(runs, ended_at)
    near = stopped_at > began_at
    runs, stopped_at = runs[near], stopped_at[near]
    reclaimed_at = _reclaimed_at(recording.attempts, runs)
    held_until = np.maximum(reclaimed_at, stopped_at)
    lost = (reclaimed_at > 0) | (runs["end"] == RunEnd.KILLED)
    queues: list[int] = []
    counts: list[int] = []
    bars: list[Bar] = []
    for queue in _affected_queues(recording, fault, runs, lost):
        rows = np.flatnonzero(runs["queue"] == queue)
        rows = rows[np.argsort(runs["started_at"][rows], kind="stable")][:_RUNS_MAX]
        of_it, count = _in_lanes(
            Bar(
                execution_id=int(runs["execution_id"][row]),
                attempt=int(runs["attempt"][row]),
                process=int(runs["process"][row]),
                began=(int(runs["started_at"][row]) - fault.began_at) / SECOND,
                ended=(int(stopped_at[row]) - fault.began_at) / SECOND,
                lost=bool(lost[row]),
                held_until=(int(held_until[row]) - fault.began_at) / SECOND,
            )
            for row in rows
        )
        if queues and sum(counts) + count > LANES_MAX:
            break
        bars += [replace(bar, lane=bar.lane + sum(counts)) for bar in of_it if bar.lane < LANES_MAX]
        queues.append(queue)
        counts.append(min(count, LANES_MAX))
    return Lanes(queues=tuple(queues), counts=tuple(counts), bars=tuple(bars))


def _merged(bars: Iterable[Bar], narrow: float) -> Iterator[Bar]:
    """Merge neighbouring runs of one process in a lane that are too narrow to be visible."""
    last: dict[int, tuple[Bar, bool]] = {}
    for bar in bars:
        slim = bar.ended - bar.began < narrow and not bar.lost
        before = last.get(bar.lane)
        if before is not None:
            other, was_slim = before
            if slim and was_slim and other.process == bar.process and bar.began - other.ended < narrow:
                last[bar.lane] = (replace(other, ended=bar.ended), True)
                continue
            yield other
        last[bar.lane] = (bar, slim)
    yield from (bar for bar, _ in last.values())


def _reclaimed_at(attempts: Table, runs: Table) -> Instants:
    """Return when each run's slot was reclaimed; 0 where it was not."""
    lost = attempts[attempts["outcome"] == Outcome.RECLAIMED]
    keys = _keys(lost)
    order = np.argsort(keys)
    lost, keys = lost[order], keys[order]
    place = np.searchsorted(keys, _keys(runs))
    if not len(keys):
        return np.zeros(len(runs), np.int64)
    found = np.minimum(place, len(keys) - 1)
    reclaimed_at: Instants = np.where(keys[found] == _keys(runs), lost["ended_at"][found], 0)
    return reclaimed_at


def _keys(table: Table) -> Instants:
    keys: Instants = table["execution_id"] * _ATTEMPTS_MAX + table["attempt"]
    return keys


def _closed(runs: Table, ended_at: int) -> tuple[Table, Instants]:
    """Return when each run stopped; one with an unknown end lasts until the next run of its execution."""
    stopped_at: Instants = runs["stopped_at"].copy()
    for row in np.flatnonzero(stopped_at == NEVER):
        run = runs[row]
        later = (runs["execution_id"] == run["execution_id"]) & (runs["attempt"] > run["attempt"])
        stopped_at[row] = runs["started_at"][later].min(initial=ended_at)
    return runs, np.minimum(stopped_at, ended_at)


def _affected_queues(
    recording: Recording, fault: InjectedFault, runs: Table, lost: NDArray[np.bool_]
) -> Sequence[int]:
    """Return the most affected queues: by a changed limit, by lost runs, or by load."""
    if fault.kind is FaultKind.CHANGE_LIMIT:
        keys = max(recording.scenario.load.keys, 1)
        changed = {
            change.action
            for change in recording.limit_changes
            if fault.began_at <= change.answered_at and change.asked_at <= fault.healed_at
        }
        runs = runs[np.isin(runs["queue"] // keys, sorted(changed))] if changed else runs
    else:
        runs = runs[lost] if lost.any() else runs
    counted = np.bincount(runs["queue"][runs["queue"] >= 0], minlength=1)
    most = np.argsort(-counted, kind="stable")[:_QUEUES_MAX]
    return [int(queue) for queue in most if counted[queue]]


def _in_lanes(bars: Iterable[Bar]) -> tuple[list[Bar], int]:
    """Assign each run to the first free lane; return the runs and the number of lanes."""
    free_from: list[float] = []
    placed = []
    for bar in bars:
        lane = next((lane for lane, free in enumerate(free_from) if free <= bar.began), len(free_from))
        free_from[lane : lane + 1] = [bar.held_until]
        placed.append(replace(bar, lane=lane))
    return placed, len(free_from)
