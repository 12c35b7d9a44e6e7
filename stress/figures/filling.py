"""How well the slots were filled, and in which order they were started.

In: a recording, and up to when it is measured. Out: counts and shares. Next: `measure`.
"""

import numpy as np

from turnstile.stress.check.columns import column
from turnstile.stress.check.in_force import UNLIMITED, limits_in_force
from turnstile.stress.check.line import stays
from turnstile.stress.check.occupancy import at_each_start
from turnstile.stress.check.running_extremes import highest_before
from turnstile.stress.check.runs import counted_runs
from turnstile.stress.check.starts import first_starts
from turnstile.stress.check.sweep import Spans, sweep
from turnstile.stress.recording import Recording
from turnstile.stress.tables import NEVER, NONE


def most_held(recording: Recording, until: int) -> int:
    """Return the most slots of one queue that were held at one moment."""
    line = stays(recording)
    rows = np.flatnonzero(line.granted_at < until)
    held = at_each_start(line.queues[rows], line.granted_at[rows], line.ended_at[rows])
    return int(held.max(initial=0))


def most_running(recording: Recording, until: int) -> int:
    """Return the most of one queue that ran at one moment."""
    counted = counted_runs(recording)
    queues = column(recording.runs, "queue")
    rows = np.flatnonzero((counted.starts < until) & (queues != NONE))
    running = at_each_start(queues[rows], counted.starts[rows], counted.ends[rows])
    return int(running.max(initial=0))


def idle_share(recording: Recording, until: int) -> float | None:
    """Return which share of the time of all slots no run filled, while somebody waited for them."""
    line, counted, limits = stays(recording), counted_runs(recording), limits_in_force(recording)
    waits = Spans(queues=line.queues, starts=line.since, ends=line.granted_at)
    runs = Spans(queues=column(recording.runs, "queue"), starts=counted.starts, ends=counted.ends)
    states = sweep(waits, runs, limits.breakpoints(), until)
    limit = limits.least(states.queues, states.since)
    opened_at = recording.began_at if recording.opened_at == NEVER else recording.opened_at
    lasting_ns = np.maximum(states.until - np.maximum(states.since, opened_at), 0)
    counts = (states.waiting > 0) & (limit != UNLIMITED)
    slots_ns = float((limit[counts] * lasting_ns[counts].astype(np.float64)).sum())
    filled = np.minimum(states.present, limit)
    filled_ns = float((filled[counts] * lasting_ns[counts].astype(np.float64)).sum())
    return 1 - filled_ns / slots_ns if slots_ns else None


def started_out_of_order(recording: Recording, until: int) -> float | None:
    """Return the share of starts before which a later request of the same queue had started."""
    first = first_starts(recording)
    rows = np.flatnonzero(first.starts < until)
    ids = first.execution_ids[rows]
    return float((highest_before(first.queues[rows], ids) > ids).mean()) if len(ids) else None
