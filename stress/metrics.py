"""Measures a recorded scenario: its rate, hand-overs, peaks, and the recovery from faults. Pure.

Field names are keys of `report.json`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from turnstile.stress.check.columns import attempt_keys, column, rows_of
from turnstile.stress.check.gates import Move, replayed
from turnstile.stress.check.history import history_of
from turnstile.stress.check.limits import limit_timeline
from turnstile.stress.check.queues import moves_of_entries, run_moves
from turnstile.stress.check.timelines import queue_entries
from turnstile.stress.recording import (
    NEVER,
    NONE,
    SECOND,
    InjectedFault,
    Instants,
    Outcome,
    Recording,
    RunEnd,
)
from turnstile.stress.scenario import FaultKind

_MILLISECOND: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The percentiles of a latency, in milliseconds (nearest rank)."""

    count: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The recovery from one fault; seconds count from the beginning of the fault."""

    kind: FaultKind
    target: str
    at_seconds: float
    """Its beginning, from the beginning of the scenario."""
    healed_seconds: float
    """Until the fault was repaired: process up and ready, limit restored."""
    lost_runs: int
    """Runs that the fault ended."""
    reclaim_seconds: float | None
    """Until the last of them had a slot again."""
    stall_seconds: float
    """The longest time between two starts, of those that the fault can have kept apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioMetrics:
    """The metrics of one scenario."""

    ended: int
    seconds: float
    """From the first request, or from resuming paused actions, to the last end."""
    executions_per_second: float
    hand_over: Spread | None
    """From the stop of a run to the start of the next one, which was waiting, by the clock of their host;
    None: there was none."""
    peak_slots: int
    """Peak number of slots of one queue, from grant to end: what a run has beyond the limit has none."""
    peak_runs: int
    """Peak number of concurrent runs of one queue."""
    recoveries: tuple[Recovery, ...] = ()


def measure_scenario(recording: Recording) -> ScenarioMetrics:
    """Return the metrics of a scenario."""
    ends = column(recording.executions, "completed_at")
    ends = ends[ends != NEVER]
    sent_at = int(column(recording.orders, "sent_at").min(initial=NEVER))
    first = sent_at if recording.opened_at == NEVER else recording.opened_at
    seconds = max(int(ends.max(initial=0)) - first, 0) / SECOND
    slots = moves_of_entries(queue_entries(recording), limit_timeline(recording))
    return ScenarioMetrics(
        ended=len(ends),
        seconds=seconds,
        executions_per_second=len(ends) / seconds if seconds else 0.0,
        hand_over=spread(hand_overs_ns(recording)),
        peak_slots=_peak(slots, recording.ended_at),
        peak_runs=_peak(run_moves(history_of(recording)), recording.ended_at),
        recoveries=recoveries(recording),
    )


def _peak(moves: Iterator[Move], until: int) -> int:
    queues = (queue for queue in replayed(moves, until=until) if queue.at < until)
    return max((min(len(queue.held), queue.at_most) for queue in queues), default=0)


def hand_overs_ns(recording: Recording) -> Instants:
    """Match each start in a full queue with the stop that freed its slot; return the time between them.

    A start takes the slot that has been free for longest: with N slots, start k takes the slot of stop k - N.
    It counts if its execution was waiting before that stop, and if both have regular runs. Only what was
    granted before the first change of the limit counts: after it, a new slot cannot be distinguished from a
    freed one.
    """
    limit = recording.scenario.limit
    if limit is None:
        return np.empty(0, np.int64)
    runs, attempts = recording.runs, recording.attempts[recording.attempts["queue"] != NONE]
    run_of = rows_of(attempt_keys(runs), attempt_keys(attempts))
    changed_at = limit_timeline(recording).first_change(column(attempts, "queue"))
    has_run = (run_of != NONE) & (attempts["granted_at"] < changed_at)
    attempts, run_of = attempts[has_run], run_of[has_run]
    queues, ids, ended_at = (column(attempts, name) for name in ("queue", "execution_id", "ended_at"))
    started_at = column(runs, "started_at")[run_of]
    is_regular = (attempts["outcome"] == Outcome.ENDED) & (runs["end"][run_of] == RunEnd.STOPPED)
    freed_at = np.where(is_regular, column(runs, "stopped_at")[run_of], ended_at)
    starts = np.lexsort((ids, started_at, queues))
    # The same rows in another order: in both, each queue has the same positions.
    stops = np.lexsort((ids, freed_at, queues))
    first_of_queue = np.searchsorted(queues[starts], queues[starts])
    positions = np.flatnonzero(np.arange(len(starts)) - first_of_queue >= limit)
    takers, leavers = starts[positions], stops[positions - limit]
    matched = (
        is_regular[leavers]
        & (freed_at[leavers] <= started_at[takers])
        & (column(attempts, "waiting_since")[takers] <= ended_at[leavers])
    )
    found: Instants = started_at[takers[matched]] - freed_at[leavers[matched]]
    return found


