"""What lies between the end of one execution and the start of the next that takes its slot.

In: a recording. Out: latencies in nanoseconds, one for each hand-over. Next: `spread`.
"""

from dataclasses import dataclass

import numpy as np

from turnstile.stress.check.columns import attempt_keys, column, rows_of
from turnstile.stress.check.in_force import limits_in_force
from turnstile.stress.recording import Recording
from turnstile.stress.tables import NEVER, NONE, Instants, Outcome, RunEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOvers:
    """One row for each slot that passed from one execution to another that was waiting for it."""

    granted_at: Instants
    stop_to_start_ns: Instants
    """By the clock of the host on which both ran."""
    end_to_grant_ns: Instants
    """By the clock of the database."""


def hand_overs(recording: Recording) -> HandOvers:
    """Match each grant on a full queue to the end that freed its slot.

    Each grant takes the slot that has been free for longest: with N slots the k-th grant takes that of the
    end number k - N. It counts if it was waiting before that end, and if both ran as they should. Only grants
    before the first change of their limit count: after it, a new slot cannot be told from a freed one.
    """
    limit = recording.stage.limit
    if limit is None:
        return _nothing()
    attempts = recording.attempts[recording.attempts["queue"] != NONE]
    changed_at = limits_in_force(recording).first_change(column(attempts, "queue"))
    attempts = attempts[attempts["granted_at"] < changed_at]
    queues, ids = column(attempts, "queue"), column(attempts, "execution_id")
    granted_at, ended_at = column(attempts, "granted_at"), column(attempts, "ended_at")
    grants = np.lexsort((ids, granted_at, queues))
    # The same rows in another order: in both, each queue takes up the same places.
    ends = np.lexsort((ids, ended_at, queues))
    first_of_queue = np.searchsorted(queues[grants], queues[grants])
    places = np.flatnonzero(np.arange(len(grants)) - first_of_queue >= limit)
    takers, leavers = grants[places], ends[places - limit]
    matched = (
        (ended_at[leavers] <= granted_at[takers])
        & (column(attempts, "waiting_since")[takers] <= ended_at[leavers])
        & (attempts["outcome"][leavers] == Outcome.ENDED)
    )
    takers, leavers = takers[matched], leavers[matched]
    runs = recording.runs
    run_of = rows_of(attempt_keys(runs), attempt_keys(attempts))
    started, stopped = run_of[takers], run_of[leavers]
    ran = (started != NONE) & (stopped != NONE)
    if len(runs):
        ran &= runs["end"][stopped] == RunEnd.STOPPED
    takers, leavers, started, stopped = takers[ran], leavers[ran], started[ran], stopped[ran]
    return HandOvers(
        granted_at=granted_at[takers],
        stop_to_start_ns=column(runs, "started_at")[started] - column(runs, "stopped_at")[stopped],
        end_to_grant_ns=granted_at[takers] - ended_at[leavers],
    )


def grants_to_starts(recording: Recording, until: int) -> Instants:
    """Return what lies between each grant and its start, in nanoseconds.

    By the action's own start; where clocks may be off, by the claim, which the database saw itself.
    """
    attempts = recording.attempts
    granted_at, started_at = column(attempts, "granted_at"), column(attempts, "started_at")
    if not recording.clock_error_ns:
        runs = rows_of(attempt_keys(recording.runs), attempt_keys(attempts))
        # Row NONE is the last one: an attempt that never ran never started.
        started_at = np.append(column(recording.runs, "started_at"), NEVER)[runs]
    counts = np.flatnonzero((granted_at < until) & (started_at != NEVER))
    latencies_ns: Instants = started_at[counts] - granted_at[counts]
    return latencies_ns


def _nothing() -> HandOvers:
    none = np.empty(0, np.int64)
    return HandOvers(granted_at=none, stop_to_start_ns=none, end_to_grant_ns=none)
