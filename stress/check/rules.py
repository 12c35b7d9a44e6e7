"""All rules of a recorded scenario: one finding for each `Rule`.

Two independent witnesses show that the limit holds: the slots in the history, and the runs that the actions
recorded themselves. Within one worker its own clock decides, between workers the order of the leader.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from turnstile.stress.check.accounting import (
    audit_clean,
    counters_agree,
    nothing_lost,
    nothing_stuck,
    nothing_twice,
    nothing_unexpected,
)
from turnstile.stress.check.columns import Ruling, Violation, column, ruling, values_at
from turnstile.stress.check.excuses import back_by
from turnstile.stress.check.gate_rules import gates_kept, units_run
from turnstile.stress.check.gates import replayed
from turnstile.stress.check.history import ARRIVAL_NS, History, history_of
from turnstile.stress.check.order import admitted_in_order, started_in_order
from turnstile.stress.check.queues import queues_kept, run_moves
from turnstile.stress.check.timelines import counted_runs
from turnstile.stress.check.verdict import Finding, Rule, Verdict
from turnstile.stress.recording import NEVER, Recording


def limit_run(history: History) -> Ruling:
    """Check each start: with it, no more run in the queue than the limit in force.

    A limit that was lowered counts once the worker certainly knows it; what was granted after the change
    came with the new one. `CountedRuns` defines for how long a run counts. Runs without an observed end are
    not checked.
    """
    runs, counted = history.runs, counted_runs(history)
    granted_at = values_at(column(history.attempts, "granted_at"), counted.attempt_rows, NEVER)
    since = np.minimum(granted_at, counted.starts)
    broken: list[Violation] = []
    for queue in replayed(run_moves(history), until=NEVER):
        started = [~value for value in queue.granted]
        for running, row in enumerate(started, len(queue.held) - len(started) + 1):
            if running <= queue.at_least:
                continue
            known_from = back_by(queue.at, ARRIVAL_NS, history.disturbed)
            limit = history.limits.highest(queue.number, max(int(since[row]), known_from), queue.at)
            if running > limit:
                execution_id = int(runs["execution_id"][row])
                what = (
                    f"execution {execution_id} started in queue {queue.number} at"
                    f" {history.time_text(runs['started_at'][row])}: {running} were running, the limit was"
                    f" {limit}"
                )
                broken.append(Violation(what, execution_id))
    return ruling(Rule.LIMIT_RUN, int(counted.known.sum()), broken)


RULES: Final[tuple[Callable[[History], Ruling], ...]] = (
    limit_run,
    admitted_in_order,
    nothing_lost,
    nothing_twice,
    nothing_unexpected,
    nothing_stuck,
)
"""The rules on the tables of any history."""


def _of_gates(recording: Recording, history: History) -> Iterator[Finding]:
    """Yield the findings about limits and order.

    A queue before other gates has an order of priorities, and its slots are acquired before the grant: there
    the rules of gates apply, and not those of queues.
    """
    yield from gates_kept(recording, history.time_text)
    if recording.gates is None:
        yield from queues_kept(recording, history)
        yield limit_run(history).finding()
        yield started_in_order(history).finding()
        return
    yield units_run(recording, history).finding()


def check_recording(recording: Recording) -> Verdict:
    """Return the findings in the order of `Rule`; the same recording always has the same verdict."""
    history = history_of(recording)
    findings = {rule: Finding(rule=rule, checked=0, broken=0) for rule in Rule}
    for finding in (
        *_of_gates(recording, history),
        *(rule(history).finding() for rule in RULES if rule is not limit_run),
        counters_agree(recording),
        audit_clean(recording),
    ):
        findings[finding.rule] = finding
    return Verdict(findings=tuple(findings.values()))
