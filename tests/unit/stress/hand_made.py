"""Small recordings written by hand: one line for each attempt, in milliseconds from the beginning.

In: lives of executions. Out: a `Recording` that holds them and nothing that contradicts them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.unit.stress.histories import BEGAN_AT, MILLISECOND, WORKERS
from turnstile.common.domain.states import Status
from turnstile.stress.check.judge import judge
from turnstile.stress.check.verdict import Rule
from turnstile.stress.mix import DurationMix
from turnstile.stress.recording import InjectedFault, Recording
from turnstile.stress.stage import FaultKind, Load, Purpose, Stage
from turnstile.stress.tables import (
    ATTEMPT,
    EXECUTION,
    NEVER,
    ORDER,
    RUN,
    SAMPLE,
    Answer,
    Outcome,
    RunEnd,
    Table,
    empty,
    status_code,
)


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
    """Return the instant so many milliseconds after the beginning."""
    return NEVER if milliseconds is None else BEGAN_AT + round(milliseconds * MILLISECOND)


def hand_made(*lives: Life, limit: int | None = 1, actions: int = 1, keys: int = 0, **rest: Any) -> Recording:
    """Return the recording of these lives; its stage ends when all of them have."""
    lives = tuple(sorted(lives, key=lambda life: (life.id, life.attempt)))
    last = max((at(life.ended) for life in lives if life.ended is not None), default=at(0))
    fields: dict[str, Any] = {
        "stage": _stage(lives, limit, actions, keys, rest.pop("purpose", Purpose.LOAD)),
        "began_at": BEGAN_AT,
        "ended_at": last,
        "executions": _executions(lives),
        "attempts": _attempts(lives),
        "runs": _runs(lives),
        "samples": empty(SAMPLE, 0),
        "workers": WORKERS,
    }
    fields["orders"] = _orders(fields["executions"])
    return Recording(**(fields | rest))


def fault(kind: FaultKind, began: float, healed: float) -> InjectedFault:
    """Return a fault that befell the second worker."""
    return InjectedFault(
        kind=kind, target="it", began_at=at(began), healed_at=at(healed), lost_worker=WORKERS[1]
    )


def broken(recording: Recording) -> set[Rule]:
    """Return the rules that are broken."""
    return {finding.rule for finding in judge(recording).broken}


def _stage(lives: Sequence[Life], limit: int | None, actions: int, keys: int, purpose: Purpose) -> Stage:
    load = Load(
        executions=len({life.id for life in lives}),
        mix=DurationMix.always(0.0),
        actions=actions,
        keys=keys,
        submitters=1,
    )
    return Stage(name="by-hand", title="Written by hand", purpose=purpose, load=load, limit=limit)


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
    rows = [
        (
            life.id,
            life.attempt,
            life.queue,
            at(life.since),
            at(life.granted),
            at(life.granted),
            at(life.ended),
            life.outcome,
            life.worker,
        )
        for life in lives
        if life.granted is not None
    ]
    return np.array(rows, ATTEMPT)


def _runs(lives: Sequence[Life]) -> Table:
    ids = sorted({life.id for life in lives})
    rows = [
        (
            ids.index(life.id),
            life.id,
            life.attempt,
            life.queue,
            life.worker,
            at(life.granted if life.start is None else life.start),
            at(life.ended if life.stop is None else life.stop),
            life.run_end,
        )
        for life in lives
        if life.granted is not None
    ]
    return np.array(rows, RUN)
