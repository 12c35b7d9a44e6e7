"""Judges what happened in a world: the rules of `stress.check`, and what only a simulation can know.

Limits, order, rates and fair shares are judged twice: at each decision of a leader, by the rules of the
explorer (`WatchedLeader`), and by what was committed and what workers really ran. Where a story loses commits
by a failover, the executions and requests of the lost turns are left out of what others saw.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from tests.proof.simulation.broker import COMPLETIONS
from tests.proof.simulation.history import Lost, history, lost_by_failover, recording_of
from tests.proof.simulation.runner import number_of
from tests.proof.simulation.schedules import is_scheduled, schedules_kept
from tests.proof.simulation.story import RequestPlan
from tests.proof.simulation.world import Outcome
from turnstile.common.domain.states import Status
from turnstile.executor.leader.records import EndedRow
from turnstile.stress.check.columns import column
from turnstile.stress.check.history import History
from turnstile.stress.check.order import started_in_order
from turnstile.stress.check.queues import queues_kept
from turnstile.stress.check.rules import RULES
from turnstile.stress.check.timelines import CountedRuns, counted_runs
from turnstile.stress.check.verdict import Rule
from turnstile.stress.recording import NEVER, Instants, Recording, RunEnd

_EXAMPLES: Final = 3


def violations(outcome: Outcome) -> list[str]:
    """Return what is broken, in sentences; the first word names the rule."""
    recording, lost = recording_of(outcome), lost_by_failover(outcome)
    found = [*(f"INVARIANT {text}" for text in outcome.findings), *_storm(outcome)]
    if not outcome.is_quiet:
        found += _left(outcome)
    if len(recording.executions):
        told = history(outcome, recording)
        found += [*_by_history(outcome, recording, told), *_two_at_once(told)]
    found += schedules_kept(outcome.story.schedules, outcome.postgres)
    return [*found, *_outcomes(outcome, lost)]


def _by_history(outcome: Outcome, recording: Recording, told: History) -> Iterator[str]:
    """Apply the rules for what any installation shows."""
    findings = [rule(told).finding() for rule in RULES]
    if outcome.story.has_gates:
        yield from _gates(outcome, told)
    else:
        findings.append(started_in_order(_without_delayed(outcome, told)).finding())
        findings += queues_kept(recording, told)
    for finding in findings:
        if finding.broken and not (finding.rule is Rule.NOTHING_STUCK and not outcome.is_quiet):
            for example in finding.examples[:_EXAMPLES]:
                yield f"{finding.rule.name} ({finding.broken}) {example}"


def _without_delayed(outcome: Outcome, told: History) -> History:
    """Leave out the runs of what was delayed first: its place is not that of its arrival."""
    delayed = [each.run_after is not None for each in outcome.story.requests]
    return replace(told, runs=told.runs[~np.array(delayed, np.bool_)[told.runs["number"]]])


def _left(outcome: Outcome) -> Iterator[str]:
    """Yield what had not ended at the deadline."""
    tables, rabbit = outcome.postgres.tables, outcome.clients.rabbit
    lost = sum(order.confirmed_at == NEVER for order in outcome.clients.orders.values())
    held = {name: len(queue.messages) for name, queue in rabbit.queues.items()}
    unacknowledged = {
        name: sum(len(consumer.unacknowledged) for consumer in queue.consumers)
        for name, queue in rabbit.queues.items()
    }
    kinds = Counter(
        "never granted" if execution_id not in tables.attempts else "granted"
        if tables.attempts[execution_id][-1].ended_at == NEVER else "to be granted again"
        for execution_id in tables.open_ids
    )  # fmt: skip
    yield (
        f"STUCK at {outcome.ended_at:.2f} s: {dict(kinds)} executions such as {list(tables.open_ids)[:3]},"
        f" {len(tables.inbox)} commands, {len(tables.events)} stored events,"
        f" {len(tables.early_cancels)} early cancels, {lost} requests not sent,"
        f" {outcome.witness.running} runs, queues {held}, unacknowledged {unacknowledged}"
    )


def _storm(outcome: Outcome) -> Iterator[str]:
    """Yield that workers sent far more reports than runs and disturbances explain."""
    reports, runs = outcome.clients.rabbit.arrived[COMPLETIONS], len(outcome.witness.records)
    if reports > 10 * runs + 500 * outcome.faults + 5000:
        yield f"STORM {reports} reports of {runs} runs, with {outcome.faults} faults"


def _gates(outcome: Outcome, told: History) -> Iterator[str]:
    """Yield starts above the capacity of a resource or the total of an action."""
    counted, actions = counted_runs(told), column(told.runs, "queue") // max(outcome.story.keys, 1)
    fields = [action.fields for action in outcome.story.actions]
    for resource in outcome.story.resources:
        units = [
            sum(use["units"] for use in each.get("uses", ()) if use["resource"] == resource.name)
            for each in fields
        ]
        weights = np.array(units, np.int64)[actions]
        yield from _above(told, counted, weights, resource.capacity, f"resource {resource.name}")
    for number, each in enumerate(fields):
        if "max_concurrent_total" in each:
            weights = (actions == number).astype(np.int64)
            yield from _above(told, counted, weights, each["max_concurrent_total"], f"total of {number}")


def _above(told: History, counted: CountedRuns, weights: Instants, capacity: int, gate: str) -> Iterator[str]:
    """Yield starts with which more units run than the capacity."""
    known = counted.known & (weights > 0)
    ends = np.maximum(counted.ends[known], counted.starts[known])
    instants = np.concatenate([counted.starts[known], ends])
    steps = np.concatenate([weights[known], -weights[known]])
    order = np.lexsort((steps, instants))
    running = np.cumsum(steps[order])
    for row in np.flatnonzero(running > capacity)[:_EXAMPLES].tolist():
        at = told.time_text(instants[order[row]])
        yield f"UNITS {gate}: {running[row]} units ran at {at}, the capacity is {capacity}"


def _two_at_once(told: History) -> Iterator[str]:
    """Yield executions of which two attempts ran at once, longer than a lost lease may explain."""
    runs, counted = told.runs, counted_runs(told)
    ids = column(runs, "execution_id")
    order = np.lexsort((counted.starts, ids))
    same = ids[order[1:]] == ids[order[:-1]]
    overlap = same & (counted.ends[order[:-1]] > counted.starts[order[1:]])
    for row in np.flatnonzero(overlap)[:_EXAMPLES].tolist():
        first, second = order[row], order[row + 1]
        yield (
            f"ONE_RUN execution {ids[first]} ran in process {runs['process'][first]} until"
            f" {told.time_text(counted.ends[first])}, and from {told.time_text(counted.starts[second])} on in"
            f" process {runs['process'][second]}"
        )


def _outcomes(outcome: Outcome, lost: Lost) -> Iterator[str]:
    """Check each end: it has an event, and its status is what its runs and commands lead to."""
    tables = outcome.postgres.tables
    complete: set[tuple[int, int]] = set()
    ran: set[int] = set()
    for run in outcome.witness.records:
        ran.add(run.execution_id)
        if run.end is RunEnd.STOPPED:
            complete.add((run.execution_id, run.attempt))
    counts: Counter[str] = Counter()
    plans = {plan.number: plan for plan in outcome.story.requests}
    for execution_id, row in tables.ended.items():
        if execution_id in lost.execution_ids or is_scheduled(tables.admitted[execution_id]):
            continue
        number = number_of(tables.admitted[execution_id].parameters)
        events = outcome.clients.events.get(execution_id, set())
        problem = "EVENT", f"ended as {row.status}, and listeners heard {sorted(events) or 'nothing'}"
        if events == {str(row.status)}:
            is_complete = (execution_id, row.attempt) in complete
            unasked = number not in outcome.clients.cancelled
            wrong = _wrong_end(row, plans[number], is_complete=is_complete, unasked=unasked)
            if wrong is None and row.attempt == 0 and execution_id in ran:
                wrong = f"is {row.status} without an attempt, and ran"
            if wrong is None:
                continue
            problem = "OUTCOME", wrong
        counts[problem[0]] += 1
        if counts[problem[0]] <= _EXAMPLES:
            yield f"{problem[0]} execution {execution_id} (request {number}) {problem[1]}"
    for rule, count in counts.items():
        if count > _EXAMPLES:
            yield f"{rule} {count} executions in all"


def _wrong_end(row: EndedRow, plan: RequestPlan, *, is_complete: bool, unasked: bool) -> str | None:
    """Return what is wrong with the status of an end; None: nothing."""
    match row.status:
        case Status.COMPLETED if not is_complete:
            return f"is completed, and its attempt {row.attempt} has no complete run"
        case Status.CANCELLED if unasked:
            return f"is cancelled ({row.error}), and no command asked for it"
        case Status.EXPIRED if plan.ttl_seconds is None:
            return "is expired, and has no time to live"
        case Status.TIMEOUT if plan.timeout_seconds is None:
            return "has timed out, and has no timeout"
        case Status.FAILED if not any(s.kind in ("fail", "retry", "unstorable") for s in plan.script):
            return f"has failed ({row.error}), and its script does not"
        case _:
            return None
