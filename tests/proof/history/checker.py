"""Checks a recording against the promises: each rule is one function.

In: a `Recording` and `Bounds`. Out: `Violation`s, none for a correct history, and `Statistics` of it. Pure:
the same recording always has the same violations.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from tests.proof.history import attempt_rules, execution_rules, queue_rules
from tests.proof.history.recording import Bounds, Recording, Violation, WorkerChange, WorkerEvent
from tests.proof.history.replay import attempts_of, idle_spans, reclaims, transitions_of
from turnstile.common.broker.topology import EXECUTION_COMPLETED
from turnstile.common.domain.states import is_terminal

Rule: TypeAlias = Callable[[Recording, Bounds], Iterator[Violation]]

RULES: Final[tuple[Rule, ...]] = (
    queue_rules.grants_keep_the_limit,
    queue_rules.runs_keep_the_limit,
    queue_rules.grants_take_the_head,
    queue_rules.first_grants_follow_ids,
    queue_rules.ids_follow_arrival,
    execution_rules.transitions_are_legal,
    execution_rules.statuses_agree_with_rows,
    execution_rules.ends_are_published,
    execution_rules.slots_are_freed_once,
    execution_rules.slots_are_freed_in_time,
    execution_rules.submits_are_kept,
    execution_rules.executions_end,
    attempt_rules.attempts_are_numbered,
    attempt_rules.attempts_have_one_worker,
    attempt_rules.lost_workers_change_nothing,
    attempt_rules.workers_register_once,
    attempt_rules.claims_run_once,
    attempt_rules.runs_end_with_their_attempts,
    queue_rules.free_slots_are_granted,
    queue_rules.lost_work_is_reclaimed,
)


def violations(recording: Recording, *, bounds: Bounds) -> list[Violation]:
    """Return everything that breaks a promise."""
    return [violation for rule in RULES for violation in rule(recording, bounds)]


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
        completions_published=sum(message.type == EXECUTION_COMPLETED for message in recording.published),
        worst_slot_leak_seconds=_worst(
            a.frees[0].stamp.at - a.end.stamp.at for a in attempts if a.end and a.frees
        ),
        worst_reclaim_seconds=_worst(until - since for _, since, until in reclaimed),
        worst_idle_seconds=_worst(until - since for _, since, until in idle_spans(events)),
    )


def _worst(durations: Iterable[timedelta]) -> float:
    return max(durations, default=timedelta()).total_seconds()
