"""Checks a recording against the promises.

In: a `Recording` and `Bounds`. Out: `Violation`s, none for a correct history, and `Statistics` of it. Pure:
the same recording always has the same violations. What any history shows (limits, order, idle slots,
requests, runs) is for the rules of `turnstile.stress.check`, over the moves of each queue (`replay`) and over
`tables`. `EVENT_RULES` are on what no stored history shows: each transition and its transaction, messages,
heartbeats.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from tests.proof.history import attempt_rules, execution_rules
from tests.proof.history.recording import Bounds, Recording, Violation, WorkerChange, WorkerEvent, moment
from tests.proof.history.replay import (
    attempts_of,
    longest_idle,
    reclaims,
    replayed_queues,
    transitions_of,
    waited_for_workers,
)
from tests.proof.history.tables import history_of
from turnstile.common.broker.topology import EXECUTION_COMPLETED
from turnstile.common.domain.states import is_terminal
from turnstile.stress.check.accounting import nothing_unexpected
from turnstile.stress.check.columns import Ruling
from turnstile.stress.check.rules import RULES
from turnstile.stress.check.verdict import Rule

EventRule: TypeAlias = Callable[[Recording, Bounds], Iterator[Violation]]

EVENT_RULES: Final[tuple[EventRule, ...]] = (
    execution_rules.transitions_are_legal,
    execution_rules.statuses_agree_with_rows,
    execution_rules.ends_are_published,
    execution_rules.slots_are_freed_once,
    execution_rules.slots_are_freed_in_time,
    attempt_rules.attempts_are_numbered,
    attempt_rules.attempts_have_one_worker,
    attempt_rules.lost_workers_change_nothing,
    attempt_rules.workers_register_once,
    attempt_rules.lost_work_is_reclaimed,
)
_PROMISES: Final = {
    Rule.LIMIT_HELD: "P1",
    Rule.LIMIT_RUN: "P1",
    Rule.GRANTED_IN_ORDER: "P2",
    Rule.ADMITTED_IN_ORDER: "P2",
    Rule.NO_IDLE_SLOT: "P7",
}


def violations(recording: Recording, *, bounds: Bounds) -> list[Violation]:
    """Return everything that breaks a promise."""
    history = history_of(recording, bounds)
    return [
        *(violation for rule in EVENT_RULES for violation in rule(recording, bounds)),
        *_of_queues(recording, bounds),
        *(violation for rule in RULES for violation in _of_table(rule(history))),
    ]


def late_runs(recording: Recording, *, bounds: Bounds) -> list[Violation]:
    """Return only what runs break beside their attempts, with another bound on the overlap."""
    return list(_of_table(nothing_unexpected(history_of(recording, bounds))))


def _of_queues(recording: Recording, bounds: Bounds) -> Iterator[Violation]:
    queues = replayed_queues(recording.events, idle_seconds=bounds.idle_seconds, excused=bounds.excused())
    for queue in queues:
        for broken in queue.broken:
            yield Violation(
                promise=_PROMISES[broken.rule],
                what=broken.what,
                at=moment(broken.at),
                queue_id=broken.gate,
                execution_id=broken.execution_id,
            )


def _of_table(ruling: Ruling) -> Iterator[Violation]:
    for what, execution_id in ruling.each():
        # The rules on unexpected rows are on requests, or on attempts and their runs.
        promise = _PROMISES.get(ruling.rule) or ("P6" if what.startswith("attempt") else "P5")
        yield Violation(promise=promise, what=what, execution_id=execution_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counts and worst times of a whole run, faults included."""

    executions: int
    ends: Mapping[str, int]
    """Executions by terminal status."""
    grants: int
    runs: int
    reclaims: int
    workers_lost: int
    waited_for_workers: int
    """Executions that their queue could have started, but no worker slot was free."""
    completions_published: int
    """Copies included."""
    worst_slot_leak_seconds: float
    """From the end of an attempt until its slot was free."""
    worst_reclaim_seconds: float
    """From the last heartbeat of a lost worker until its work was reclaimed."""
    worst_idle_seconds: float
    """A free slot beside a runnable waiting execution."""


def statistics(recording: Recording) -> Statistics:
    """Count and measure."""
    events = recording.events
    last = [transitions[-1].status for transitions in transitions_of(events).values()]
    attempts = attempts_of(events).values()
    reclaimed = list(reclaims(events))
    return Statistics(
        executions=len(last),
        ends=Counter(str(status) for status in last if status and is_terminal(status)),
        grants=sum(len(attempt.grants) for attempt in attempts),
        runs=len(recording.runs),
        reclaims=len(reclaimed),
        workers_lost=sum(isinstance(e, WorkerEvent) and e.change is WorkerChange.LOST for e in events),
        waited_for_workers=len(waited_for_workers(events)),
        completions_published=sum(message.type == EXECUTION_COMPLETED for message in recording.published),
        worst_slot_leak_seconds=_worst(
            a.frees[0].stamp.at - a.end.stamp.at for a in attempts if a.end and a.frees
        ),
        worst_reclaim_seconds=_worst(until - since for _, since, until in reclaimed),
        worst_idle_seconds=longest_idle(events).total_seconds(),
    )


def _worst(durations: Iterable[timedelta]) -> float:
    return max(durations, default=timedelta()).total_seconds()
