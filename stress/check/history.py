"""The history that the rules read: tables, limits, and how exact the clocks of its source are.

`history_of` makes it of a recording. Another source fills the same tables.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from turnstile.stress.check.columns import attempt_keys, column, rows_of, values_at
from turnstile.stress.check.excuses import disturbed
from turnstile.stress.check.limits import LimitTimeline, limit_timeline
from turnstile.stress.recording import (
    NEVER,
    SECOND,
    InjectedFault,
    Instants,
    Outcome,
    Recording,
    Table,
)
from turnstile.stress.scenario import FaultKind

FOREIGN: Final = -2
"""The number of an execution that no recorded submitter sent, which is no fault."""
CLOCKS_NS: Final = 5_000_000
"""Tolerance between the database's wall clock and the monotonic clock of an action on the same host."""
OVERLAP_NS: Final = 4 * SECOND
"""How long a worker trusts its last contact with the broker (3 s), plus the time of a kill."""
WAKING_NS: Final = SECOND
"""How long a resumed process may run before it notices the pause."""
ARRIVAL_NS: Final = 2 * SECOND
"""Outside faults, what the leader has decided is known to a worker after so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What was sent, stored, granted and run."""

    orders: Table
    executions: Table
    attempts: Table
    runs: Table
    """These four as in `Recording`."""
    limits: LimitTimeline
    runs_until: Instants
    """Until when the run of each attempt may last: its end, or later if reclaimed; NEVER: not ended."""
    worker_starts: Instants
    """When its worker started each attempt, by the clock of the worker; NEVER: not known, or never."""
    time_text: Callable[[int], str]
    """Formats an instant."""
    request_text: Callable[[int], str]
    """Names a request by its number."""
    priorities: Instants | None = None
    """Of each execution; None: all have the same."""
    clock_error_ns: int = 0
    """The possible difference between the clocks of two runs."""
    tolerance_ns: int = CLOCKS_NS
    """The possible difference between the clocks of a run and of the database."""
    flawless: bool = True
    """Every request was to be accepted, and every execution to be completed."""
    collapses: tuple[str, ...] = ()
    disturbed: Sequence[tuple[int, int]] = ()
    """Periods in which messages may take long, in their order; see `excuses`."""
    is_changing: bool = False
    """Definitions change. A request whose queue a change has locked is admitted later; others do not wait."""


def history_of(recording: Recording) -> History:
    """Return the history of a recorded scenario."""
    ended_at = column(recording.attempts, "ended_at")
    run_rows = rows_of(attempt_keys(recording.runs), attempt_keys(recording.attempts))
    reclaimed = recording.attempts["outcome"] == Outcome.RECLAIMED

    def time_text(instant: int) -> str:
        return f"{(int(instant) - recording.began_at) / SECOND:.3f} s"

    def request_text(number: int) -> str:
        return f"number {number} of submitter {recording.orders['submitter'][number]}"

    return History(
        orders=recording.orders,
        executions=recording.executions,
        attempts=recording.attempts,
        runs=recording.runs,
        limits=limit_timeline(recording),
        runs_until=np.where(reclaimed, _overlap_until(recording, ended_at), ended_at),
        worker_starts=values_at(column(recording.runs, "started_at"), run_rows, NEVER),
        time_text=time_text,
        request_text=request_text,
        clock_error_ns=recording.clock_error_ns,
        tolerance_ns=CLOCKS_NS + recording.clock_error_ns,
        collapses=recording.collapses,
        disturbed=disturbed(recording),
        is_changing=recording.gates is not None or bool(recording.limit_changes),
    )


def _overlap_until(recording: Recording, over_at: Instants) -> Instants:
    workers = column(recording.attempts, "worker")
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
