"""For how long a physical run counts.

In: runs, and the attempts that they belong to. Out: spans. Next: `limit` counts them, `unexpected` asks
whether they lie where they should.

A run that says when it stopped counts until then. There are two exceptions:

- A worker that was lost may run on past the reclaim of its attempt for a short time that is documented: it
  hears the word to stop, or learns of its state, only then. Within that time a run counts until its reclaim,
  because from there on its slot is another's. One that goes on for longer counts whole.
- Of a run whose end nobody saw it is known that its slot was held until the end of its attempt. It counts
  until then, and no further.

Clocks that may be off shorten each run at both ends: only what certainly ran at once counts.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.check.columns import attempt_keys, column, rows_of, taken
from turnstile.stress.recording import InjectedFault, Recording
from turnstile.stress.stage import FaultKind
from turnstile.stress.tables import NEVER, NONE, SECOND, Instants, Outcome, RunEnd

OVERLAP_NS: Final = 4 * SECOND
"""How long an answer of the broker counts for a worker in doubt (3 s), and the time that a kill takes."""
WAKING_NS: Final = SECOND
"""What a process that stood still may do before it notices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRuns:
    """Each run, from its start until it no longer counts; rows as in `Recording.runs`."""

    attempt_rows: Instants
    """Row of its attempt; NONE: the record knows of none."""
    starts: Instants
    ends: Instants
    allowed_until: Instants
    """Until when it may go on: the end of its attempt, or later if that was reclaimed; NEVER: not ended."""
    known: NDArray[np.bool_]
    """Its end was seen."""


def counted_runs(recording: Recording) -> CountedRuns:
    """Return for how long each run counts."""
    runs, attempts = recording.runs, recording.attempts
    rows = rows_of(attempt_keys(attempts), attempt_keys(runs))
    over_at = taken(column(attempts, "ended_at"), rows, NEVER)
    reclaimed = taken(column(attempts, "outcome"), rows, Outcome.OPEN) == Outcome.RECLAIMED
    allowed_until = np.where(reclaimed, _overlap_until(recording, rows, over_at), over_at)
    starts, stops = column(runs, "started_at"), column(runs, "stopped_at")
    known = column(runs, "end") != RunEnd.UNKNOWN
    unseen = np.where(rows == NONE, starts, over_at)
    seen = np.where(reclaimed & (stops <= allowed_until), np.minimum(stops, over_at), stops)
    ends = np.where(known, seen, unseen)
    return CountedRuns(
        attempt_rows=rows,
        starts=starts + recording.clock_error_ns,
        ends=ends - np.where(ends == NEVER, 0, recording.clock_error_ns),
        allowed_until=allowed_until,
        known=known,
    )


def _overlap_until(recording: Recording, rows: Instants, over_at: Instants) -> Instants:
    workers = taken(column(recording.attempts, "worker"), rows, NONE)
    until = over_at + np.where(over_at == NEVER, 0, OVERLAP_NS)
    for fault in recording.faults:
        if fault.kind is not FaultKind.PAUSE_WORKER:
            continue
        awake_at = fault.healed_at + WAKING_NS
        paused = _ran_by(recording, fault, workers) & (over_at >= fault.began_at) & (over_at <= awake_at)
        until = np.where(paused, np.maximum(until, awake_at), until)
    return until


def _ran_by(recording: Recording, fault: InjectedFault, workers: Instants) -> NDArray[np.bool_]:
    if fault.lost_worker not in recording.workers:
        return np.ones(len(workers), np.bool_)
    ran: NDArray[np.bool_] = workers == recording.workers.index(fault.lost_worker)
    return ran
