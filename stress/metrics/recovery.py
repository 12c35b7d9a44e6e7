"""The recovery from each fault of a recorded scenario."""

from dataclasses import dataclass

import numpy as np

from turnstile.stress.check.columns import attempt_keys, column, rows_of
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
