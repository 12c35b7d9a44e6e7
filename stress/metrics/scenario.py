"""Measures one recorded scenario."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from turnstile.stress.check.columns import attempt_keys, column, highest_before, rows_of
from turnstile.stress.check.gates import UNLIMITED, Move, replayed
from turnstile.stress.check.history import history_of
from turnstile.stress.check.limits import limit_timeline
from turnstile.stress.check.order import first_starts
from turnstile.stress.check.queues import run_moves, slot_moves
from turnstile.stress.check.timelines import queue_entries
from turnstile.stress.metrics.recovery import recoveries
from turnstile.stress.metrics.values import ScenarioMetrics, Spread
from turnstile.stress.recording import NEVER, NONE, SECOND, Instants, Outcome, Recording, RunEnd


def measure_scenario(recording: Recording) -> ScenarioMetrics:
    """Return the metrics of a scenario."""
    until = measured_until(recording)
    ended, seconds = _pace(recording, until)
    handed = hand_overs(recording)
    return ScenarioMetrics(
        ended=ended,
        seconds=seconds,
        executions_per_second=ended / seconds if seconds else 0.0,
        sent_per_second=_sent_per_second(recording),
        answer=_answer(recording),
        hand_over=spread(handed.stop_to_start_ns),
        end_to_grant=spread(handed.end_to_grant_ns),
        grant_to_start=spread(grants_to_starts(recording, until)),
        peak_slots=peak_slots(recording, until),
        peak_runs=peak_running(recording, until),
        idle_share=idle_share(recording, until),
        started_out_of_order=started_out_of_order(recording, until),
        recoveries=recoveries(recording),
    )


def _pace(recording: Recording, until: int) -> tuple[int, float]:
    """Return the number of ended executions, and the seconds from the first request or resume to the last."""
    ends = column(recording.executions, "completed_at")
    ends = ends[(ends <= until) & (ends != NEVER)]
    sent_at = int(column(recording.orders, "sent_at").min(initial=NEVER))
    first = sent_at if recording.opened_at == NEVER else recording.opened_at
    last = int(ends.max(initial=0))
    return len(ends), max(last - first, 0) / SECOND


def _sent_per_second(recording: Recording) -> float:
    confirmed = recording.orders[recording.orders["confirmed_at"] != NEVER]
    if not len(confirmed):
        return 0.0
    lasted_ns = int(confirmed["confirmed_at"].max()) - int(confirmed["sent_at"].min())
    return len(confirmed) * SECOND / lasted_ns if lasted_ns > 0 else 0.0


def _answer(recording: Recording) -> Spread | None:
    answered_at, sent_at = column(recording.orders, "answered_at"), column(recording.orders, "sent_at")
    answered = np.flatnonzero(answered_at != NEVER)
    return spread(answered_at[answered] - sent_at[answered])


def peak_slots(recording: Recording, until: int) -> int:
    """Return the peak number of slots of one queue: what a run has beyond the limit has none."""
    return _peak(slot_moves(recording), until)


def peak_running(recording: Recording, until: int) -> int:
    """Return the peak number of concurrent runs of one queue."""
    return _peak(run_moves(history_of(recording)), until)


def _peak(moves: Iterator[Move], until: int) -> int:
    queues = (queue for queue in replayed(moves, until=until) if queue.at < until)
    return max((min(len(queue.held), queue.at_most) for queue in queues), default=0)


def idle_share(recording: Recording, until: int) -> float | None:
    """Return the share of the slot time, while executions waited, that no run used."""
    opened_at = recording.began_at if recording.opened_at == NEVER else recording.opened_at
    slots_ns = filled_ns = 0
    before = None
    for queue in replayed(run_moves(history_of(recording), queue_entries(recording)), until=until):
        if before is not None:
            since, limit, running = before
            lasted_ns = max(min(queue.at, until) - max(since, opened_at), 0)
            slots_ns += limit * lasted_ns
            filled_ns += min(running, limit) * lasted_ns
        counts = queue.waiting and queue.at < until and queue.at_least != UNLIMITED
        before = (queue.at, queue.at_least, len(queue.held)) if counts else None
    return 1 - filled_ns / slots_ns if slots_ns else None


def started_out_of_order(recording: Recording, until: int) -> float | None:
    """Return the share of starts after the start of a later request of the same queue."""
    first = first_starts(recording)
    rows = np.flatnonzero(first.starts < until)
    ids = first.execution_ids[rows]
    return float((highest_before(first.queues[rows], ids) > ids).mean()) if len(ids) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOvers:
    """The slots that passed from one execution to a waiting one."""

    stop_to_start_ns: Instants
    """By the clock of the host of both runs."""
    end_to_grant_ns: Instants
    """By the clock of the database, of those that were granted after that end."""


def hand_overs(recording: Recording) -> HandOvers:
    """Match each start in a full queue with the stop that freed its slot.

    A start takes the slot that has been free for longest: with N slots, start k takes the slot of stop k - N.
    It counts if its execution was waiting before that stop, and if both have regular runs. Only what was
    granted before the first change of the limit counts: after it, a new slot cannot be distinguished from a
    freed one.
    """
    limit = recording.scenario.limit
    if limit is None:
        none = np.empty(0, np.int64)
        return HandOvers(stop_to_start_ns=none, end_to_grant_ns=none)
    runs, attempts = recording.runs, recording.attempts[recording.attempts["queue"] != NONE]
    run_of = rows_of(attempt_keys(runs), attempt_keys(attempts))
    changed_at = limit_timeline(recording).first_change(column(attempts, "queue"))
    has_run = (run_of != NONE) & (attempts["granted_at"] < changed_at)
    attempts, run_of = attempts[has_run], run_of[has_run]
    queues, ids = column(attempts, "queue"), column(attempts, "execution_id")
    granted_at, ended_at = column(attempts, "granted_at"), column(attempts, "ended_at")
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
    takers, leavers = takers[matched], leavers[matched]
    end_to_grant_ns = granted_at[takers] - ended_at[leavers]
    return HandOvers(
        stop_to_start_ns=started_at[takers] - freed_at[leavers],
        # In a run it was granted before that end.
        end_to_grant_ns=end_to_grant_ns[end_to_grant_ns >= 0],
    )


def grants_to_starts(recording: Recording, until: int) -> Instants:
    """Return the nanoseconds from each grant to its start.

    The start is the action's own; where clocks may differ, it is the reported one.
    """
    attempts = recording.attempts
    granted_at, started_at = column(attempts, "granted_at"), column(attempts, "started_at")
    if not recording.clock_error_ns:
        runs = rows_of(attempt_keys(recording.runs), attempt_keys(attempts))
        # Row NONE is the last one, with NEVER: the attempt never ran.
        started_at = np.append(column(recording.runs, "started_at"), NEVER)[runs]
    counts = np.flatnonzero((granted_at < until) & (started_at != NEVER))
    latencies_ns: Instants = started_at[counts] - granted_at[counts]
    return latencies_ns


_MILLISECOND: Final = 1e6


def spread(latencies_ns: Instants) -> Spread | None:
    """Return the percentiles of a latency; None: there was nothing to measure."""
    if not len(latencies_ns):
        return None
    # The nearest rank: a latency that was measured.
    ranks = np.percentile(latencies_ns, (50, 90, 99, 100), method="inverted_cdf") / _MILLISECOND
    p50_ms, p90_ms, p99_ms, max_ms = ranks.tolist()
    return Spread(count=len(latencies_ns), p50_ms=p50_ms, p90_ms=p90_ms, p99_ms=p99_ms, max_ms=max_ms)


def measured_until(recording: Recording) -> int:
    """Return when the measured part of a scenario ends: with it, or when its limit is lifted to drain it."""
    if recording.scenario.drain_without_limit_after is None:
        return recording.ended_at
    return min((change.asked_at for change in recording.limit_changes), default=recording.ended_at)
