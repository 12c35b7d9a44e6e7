"""The recovery from each fault of a recorded scenario."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from turnstile.stress.check.columns import attempt_keys, column, rows_of, values_at
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

_BEFORE_NS: Final = 5 * SECOND
_WINDOW_NS: Final = SECOND
_STEP_NS: Final = SECOND // 10
_STEPS: Final = 20
"""The number of later windows that must be as good."""
_ENOUGH: Final = 0.8
_AFFECTED: Final = 0.5
"""Less than this share shows the fault; lower than the above, since the rate always varies."""


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
    recovered_seconds: float | None
    """Until the previous throughput was reached; None: not before the load was over."""


def recoveries(recording: Recording) -> tuple[Recovery, ...]:
    """Return the recovery from each fault, in the order of injection.

    The system has recovered when as many executions end per second as before the fault, or as many as were
    requested, and when all lost runs have slots again. The requests count as planned by the load: while
    submitters cannot send, the missing executions still count.
    """
    return tuple(_recovery(recording, fault) for fault in recording.faults)


def _recovery(recording: Recording, fault: InjectedFault) -> Recovery:
    lost = _lost_attempts(recording, fault)
    reclaimed_at = _granted_again(recording, lost)
    recovered_at = _recovered_at(recording, fault)
    if recovered_at is not None and len(lost):
        recovered_at = None if reclaimed_at is None else max(recovered_at, reclaimed_at)
    return Recovery(
        kind=fault.kind,
        target=fault.target,
        at_seconds=(fault.began_at - recording.began_at) / SECOND,
        healed_seconds=(fault.healed_at - fault.began_at) / SECOND,
        lost_runs=len(lost),
        reclaim_seconds=None if reclaimed_at is None else (reclaimed_at - fault.began_at) / SECOND,
        recovered_seconds=None if recovered_at is None else (recovered_at - fault.began_at) / SECOND,
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


def _recovered_at(recording: Recording, fault: InjectedFault) -> int | None:
    """Return the instant from which executions end as often as before the fault; None: not under the load.

    A fault may take effect late, so the search begins after the last window that it affected while it lasted.
    """
    began_at = fault.began_at
    ends = np.sort(column(recording.executions, "completed_at"))
    ends = ends[ends != NEVER]
    requested = np.sort(_requested_at(recording))
    if not len(ends) or ends[0] >= began_at or ends[-1] <= began_at:
        return None
    since = max(began_at - _BEFORE_NS, int(ends[0]))
    before = np.searchsorted(ends, began_at) - np.searchsorted(ends, since)
    usual = before * _WINDOW_NS / max(began_at - since, _STEP_NS)
    windows = np.arange(began_at, int(ends[-1]) + _STEPS * _STEP_NS, _STEP_NS)
    ended = np.searchsorted(ends, windows, side="right")
    ending = np.searchsorted(ends, windows + _WINDOW_NS, side="right") - ended
    # Where fewer executions are left than usually end in a window, all of them are enough.
    left = np.searchsorted(requested, windows + _WINDOW_NS, side="right") - ended
    possible = np.minimum(usual, left)
    good = np.cumsum(np.append(0, ending >= _ENOUGH * possible))
    affected = np.flatnonzero(
        (ending < _AFFECTED * possible) & (windows <= _effective_until(recording, fault))
    )
    lasting = np.flatnonzero(good[_STEPS + 1 :] - good[: -_STEPS - 1] == _STEPS + 1)
    lasting = lasting[lasting > affected.max(initial=-1)]
    if not len(lasting):
        return None
    # A window may begin before the stall is over; the recovery is the first end in it.
    first_end = np.searchsorted(ends, windows[lasting[0]])
    return int(ends[first_end]) if first_end < len(ends) else None


def _effective_until(recording: Recording, fault: InjectedFault) -> int:
    """Return until when only this fault affects a window: its repair, or the beginning of the next fault."""
    others = (other.began_at for other in recording.faults if other.began_at > fault.began_at)
    return min(fault.healed_at, min(others, default=NEVER) - _WINDOW_NS)


def _requested_at(recording: Recording) -> Instants:
    """Return when the load requested each execution: by its rate, or at the start without a rate."""
    executions, orders, load = recording.executions, recording.orders, recording.scenario.load
    numbers, created_at = column(executions, "number"), column(executions, "created_at")
    known = (numbers >= 0) & (numbers < len(orders))
    sent_at = column(orders, "sent_at")
    planned_at = np.full(len(orders), sent_at.min(initial=NEVER), np.int64)
    if load.rate:
        planned_at += (np.arange(len(orders)) * (SECOND / load.rate)).astype(np.int64)
    by_plan = values_at(np.minimum(planned_at, sent_at), np.where(known, numbers, NONE), NEVER)
    return np.minimum(by_plan, created_at)