def spread(latencies_ns: Instants) -> Spread | None:
    """Return the percentiles of a latency; None: there was nothing to measure."""
    if not len(latencies_ns):
        return None
    # The nearest rank: a latency that was measured.
    ranks = np.percentile(latencies_ns, (50, 90, 99, 100), method="inverted_cdf") / _MILLISECOND
    p50_ms, p90_ms, p99_ms, max_ms = ranks.tolist()
    return Spread(count=len(latencies_ns), p50_ms=p50_ms, p90_ms=p90_ms, p99_ms=p99_ms, max_ms=max_ms)


def recoveries(recording: Recording) -> tuple[Recovery, ...]:
    """Return the recovery from each fault, in the order of injection."""
    return tuple(_recovery(recording, fault) for fault in recording.faults)


def _recovery(recording: Recording, fault: InjectedFault) -> Recovery:
    lost = _lost_attempts(recording, fault)
    reclaimed_at = _granted_again(recording, lost)
    return Recovery(
        kind=fault.kind,
        target=fault.target,
        at_seconds=(fault.began_at - recording.began_at) / SECOND,
        healed_seconds=(fault.healed_at - fault.began_at) / SECOND,
        lost_runs=len(lost),
        reclaim_seconds=None if reclaimed_at is None else (reclaimed_at - fault.began_at) / SECOND,
        stall_seconds=_stall_ns(recording, fault) / SECOND,
    )


def _lost_attempts(recording: Recording, fault: InjectedFault) -> Instants:
    """Return the rows of the attempts that a fault cut off, in `Recording.attempts`.

    Those that were taken back from the worker that it hit, and those whose process was killed by it.
    """
    attempts, runs = recording.attempts, recording.runs
    lost = np.zeros(len(attempts), np.bool_)
    if fault.lost_worker in recording.workers:
        worker = recording.workers.index(fault.lost_worker)
        lost |= (attempts["worker"] == worker) & (attempts["outcome"] == Outcome.RECLAIMED)
    gone_at = column(runs, "stopped_at")
    killed = (runs["end"] == RunEnd.KILLED) & (gone_at >= fault.began_at) & (gone_at <= fault.healed_at)
    rows = rows_of(attempt_keys(attempts), attempt_keys(runs[killed]))
    lost[rows[rows != NONE]] = True
    return np.flatnonzero(lost).astype(np.int64)


def _granted_again(recording: Recording, lost: Instants) -> int | None:
    keys = attempt_keys(recording.attempts)
    again = rows_of(keys, keys[lost] + 1)
    if not len(lost) or bool((again == NONE).any()):
        return None
    granted_at = int(column(recording.attempts, "granted_at")[again].max())
    return None if granted_at == NEVER else granted_at


def _stall_ns(recording: Recording, fault: InjectedFault) -> int:
    """Return the longest time between two starts, from the last one before the fault to the next fault."""
    starts = np.sort(column(recording.runs, "started_at"))
    others = (other.began_at for other in recording.faults if other.began_at > fault.began_at)
    first = max(int(np.searchsorted(starts, fault.began_at)) - 1, 0)
    own = starts[first : np.searchsorted(starts, min(others, default=NEVER))]
    return int(np.diff(own).max(initial=0))
