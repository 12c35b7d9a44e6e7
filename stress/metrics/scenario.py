"""Measures one recorded scenario; field names are keys of `report.json`."""

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
from turnstile.stress.metrics.recovery import Recovery, recoveries
from turnstile.stress.recording import NEVER, NONE, SECOND, Instants, Outcome, Recording, RunEnd

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
