"""The check of a scenario with gates: a correct history passes, and each way to break one is found."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from tests.unit.stress.histories import Life, at, broken, differences_when_loaded, hand_made
from turnstile.stress.check.passages import GATE_RULES
from turnstile.stress.check.rules import check_recording
from turnstile.stress.check.verdict import Rule
from turnstile.stress.recording import (
    STAY,
    GateRecords,
    LimitChange,
    RecordedChange,
    RecordedDefinition,
    Recording,
)
from turnstile.stress.trace import action_ref

NAMES: Final = ("queue", "resource shared", "rate")
CORRECT: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
USES: Final = [{"resource": "shared", "units": 1, "weight": 1}]
ACTION: Final = {"max_concurrent": None, "max_concurrent_total": None, "paused": False, "uses": USES}
SHARED: Final = {"order": "fair", "paused": False, "rate.starts": 2}
MILLISECOND_NS: Final = 1_000_000


def gated(
    order: Sequence[int] = CORRECT,
    changes: tuple[RecordedChange, ...] = (),
    settling_ns: int = 0,
    capacity: int = 1,
    per: float = 0.015,
) -> Recording:
    """Return a history of two actions at a resource with one unit; every 10 ms the next one passes."""
    passed_at = {execution_id: 10.0 * turn for turn, execution_id in enumerate(order, start=1)}
    lives = [
        Life(id=each, since=1, granted=passed_at[each], ended=passed_at[each] + 9, queue=each % 2)
        for each in CORRECT
    ]
    stays = []
    for each in CORRECT:
        passed = at(passed_at[each])
        stays += [
            (each, 0, 1, at(1), at(1), 3),
            (each, 1, 1, at(1), passed, 3),
            (each, 2, 1, passed, passed, 3),
        ]
    records = GateRecords(
        names=NAMES,
        actions={action_ref(number): RecordedDefinition(now=ACTION, changes=()) for number in (0, 1)},
        resources={
            "shared": RecordedDefinition(
                now=SHARED | {"capacity": capacity, "rate.per": per}, changes=changes
            )
        },
        changed=len(changes),
        settling_ns=settling_ns,
    )
    return replace(hand_made(*lives, limit=None, actions=2), stays=np.array(stays, STAY), gates=records)


def stopped_at(recording: Recording, row: int, milliseconds: float) -> Recording:
    recording.runs["stopped_at"][row] = at(milliseconds)
    return recording


def completed_at(recording: Recording, row: int, milliseconds: float) -> Recording:
    recording.executions["completed_at"][row] = at(milliseconds)
    return recording


def lowered(at_ms: float) -> tuple[RecordedChange, ...]:
    return (RecordedChange(at=at(at_ms), old={"capacity": 1}, new={"capacity": 0}),)


def test_a_correct_history_breaks_no_rule_and_every_rule_of_gates_is_checked() -> None:
    verdict = check_recording(gated())
    assert verdict.broken == ()
    checked = {finding.rule: finding.checked for finding in verdict.findings}
    assert set(checked) == set(Rule)
    assert all(checked[rule] for rule in (*GATE_RULES, Rule.LIMIT_RUN))
    assert checked[Rule.UNITS_HELD] == 2 * len(CORRECT)
    # The rules of queues do not apply.
    assert checked[Rule.GRANTED_IN_ORDER] == checked[Rule.NO_IDLE_SLOT] == 0


@pytest.mark.parametrize(
    ("recording", "rule", "text"),
    [
        (completed_at(gated(), 0, 25), Rule.UNITS_HELD, "2 units were held"),
        (
            gated((1, 2, 5, 4, 3, 6, 7, 8, 9, 10)),
            Rule.PASSED_IN_ORDER,
            "execution 5 passed while execution 3 waited",
        ),
        (gated((1, 3, 5, 7, 9, 2, 4, 6, 8, 10)), Rule.SHARED_FAIRLY, "their shares became"),
        (gated(per=0.025), Rule.RATE_KEPT, "start 3 was 20000000 ns after the first"),
        (stopped_at(gated(), 0, 23), Rule.LIMIT_RUN, "2 units were running, the capacity was 1"),
    ],
    ids=["ended later", "out of order", "not in turns", "too fast", "ran for longer"],
)
def test_each_violation_is_found_by_its_rule(recording: Recording, rule: Rule, text: str) -> None:
    (finding,) = check_recording(recording).broken
    assert finding.rule == rule
    assert text in finding.examples[0]


def test_units_above_a_lowered_capacity_are_found_in_the_history_and_in_the_runs() -> None:
    assert broken(gated(changes=lowered(35), capacity=0)) == {Rule.UNITS_HELD, Rule.LIMIT_RUN}


def test_until_a_change_has_settled_both_definitions_apply() -> None:
    assert Rule.UNITS_HELD in broken(gated(changes=lowered(95), capacity=0))
    assert broken(gated(changes=lowered(95), capacity=0, settling_ns=10 * MILLISECOND_NS)) == set()


def test_what_is_admitted_late_because_of_a_change_is_compared_within_its_queue() -> None:
    recording = gated()
    numbers = recording.executions["number"]
    numbers[[0, 1]] = numbers[[1, 0]]
    for table in (recording.orders, recording.runs):
        table["queue"][[0, 1]] = (
            table["queue"][[1, 0]] if table is recording.orders else table["queue"][[0, 1]]
        )
    recording.runs["number"][[0, 1]] = [1, 0]
    recording.orders["execution_id"][[0, 1]] = [2, 1]
    assert broken(recording) == set()
    recording = replace(recording, gates=None)
    assert Rule.ADMITTED_IN_ORDER in broken(recording)
    asked_at = recording.began_at
    change = LimitChange(action=0, limit=4, asked_at=asked_at, answered_at=asked_at + MILLISECOND_NS)
    assert Rule.ADMITTED_IN_ORDER not in broken(replace(recording, limit_changes=(change,)))


def test_a_saved_recording_with_gates_is_loaded_unchanged(tmp_path: Path) -> None:
    assert differences_when_loaded(gated(changes=lowered(35)), tmp_path) == []
