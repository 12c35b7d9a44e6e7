"""Timelines of a recorded scenario: limits in force, stays in queues, and for how long each run counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnstile.common.domain.states import Status
from turnstile.stress.check.columns import attempt_keys, column, rows_of, values_at
from turnstile.stress.check.gates import UNLIMITED
from turnstile.stress.recording import (
    NEVER,
    NONE,
    SECOND,
    InjectedFault,
    Instants,
    Outcome,
    Recording,
    RunEnd,
    status_code,
)
from turnstile.stress.scenario import FaultKind

_ALWAYS: Final = -NEVER


class LimitPeriod(NamedTuple):
    """A limit, and the period in which it may have been in force."""

    limit: int
    since: int
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitTimeline:
    """The limits of all queues over time.

    A change takes effect between its request and its answer; in that period both limits may apply.
    """

    at_first: int
    keys: int
    changed: Mapping[int, tuple[LimitPeriod, ...]]
    """By action, where the limit was changed."""

    def highest(self, queues: Instants, first: Instants, last: Instants) -> Instants:
        """Return the highest limit that may have been in force between `first` and `last`."""
        found = np.full(len(queues), self.at_first, np.int64)
        for rows, pieces in self._of_changed(queues):
            possible = [
                np.where((first[rows] <= p.until) & (last[rows] >= p.since), p.limit, _ALWAYS) for p in pieces
            ]
            found[rows] = np.maximum.reduce(possible)
        return found

    def lowest(self, queues: Instants, at: Instants) -> Instants:
        """Return the lowest limit that may have been in force from the instant on."""
        found = np.full(len(queues), self.at_first, np.int64)
        for rows, pieces in self._of_changed(queues):
            possible = [
                np.where((at[rows] >= p.since) & (at[rows] < p.until), p.limit, NEVER) for p in pieces
            ]
            found[rows] = np.minimum.reduce(possible)
        return found

    def first_change(self, queues: Instants) -> Instants:
        """Return when a change of each queue's limit was first requested; NEVER where there was none."""
        found = np.full(len(queues), NEVER, np.int64)
        for rows, pieces in self._of_changed(queues):
            found[rows] = min((p.since for p in pieces if p.limit != self.at_first), default=NEVER)
        return found

    def breakpoints(self) -> tuple[Instants, Instants]:
        """Return queues and the instants at which their lowest possible limit may change."""
        pairs = [
            (action * self.keys + key, at)
            for action, pieces in self.changed.items()
            for at in {edge for p in pieces for edge in (p.since, p.until)} - {_ALWAYS, NEVER}
            for key in range(self.keys)
        ]
        table = np.array(pairs, np.int64).reshape(-1, 2)
        return table[:, 0].copy(), table[:, 1].copy()

    def _of_changed(self, queues: Instants) -> list[tuple[NDArray[np.int64], tuple[LimitPeriod, ...]]]:
        if not self.changed:
            return []
        actions = queues // self.keys
        return [(np.flatnonzero(actions == action), pieces) for action, pieces in self.changed.items()]


def limit_timeline(recording: Recording) -> LimitTimeline:
    """Return the limits of a scenario over time."""
    at_first = _number(recording.scenario.limit)
    changes = sorted(recording.limit_changes, key=lambda change: change.asked_at)
    changed: dict[int, tuple[LimitPeriod, ...]] = {}
    for action in {change.action for change in changes}:
        own = [change for change in changes if change.action == action]
        limits = [at_first, *(_number(change.limit) for change in own)]
        sinces = [_ALWAYS, *(change.asked_at - recording.clock_error_ns for change in own)]
        untils = [*(min(c.answered_at, NEVER - recording.clock_error_ns) for c in own), NEVER]
        untils[:-1] = [until + recording.clock_error_ns for until in untils[:-1]]
        changed[action] = tuple(map(LimitPeriod, limits, sinces, untils))
    return LimitTimeline(at_first=at_first, keys=max(recording.scenario.load.keys, 1), changed=changed)


def _number(limit: int | None) -> int:
    return UNLIMITED if limit is None else limit


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntries:
    """Each stay of an execution in its queue: one row per grant, and one per execution that still waits."""

    execution_ids: Instants
    queues: Instants
    since: Instants
    granted_at: Instants
    """NEVER: still waiting at the end."""
    ended_at: Instants


def queue_entries(recording: Recording) -> QueueEntries:
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
    )


OVERLAP_NS: Final = 4 * SECOND
"""How long a worker trusts its last contact with the broker (3 s), plus the time of a kill."""
WAKING_NS: Final = SECOND
"""How long a resumed process may run before it notices the pause."""


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


def counted_runs(recording: Recording) -> CountedRuns:
    """Return for how long each run counts."""
    runs, attempts = recording.runs, recording.attempts
    rows = rows_of(attempt_keys(attempts), attempt_keys(runs))
    over_at = values_at(column(attempts, "ended_at"), rows, NEVER)
    reclaimed = values_at(column(attempts, "outcome"), rows, Outcome.OPEN) == Outcome.RECLAIMED
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
    workers = values_at(column(recording.attempts, "worker"), rows, NONE)
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
