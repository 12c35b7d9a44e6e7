"""Recordings for tests, written by hand: a correct one (`correct`), or of these attempts (`hand_made`)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from turnstile.common.domain.states import Status
from turnstile.stress.check.rules import check_recording
from turnstile.stress.check.verdict import Rule
from turnstile.stress.recording import (
    ATTEMPT,
    EXECUTION,
    NEVER,
    ORDER,
    RUN,
    SECOND,
    ActionCounters,
    Answer,
    Audit,
    InjectedFault,
    Outcome,
    Recording,
    RunEnd,
    Table,
    empty,
    status_code,
)
from turnstile.stress.scenario import DurationMix, FaultKind, Load, Scenario

BEGAN_AT: Final = 1_760_000_000 * SECOND
MILLISECOND: Final = 1_000_000
WORKERS: Final = ("worker-0.1", "worker-1.1", "worker-1.2")
"""The second is killed, the third replaces it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One attempt; executions are numbered in the order of their ids. None: that did not happen."""

    id: int
    since: float
    granted: float | None = None
    ended: float | None = None
    start: float | None = None
    """Of the run; left out: with the grant."""
    stop: float | None = None
    """Left out: with the end."""
    queue: int = 0
    attempt: int = 1
    outcome: Outcome = Outcome.ENDED
    run_end: RunEnd = RunEnd.STOPPED
    worker: int = 0


def at(milliseconds: float | None) -> int:
    """Return the instant in milliseconds after the beginning."""
    return NEVER if milliseconds is None else BEGAN_AT + round(milliseconds * MILLISECOND)


def hand_made(*lives: Life, limit: int | None = 1, actions: int = 1, keys: int = 0, **rest: Any) -> Recording:
    """Return the recording of these attempts; its scenario ends with the last of them."""
    lives = tuple(sorted(lives, key=lambda life: (life.id, life.attempt)))
    last = max((at(life.ended) for life in lives if life.ended is not None), default=at(0))
    fields: dict[str, Any] = {
        "scenario": _written_scenario(lives, limit, actions, keys),
        "began_at": BEGAN_AT,
        "ended_at": last,
        "executions": _executions(lives),
        "attempts": _attempts(lives),
        "runs": _runs(lives),
        "workers": WORKERS,
    }
    fields["orders"] = _orders(fields["executions"])
    return Recording(**(fields | rest))


def correct(executions: int = 60, *, limit: int | None = None, keys: int = 0, **rest: Any) -> Recording:
    """Return a correct history of three actions: each execution runs alone in its queue, and at once."""
    lives = [
        Life(
            id=1000 + n, queue=n % (3 * max(keys, 1)), since=10 * n, granted=10 * n + 1, start=10 * n + 2,
            stop=10 * n + 5, ended=10 * n + 6,
        )
        for n in range(executions)
    ]  # fmt: skip
    own = np.bincount([life.queue // max(keys, 1) for life in lives], minlength=3).tolist()
    counters = tuple(
        ActionCounters(
            enqueued_before=17, enqueued=17 + count, completed_before=17, completed=17 + count,
            queue_length=0, active_count=0,
        )
        for count in own
    )  # fmt: skip
    given: dict[str, Any] = {"counters": counters, "audit": Audit(clean=True)} | rest
    return hand_made(*lives, limit=limit, actions=3, keys=keys, **given)


def fault(kind: FaultKind, began: float, healed: float) -> InjectedFault:
    """Return a fault of the second worker."""
    return InjectedFault(
        kind=kind, target="it", began_at=at(began), healed_at=at(healed), lost_worker=WORKERS[1]
    )


def broken(recording: Recording) -> set[Rule]:
    """Return the rules that are broken."""
    return {finding.rule for finding in check_recording(recording).broken}


def _written_scenario(lives: Sequence[Life], limit: int | None, actions: int, keys: int) -> Scenario:
    load = Load(
        executions=len({life.id for life in lives}),
        mix=DurationMix.always(0.0),
        actions=actions,
        keys=keys,
        submitters=1,
    )
    return Scenario(name="by-hand", title="Written by hand", load=load, limit=limit)


def _orders(executions: Table) -> Table:
    orders = empty(ORDER, len(executions))
    orders["submitter"], orders["queue"] = 0, executions["queue"]
    orders["sent_at"] = orders["confirmed_at"] = orders["answered_at"] = executions["created_at"]
    orders["execution_id"], orders["answer"], orders["sendings"] = (
        executions["execution_id"],
        Answer.ACCEPTED,
        1,
    )
    return orders


def _executions(lives: Sequence[Life]) -> Table:
    first = {life.id: life for life in reversed(lives)}
    last = {life.id: life for life in lives}
    executions = empty(EXECUTION, len(first))
    executions["execution_id"] = sorted(first)
    executions["number"] = np.arange(len(first))
    for row, execution_id in enumerate(sorted(first)):
        life = last[execution_id]
        status = Status.QUEUED if life.granted is None else Status.RUNNING
        executions["queue"][row], executions["attempt"][row] = life.queue, life.attempt
        executions["created_at"][row] = at(first[execution_id].since)
        executions["completed_at"][row] = at(life.ended)
        executions["status"][row] = status_code(status if life.ended is None else Status.COMPLETED)
    return executions


def _attempts(lives: Sequence[Life]) -> Table:
    rows = []
    for life in lives:
        if life.granted is not None:
            times = at(life.since), at(life.granted), at(life.granted), at(life.ended)
            rows.append((life.id, life.attempt, life.queue, *times, life.outcome, life.worker))
    return np.array(rows, ATTEMPT)


def _runs(lives: Sequence[Life]) -> Table:
    ids = sorted({life.id for life in lives})
    rows = []
    for life in lives:
        if life.granted is not None:
            start = at(life.granted if life.start is None else life.start)
            stop = at(life.ended if life.stop is None else life.stop)
            which = ids.index(life.id), life.id, life.attempt, life.queue
            rows.append((*which, life.worker, start, stop, life.run_end))
    return np.array(rows, RUN)


def differences_when_loaded(made: Recording, folder: Path) -> list[str]:
    """Save a recording and load it; return the fields that differ."""
    made.save(folder)
    kept = Recording.load(folder)
    pairs = [
        (field.name, getattr(made, field.name), getattr(kept, field.name)) for field in fields(Recording)
    ]
    return [name for name, one, other in pairs if not _is_same(one, other)]


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return one == other
