"""Timelines of a history: stays in queues, and for how long each run counts."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnstile.common.domain.states import Status
from turnstile.stress.check.columns import attempt_keys, column, rows_of, values_at
from turnstile.stress.check.history import History
from turnstile.stress.recording import (
    NEVER,
    NONE,
    Instants,
    Outcome,
    Recording,
    RunEnd,
    status_code,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntries:
    """Each stay of an execution in its queue: one row per grant, and one per execution that still waits."""

    execution_ids: Instants
    queues: Instants
    since: Instants
    granted_at: Instants
    """NEVER: still waiting at the end."""
    ended_at: Instants
    workers: Instants
    """NONE: not known."""


def queue_entries(recording: Recording | History) -> QueueEntries:
    """Return every stay in a queue of the scenario: those of the attempts in their order, then the rest."""
    attempts = recording.attempts[recording.attempts["queue"] != NONE]
    executions = recording.executions[recording.executions["queue"] != NONE]
    ids = column(attempts, "execution_id")
    waits = (executions["status"] == status_code(Status.QUEUED)) & (executions["completed_at"] == NEVER)
    left = executions[waits]
    open_ids = ids[attempts["ended_at"] == NEVER]
    left = left[rows_of(open_ids, column(left, "execution_id")) == NONE]
    since = column(left, "created_at")
    # An execution with earlier attempts waits again from the end of the last one.
    latest = np.lexsort((column(attempts, "attempt"), ids))[::-1]
    rows = rows_of(ids[latest], column(left, "execution_id")) if len(left) else np.empty(0, np.int64)
    again = rows != NONE
    since[again] = column(attempts, "ended_at")[latest[rows[again]]]
    never = np.full(len(left), NEVER, np.int64)
    return QueueEntries(
        execution_ids=np.concatenate([ids, column(left, "execution_id")]),
        queues=np.concatenate([column(attempts, "queue"), column(left, "queue")]),
        since=np.concatenate([column(attempts, "waiting_since"), since]),
        granted_at=np.concatenate([column(attempts, "granted_at"), never]),
        ended_at=np.concatenate([column(attempts, "ended_at"), never]),
        workers=np.concatenate([column(attempts, "worker"), np.full(len(left), NONE, np.int64)]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRuns:
    """For how long each run counts against the limit; rows as in `Recording.runs`.

    A run with a known stop counts until then, with two exceptions:

    - A lost worker may run on past the reclaim of its attempt for a documented time, until it receives the
      cancel message or learns its state. Within that time, a run counts until its reclaim, when its slot
      passes to another execution. A run that lasts longer counts completely.
    - Of a run whose end was not observed, it is known that its slot was held until the end of its attempt. It
      counts until then.

    Clocks that may differ shorten each run at both ends: only certain overlaps count.
    """

    attempt_rows: Instants
    """Row of its attempt; NONE: there is none in the history."""
    starts: Instants
    ends: Instants
    allowed_until: Instants
    """Until when it may run: the end of its attempt, or later if that was reclaimed; NEVER: not ended."""
    known: NDArray[np.bool_]
    """Its end was observed."""


def counted_runs(history: History) -> CountedRuns:
    """Return for how long each run counts."""
    runs, attempts = history.runs, history.attempts
    rows = rows_of(attempt_keys(attempts), attempt_keys(runs))
    over_at = values_at(column(attempts, "ended_at"), rows, NEVER)
    reclaimed = values_at(column(attempts, "outcome"), rows, Outcome.OPEN) == Outcome.RECLAIMED
    allowed_until = values_at(history.runs_until, rows, NEVER)
    starts, stops = column(runs, "started_at"), column(runs, "stopped_at")
    known = column(runs, "end") != RunEnd.UNKNOWN
    unseen = np.where(rows == NONE, starts, over_at)
    seen = np.where(reclaimed & (stops <= allowed_until), np.minimum(stops, over_at), stops)
    ends = np.where(known, seen, unseen)
    return CountedRuns(
        attempt_rows=rows,
        starts=starts + history.clock_error_ns,
        ends=ends - np.where(ends == NEVER, 0, history.clock_error_ns),
        allowed_until=allowed_until,
        known=known,
    )
