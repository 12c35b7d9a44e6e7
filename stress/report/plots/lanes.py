"""Lays the runs around one fault into lanes: one for each slot of the queues that felt it most.

In: the runs and attempts of a stage, one fault, a span of time. Out: bars, each in a lane, and for each run
that was cut off the one that took its place. Pure. Next: `fault` draws them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.recording import InjectedFault, Recording
from turnstile.stress.stage import FaultKind
from turnstile.stress.tables import NEVER, SECOND, Instants, Outcome, RunEnd, Table

_QUEUES_MAX: Final = 3
LANES_MAX: Final = 18
_RUNS_MAX: Final = 10_000
"""Of one queue; a span that holds more is shown up to there."""
_ATTEMPTS_MAX: Final = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One run; seconds from the fault."""

    execution_id: int
    attempt: int
    process: int
    began: float
    ended: float
    cut_off: bool
    """Its worker was lost while it ran."""
    held_until: float
    """When its slot was free again, as far as that was later."""
    lane: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """What there is to draw around a fault."""

    queues: tuple[int, ...]
    counts: tuple[int, ...]
    """Lanes of each queue."""
    bars: tuple[Bar, ...]

    @property
    def again(self) -> Iterator[tuple[Bar, Bar]]:
        """Yield each run that was cut off with the next of the same execution."""
        by_execution: dict[int, list[Bar]] = {}
        for bar in self.bars:
            by_execution.setdefault(bar.execution_id, []).append(bar)
        for bars in by_execution.values():
            bars.sort(key=lambda bar: bar.attempt)
            yield from ((one, other) for one, other in pairwise(bars) if one.cut_off)


def lay_out(recording: Recording, fault: InjectedFault, began_at: int, ended_at: int) -> Lanes:
    """Lay out the runs between two instants, in the queues that the fault touched most."""
    runs = recording.runs
    runs = runs[(runs["started_at"] < ended_at) & (runs["stopped_at"] > began_at)]
    runs, stopped_at = _closed(runs, ended_at)
    near = stopped_at > began_at
    runs, stopped_at = runs[near], stopped_at[near]
    reclaimed_at = _reclaimed_at(recording.attempts, runs)
    held_until = np.maximum(reclaimed_at, stopped_at)
    cut_off = (reclaimed_at > 0) | (runs["end"] == RunEnd.KILLED)
    queues: list[int] = []
    counts: list[int] = []
    bars: list[Bar] = []
    for queue in _touched(recording, fault, runs, cut_off):
        rows = np.flatnonzero(runs["queue"] == queue)
        rows = rows[np.argsort(runs["started_at"][rows], kind="stable")][:_RUNS_MAX]
        of_it, count = _in_lanes(
            Bar(
                execution_id=int(runs["execution_id"][row]),
                attempt=int(runs["attempt"][row]),
                process=int(runs["process"][row]),
                began=(int(runs["started_at"][row]) - fault.began_at) / SECOND,
                ended=(int(stopped_at[row]) - fault.began_at) / SECOND,
                cut_off=bool(cut_off[row]),
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


def joined(bars: Iterable[Bar], narrow: float) -> Iterator[Bar]:
    """Draw together, lane by lane, neighbours of one process that are too narrow to be seen alone."""
    last: dict[int, tuple[Bar, bool]] = {}
    for bar in bars:
        slim = bar.ended - bar.began < narrow and not bar.cut_off
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
    """Return when each run's slot was taken from a lost worker; 0 where it was not."""
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
    """Return when each run stopped; one whose end nobody saw lasts until its execution ran again."""
    stopped_at: Instants = runs["stopped_at"].copy()
    for row in np.flatnonzero(stopped_at == NEVER):
        run = runs[row]
        later = (runs["execution_id"] == run["execution_id"]) & (runs["attempt"] > run["attempt"])
        stopped_at[row] = runs["started_at"][later].min(initial=ended_at)
    return runs, np.minimum(stopped_at, ended_at)


def _touched(
    recording: Recording, fault: InjectedFault, runs: Table, cut_off: NDArray[np.bool_]
) -> Sequence[int]:
    """Return the queues to show, most touched first: by lost runs, else by a changed limit, else by load."""
    if fault.kind is FaultKind.CHANGE_LIMIT:
        keys = max(recording.stage.load.keys, 1)
        changed = {
            change.action
            for change in recording.limit_changes
            if fault.began_at <= change.answered_at and change.asked_at <= fault.healed_at
        }
        runs = runs[np.isin(runs["queue"] // keys, sorted(changed))] if changed else runs
    else:
        runs = runs[cut_off] if cut_off.any() else runs
    counted = np.bincount(runs["queue"][runs["queue"] >= 0], minlength=1)
    most = np.argsort(-counted, kind="stable")[:_QUEUES_MAX]
    return [int(queue) for queue in most if counted[queue]]


def _in_lanes(bars: Iterable[Bar]) -> tuple[list[Bar], int]:
    """Give each run the first lane that is free when it starts; return how many lanes that takes."""
    free_from: list[float] = []
    placed = []
    for bar in bars:
        lane = next((lane for lane, free in enumerate(free_from) if free <= bar.began), len(free_from))
        free_from[lane : lane + 1] = [bar.held_until]
        placed.append(replace(bar, lane=lane))
    return placed, len(free_from)
