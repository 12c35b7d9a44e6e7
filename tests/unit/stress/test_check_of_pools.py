"""The check of the turns at a pool: a correct history passes, and each way to break one is found."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.unit.stress.histories import Life, at, broken, fault, hand_made
from turnstile.stress.check.rules import check_recording
from turnstile.stress.check.verdict import Rule
from turnstile.stress.recording import RecordedChange, RecordedDefinition, Recording
from turnstile.stress.scenario import FaultKind
from turnstile.stress.trace import action_ref

EACH: Final = 40
"""Executions of each of two actions: the first ones have the smaller ids."""
ONES: Final = tuple(range(1, EACH + 1))
TWOS: Final = tuple(range(EACH + 1, 2 * EACH + 1))
IN_TURNS: Final = tuple(each for pair in zip(ONES, TWOS, strict=True) for each in pair)
BY_WEIGHT: Final = (
    *(each for turn in range(10) for each in (*ONES[3 * turn : 3 * turn + 3], TWOS[turn])),
    *ONES[30:],
    *TWOS[10:],
)
"""In turns of 3 and 1."""
BY_KEY: Final = tuple(each for pair in zip((*ONES[::2], *ONES[1::2]), TWOS, strict=True) for each in pair)
"""In turns, but the executions of one key before those of the other."""
KEYS: Final = 2
SECONDS_EACH: Final = 0.1
TICK_SECONDS: Final = 0.25


def pooled(
    turns: Sequence[int], changes: tuple[RecordedChange, ...] = (), limit: int | None = None, **settings: Any
) -> Recording:
    """Return a history of a pool with one worker slot, which executions take in this order."""
    lives = [
        Life(
            id=each,
            since=1,
            granted=1000 * SECONDS_EACH * turn,
            ended=1000 * SECONDS_EACH * (turn + 1) - 1,
            queue=KEYS * (each in TWOS) + each % KEYS,
        )
        for turn, each in enumerate(turns, start=1)
    ]
    now = {"order": "fair", "weights": {}, "paused": False} | settings
    return hand_made(
        *lives,
        limit=limit,
        actions=2,
        keys=KEYS,
        worker_capacity=1,
        tick_seconds=TICK_SECONDS,
        pool=RecordedDefinition(now=now, changes=changes),
    )


def moved(order: Sequence[int], execution_id: int, later: int) -> tuple[int, ...]:
    """Return an order in which one execution comes so many turns later."""
    left = [each for each in order if each != execution_id]
    left.insert(order.index(execution_id) + later, execution_id)
    return tuple(left)


@pytest.mark.parametrize(
    ("recording", "rules"),
    [
        (pooled(IN_TURNS), {Rule.PASSED_IN_ORDER, Rule.SHARED_FAIRLY}),
        (pooled(BY_WEIGHT, weights={action_ref(0): 3}), {Rule.PASSED_IN_ORDER, Rule.SHARED_FAIRLY}),
        (pooled((*ONES, *TWOS), order="arrival"), {Rule.PASSED_IN_ORDER}),
    ],
    ids=["fair", "weights", "arrival"],
)
def test_a_correct_history_breaks_no_rule_and_is_checked(recording: Recording, rules: set[Rule]) -> None:
    verdict = check_recording(recording)
    assert verdict.broken == ()
    checked = {finding.rule for finding in verdict.findings if finding.checked}
    assert checked & {Rule.PASSED_IN_ORDER, Rule.SHARED_FAIRLY} == rules


@pytest.mark.parametrize(
    ("recording", "rule", "text"),
    [
        (pooled((*ONES, *TWOS)), Rule.SHARED_FAIRLY, "their shares became"),
        (pooled(IN_TURNS, weights={action_ref(0): 3}), Rule.SHARED_FAIRLY, "their shares became"),
        (pooled(BY_WEIGHT), Rule.SHARED_FAIRLY, "their shares became"),
        (
            pooled(IN_TURNS, order="arrival"),
            Rule.PASSED_IN_ORDER,
            "execution 40: 38 later ones started while it waited, in one tick start 3",
        ),
        (
            pooled(BY_KEY),
            Rule.PASSED_IN_ORDER,
            "execution 34: 3 later ones started while it waited, in one tick start 2",
        ),
    ],
    ids=["not in turns", "without the weight", "with a weight", "turns by arrival", "by key"],
)
def test_each_violation_is_found_by_its_rule(recording: Recording, rule: Rule, text: str) -> None:
    (finding,) = check_recording(recording).broken
    assert finding.rule == rule
    assert text in " ".join(finding.examples)


def test_a_turn_that_is_lost_for_one_tick_breaks_no_rule() -> None:
    assert broken(pooled(moved(IN_TURNS, 2, 3))) == set()
    assert broken(pooled(moved((*ONES, *TWOS), 2, 1), order="arrival")) == set()


def test_nothing_is_compared_over_a_fault_or_a_change_of_the_settings() -> None:
    wrong = pooled((*ONES, *TWOS))
    restarted = fault(FaultKind.RESTART_BROKER, 0, 9_000)
    assert broken(replace(wrong, faults=(restarted,))) == set()
    changes = tuple(
        RecordedChange(at=at(each), old={"weights": {}}, new={"weights": {}}) for each in range(0, 9_000, 400)
    )
    assert broken(pooled((*ONES, *TWOS), changes)) == set()


def test_actions_with_a_limit_are_not_compared() -> None:
    findings = check_recording(pooled((*ONES, *TWOS), limit=1)).findings
    assert not any(f.checked for f in findings if f.rule in (Rule.PASSED_IN_ORDER, Rule.SHARED_FAIRLY))
