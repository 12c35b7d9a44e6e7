"""The check of recordings: a correct history passes, and each way to break one is found and named."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.unit.stress.histories import (
    MILLISECOND,
    Life,
    at,
    correct,
    differences_when_loaded,
    fault,
    hand_made,
)
from turnstile.common.domain.states import Status
from turnstile.stress.check.passages import GATE_RULES
from turnstile.stress.check.rules import check_recording
from turnstile.stress.check.verdict import Rule
from turnstile.stress.recording import (
    NEVER,
    NONE,
    Answer,
    Audit,
    LimitChange,
    Outcome,
    Recording,
    RunEnd,
    Table,
    status_code,
)
from turnstile.stress.scenario import FaultKind


def broken(recording: Recording) -> dict[Rule, tuple[str, ...]]:
    return {finding.rule: finding.examples for finding in check_recording(recording).broken}


@pytest.mark.parametrize("options", [{}, {"limit": 1}, {"keys": 4}])
def test_a_correct_history_breaks_no_rule(options: dict[str, int]) -> None:
    assert broken(correct(**options)) == {}


def test_an_empty_recording_breaks_no_rule() -> None:
    recording = correct(1)
    nothing = {name: getattr(recording, name)[:0] for name in ("orders", "executions", "attempts", "runs")}
    assert broken(replace(recording, **nothing, counters=(), audit=None)) == {}


Change = Callable[[Recording], Recording]


def changed(recording: Recording, table: str, row: int, **values: Any) -> Recording:
    """Return the recording with other values in one row."""
    copy = getattr(recording, table).copy()
    for name, value in values.items():
        copy[name][row] = value
    return replace(recording, **{table: copy})


def set_to(table: str, row: int, **values: Any) -> Change:
    return lambda recording: changed(recording, table, row, **values)


def moved(table: str, row: int, name: str, milliseconds: float) -> Change:
    """Move one instant."""

    def change(recording: Recording) -> Recording:
        then = int(getattr(recording, table)[name][row]) + round(milliseconds * MILLISECOND)
        return changed(recording, table, row, **{name: then})

    return change


def without(table: str, row: int) -> Change:
    def change(recording: Recording) -> Recording:
        rows: dict[str, Any] = {table: np.delete(getattr(recording, table), row)}
        return replace(recording, **rows)

    return change


def with_one_more(table: str, row: int, **values: Any) -> Change:
    """Add a copy of a row with other values."""

    def change(recording: Recording) -> Recording:
        old: Table = getattr(recording, table)
        rows: dict[str, Any] = {table: np.append(old, old[row : row + 1])}
        return changed(replace(recording, **rows), table, len(old), **values)

    return change


def together(*changes: Change) -> Change:
    def change(recording: Recording) -> Recording:
        for one in changes:
            recording = one(recording)
        return recording

    return change


def not_reported(recording: Recording) -> Recording:
    """Remove the start of the attempt of run 4."""
    row = recording.attempts["execution_id"].tolist().index(recording.runs["execution_id"][4])
    return changed(recording, "attempts", row, started_at=NEVER)


def forgotten(recording: Recording) -> Recording:
    """Remove an execution from the history with its attempts and runs."""
    gone = recording.executions["execution_id"][7]
    tables = {name: getattr(recording, name) for name in ("executions", "attempts", "runs")}
    return replace(recording, **{name: rows[rows["execution_id"] != gone] for name, rows in tables.items()})


def rejected(recording: Recording) -> Recording:
    """Mark the request of the execution that `forgotten` removes as rejected."""
    return changed(recording, "orders", int(recording.executions["number"][7]), answer=Answer.REJECTED)


def admitted_twice(recording: Recording) -> Recording:
    double = int(recording.executions["execution_id"].max()) + 1
    rows = (recording.executions[-1:], recording.attempts[-1:], recording.runs[-1:])
    last = int(rows[0]["execution_id"][0])
    recording = with_one_more("executions", len(recording.executions) - 1, execution_id=double)(recording)
    for table in ("attempts", "runs"):
        row = getattr(recording, table)["execution_id"].tolist().index(last)
        recording = with_one_more(table, row, execution_id=double)(recording)
    return recording


def never_ended(recording: Recording) -> Recording:
    """Leave the last execution running."""
    last = recording.executions["execution_id"][-1]
    attempt = recording.attempts["execution_id"].tolist().index(last)
    run = recording.runs["execution_id"].tolist().index(last)
    return together(
        set_to("executions", -1, status=status_code(Status.RUNNING), completed_at=NEVER),
        set_to("attempts", attempt, ended_at=NEVER, outcome=Outcome.OPEN),
        set_to("runs", run, stopped_at=NEVER, end=RunEnd.UNKNOWN),
    )(recording)


def counted(**off: int) -> Change:
    """Change the counters of action 1."""

    def change(recording: Recording) -> Recording:
        wrong = {name: getattr(recording.counters[1], name) + by for name, by in off.items()}
        counters = (recording.counters[0], replace(recording.counters[1], **wrong), *recording.counters[2:])
        return replace(recording, counters=counters)

    return change


def by_hand(*lives: Life, limit: int = 1) -> Callable[[], Recording]:
    return lambda: hand_made(*lives, limit=limit)


def in_reverse() -> Recording:
    """Return two requests of one submitter that were admitted in reverse."""
    recording = hand_made(Life(id=1, since=0, granted=1, ended=5), Life(id=2, since=0, granted=6, ended=9))
    recording.orders["execution_id"] = [2, 1]
    recording.executions["number"] = recording.runs["number"] = [1, 0]
    return recording


def with_one(change: Change, limit: int | None = 2) -> Callable[[], Recording]:
    """Return a correct recording with one change."""
    return lambda: change(correct(limit=limit))


FIRST = Life(id=1, since=0, granted=1, ended=10)
VIOLATIONS: Final[dict[str, tuple[Callable[[], Recording], str, set[Rule]]]] = {
    "granted past the limit": (
        by_hand(FIRST, Life(id=2, since=0, granted=5, start=11, ended=12, worker=1)),
        "2 were held, the limit was 1",
        {Rule.LIMIT_HELD},
    ),
    "ran past the limit": (
        by_hand(replace(FIRST, stop=10.1), Life(id=2, since=0, granted=10, ended=12)),
        "2 were running, the limit was 1",
        {Rule.LIMIT_RUN},
    ),
    "granted out of order": (
        by_hand(Life(id=1, since=0, granted=6, ended=7), Life(id=2, since=0, granted=5, ended=6), limit=2),
        "was granted a slot while execution 1 waited",
        {Rule.GRANTED_IN_ORDER},
    ),
    "granted out of order at limit 1": (
        by_hand(Life(id=1, since=0, granted=6, ended=7), Life(id=2, since=0, granted=5, ended=6)),
        "in queue 0 at 0.005 s",
        {Rule.GRANTED_IN_ORDER, Rule.STARTED_IN_ORDER},
    ),
    "admitted out of order": (in_reverse, "sent before, is execution 2", {Rule.ADMITTED_IN_ORDER}),
    "started out of order": (
        by_hand(
            Life(id=1, since=0, granted=1, start=22, stop=22, ended=20),
            Life(id=2, since=0, granted=20, start=20, stop=20, ended=40),
        ),
        ", after execution",
        {Rule.STARTED_IN_ORDER},
    ),
    "granted late": (
        by_hand(FIRST, Life(id=2, since=5, granted=3_010, ended=3_020)),
        "waited, for 3.",
        {Rule.NO_IDLE_SLOT},
    ),
    "lost": (with_one(forgotten), "has no execution", {Rule.NOTHING_LOST, Rule.COUNTERS_AGREE}),
    "admitted twice": (
        with_one(admitted_twice, None),
        "and execution",
        {Rule.NOTHING_TWICE, Rule.COUNTERS_AGREE},
    ),
    "ran twice": (
        with_one(with_one_more("runs", 9, process=77), None),
        "and in process 77",
        {Rule.NOTHING_TWICE},
    ),
    "rejected, as it was answered": (
        with_one(together(rejected, forgotten)),
        "was rejected",
        {Rule.NOTHING_UNEXPECTED, Rule.COUNTERS_AGREE},
    ),
    "never sent": (
        with_one(set_to("executions", 4, number=NONE)),
        "was never sent",
        {Rule.NOTHING_LOST, Rule.NOTHING_UNEXPECTED},
    ),
    "never ended": (with_one(never_ended), "was still running", {Rule.NOTHING_STUCK, Rule.COUNTERS_AGREE}),
    "ended at no time": (
        with_one(set_to("executions", 4, completed_at=NEVER)),
        "was still completed",
        {Rule.NOTHING_STUCK, Rule.COUNTERS_AGREE},
    ),
}
VIOLATIONS_OF_ONE_RULE: Final[dict[Rule, dict[str, Change]]] = {
    Rule.NOTHING_UNEXPECTED: {
        "number 4 of submitter": set_to("orders", 4, answer=Answer.REJECTED),
        "answered with execution 5": set_to("orders", 4, execution_id=5),
        "but was sent for 99": set_to("orders", 4, queue=99),
        "ended as failed": set_to("executions", 4, status=status_code(Status.FAILED)),
        "has no complete run": without("runs", 4),
        "of execution 5, which is missing": with_one_more("attempts", 0, execution_id=5),
        "out of order": moved("attempts", 4, "ended_at", -60_000),
        "which does not belong to it": with_one_more("runs", 4, execution_id=5),
        "ran without a reported start": not_reported,
        "ran without a grant": with_one_more("runs", 4, attempt=9),
        "before its reported start at": moved("runs", 4, "started_at", -7),
        "but had ended at": moved("runs", 4, "stopped_at", 7),
        "worker-1 ended with 3": lambda recording: replace(recording, collapses=("worker-1 ended with 3",)),
    },
    Rule.COUNTERS_AGREE: {
        "action 1 counts": counted(enqueued=1),
        "enqueued": counted(enqueued_before=-1),
        "completed, a recount": counted(completed=-1),
        "1 waiting": counted(queue_length=1),
        "2 active": counted(active_count=2),
    },
    Rule.AUDIT_CLEAN: {
        "check depth found 3": lambda recording: replace(
            recording, audit=Audit(clean=False, faults={"depth": 3})
        ),
        "not clean": lambda recording: replace(recording, audit=Audit(clean=False)),
    },
}
"""A change to a correct recording, by the rule and a part of the example."""


@pytest.mark.parametrize("name", VIOLATIONS)
def test_each_violation_is_found_by_its_rules_only(name: str) -> None:
    recording, text, rules = VIOLATIONS[name]
    found = broken(recording())
    assert found.keys() == rules, found
    assert any(text in example for examples in found.values() for example in examples), found


@pytest.mark.parametrize(
    ("rule", "text"), [(rule, text) for rule, changes in VIOLATIONS_OF_ONE_RULE.items() for text in changes]
)
def test_each_change_is_found_by_one_rule(rule: Rule, text: str) -> None:
    found = broken(VIOLATIONS_OF_ONE_RULE[rule][text](correct()))
    assert found.keys() == {rule}, found
    assert any(text in example for example in found[rule]), found


def test_every_rule_is_broken_by_some_history() -> None:
    rules = set().union(*(rules for _, _, rules in VIOLATIONS.values()))
    # Those of gates: test_check_of_gates.
    assert rules | VIOLATIONS_OF_ONE_RULE.keys() | set(GATE_RULES) == set(Rule)


def test_a_saved_recording_is_loaded_unchanged(tmp_path: Path) -> None:
    made = correct(
        faults=(fault(FaultKind.KILL_WORKER, 200, 300),), collapses=("worker-0 ended with 1",),
        limit_changes=(LimitChange(action=0, limit=None, asked_at=at(300), answered_at=at(301)),),
        clock_error_ns=7,
    )  # fmt: skip
    assert differences_when_loaded(made, tmp_path / "kept" / "scenario") == []
