"""The check of the turns at a pool: a correct history passes, and each way to break one is found."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.unit.stress.histories import Life, at, fault, hand_made
from turnstile.stress.check.rules import check_recording
from turnstile.stress.check.verdict import Finding, Rule
from turnstile.stress.recording import (
    NONE,
    GateRecords,
    LimitChange,
    RecordedChange,
    RecordedDefinition,
    Recording,
)
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
SETTLING_SECONDS: Final = 0.05
BY_PARITY: Final = (3, 1)
"""Priorities of odd and of even ids."""
PLAIN: Final[dict[str, Any]] = {"max_concurrent_total": None, "paused": False, "uses": []}


def pooled(
    turns: Sequence[int],
    changes: tuple[RecordedChange, ...] = (),
    limit: int | None = None,
    tick_seconds: float = TICK_SECONDS,
    **settings: Any,
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
        tick_seconds=tick_seconds,
        idle_allowed_seconds=SETTLING_SECONDS,
        pool=RecordedDefinition(now=now, changes=changes),
    )


def prioritized(recording: Recording, priorities: tuple[int, ...] = BY_PARITY, **settings: Any) -> Recording:
    """Return this history with priorities; its actions have a limit of 8, or these settings."""
    plain = RecordedDefinition(now=PLAIN | {"max_concurrent": 8} | settings, changes=())
    actions = {action_ref(number): plain for number in (0, 1)}
    gates = GateRecords(names=(), actions=actions, resources={}, changed=0, settling_ns=0)
    load = replace(recording.scenario.load, priorities=priorities)
    return replace(recording, scenario=replace(recording.scenario, load=load), gates=gates)


def beside_a_long_run(
    ended: float = 4_000, new_limits: tuple[LimitChange, ...] = (), **rest: Any
) -> Recording:
    """Return a history in which the second execution of an action waits while a neighbour starts 40 times.

    The first one runs for four seconds, or shorter; the second one starts after 4.1 s.
    """
    lives = [
        Life(id=1, since=1, granted=2, ended=ended),
        Life(id=2, since=1, granted=4_100, ended=4_150),
        *(
            Life(id=each, since=1, granted=100 * (each - 2), ended=100 * (each - 1) - 1, queue=KEYS)
            for each in range(3, 3 + EACH)
        ),
    ]
    return hand_made(
        *lives,
        actions=2,
        keys=KEYS,
        worker_capacity=2,
        tick_seconds=TICK_SECONDS,
        limit_changes=new_limits,
        pool=RecordedDefinition(now={"order": "arrival", "weights": {}, "paused": False}, changes=()),
        **({"limit": 1, "idle_allowed_seconds": SETTLING_SECONDS} | rest),
    )


def moved(order: Sequence[int], execution_id: int, later: int) -> tuple[int, ...]:
    """Return an order in which one execution comes so many turns later."""
    left = [each for each in order if each != execution_id]
    left.insert(order.index(execution_id) + later, execution_id)
    return tuple(left)


def by_urgency(execution_id: int) -> int:
    return BY_PARITY[(execution_id - 1) % len(BY_PARITY)]


def at_the_pool(recording: Recording) -> list[Finding]:
    """Return the findings at the pool. The slots of queues are idle for longer than these histories allow."""
    rules = Rule.PASSED_IN_ORDER, Rule.SHARED_FAIRLY
    return [finding for finding in check_recording(recording).findings if finding.rule in rules]


def broken_at_the_pool(recording: Recording) -> set[Rule]:
    return {finding.rule for finding in at_the_pool(recording) if finding.broken}


def compared(recording: Recording) -> int:
    """Return how many executions were compared with later ones."""
    return next(f.checked for f in at_the_pool(recording) if f.rule == Rule.PASSED_IN_ORDER)


def ahead(turns: int) -> tuple[int, ...]:
    """Return an order in turns in which the first action once has this many in a row."""
    in_a_row = IN_TURNS[20 : 20 + 2 * turns : 2]
    return (*IN_TURNS[:20], *in_a_row, *(each for each in IN_TURNS[20:] if each not in in_a_row))


@pytest.mark.parametrize(
    ("recording", "rules"),
    [
        (pooled(IN_TURNS), {Rule.PASSED_IN_ORDER, Rule.SHARED_FAIRLY}),
        (pooled(BY_WEIGHT, weights={action_ref(0): 3}), {Rule.PASSED_IN_ORDER, Rule.SHARED_FAIRLY}),
        (pooled((*ONES, *TWOS), order="arrival"), {Rule.PASSED_IN_ORDER}),
        (pooled(IN_TURNS, limit=1), {Rule.PASSED_IN_ORDER, Rule.SHARED_FAIRLY}),
        (pooled((*ONES, *TWOS), limit=2, order="arrival"), {Rule.PASSED_IN_ORDER}),
        (prioritized(pooled(sorted(IN_TURNS, key=by_urgency))), {Rule.PASSED_IN_ORDER, Rule.SHARED_FAIRLY}),
        (
            prioritized(pooled(sorted((*ONES, *TWOS), key=by_urgency), order="arrival")),
            {Rule.PASSED_IN_ORDER},
        ),
    ],
    ids=["fair", "weights", "arrival", "limit", "arrival, limit", "priorities", "arrival, priorities"],
)
def test_a_correct_history_breaks_no_rule_and_is_checked(recording: Recording, rules: set[Rule]) -> None:
    findings = at_the_pool(recording)
    assert not any(finding.broken for finding in findings)
    assert {finding.rule for finding in findings if finding.checked} == rules


VIOLATIONS: Final[dict[str, tuple[Recording, Rule, str]]] = {
    "not in turns": (pooled((*ONES, *TWOS)), Rule.SHARED_FAIRLY, "their shares became"),
    "without the weight": (
        pooled(IN_TURNS, weights={action_ref(0): 3}), Rule.SHARED_FAIRLY, "their shares became"
    ),
    "with a weight": (pooled(BY_WEIGHT), Rule.SHARED_FAIRLY, "their shares became"),
    "turns by arrival": (
        pooled(IN_TURNS, order="arrival"),
        Rule.PASSED_IN_ORDER,
        "execution 40: 38 later ones started while it waited, in one tick start 3",
    ),
    "by key": (
        pooled(BY_KEY),
        Rule.PASSED_IN_ORDER,
        "execution 34: 3 later ones started while it waited, in one tick start 2",
    ),
    "limit, not in turns": (pooled((*ONES, *TWOS), limit=2), Rule.SHARED_FAIRLY, "their shares became"),
    "limit, two turns too many": (
        pooled(ahead(6), limit=4, tick_seconds=0.09),
        Rule.SHARED_FAIRLY,
        "'stress.00' and 'stress.01' both waited, and their shares became 5 apart, more than 4",
    ),
    "limit, by key": (
        pooled(BY_KEY, limit=1),
        Rule.PASSED_IN_ORDER,
        "execution 2: 19 later ones started while it waited, in one tick start 2",
    ),
    "limit, turns by arrival": (
        pooled(IN_TURNS, order="arrival", limit=8),
        Rule.PASSED_IN_ORDER,
        "execution 40: 15 later ones started while it waited, in one tick start 3",
    ),
    "less urgent first": (
        prioritized(pooled(IN_TURNS)),
        Rule.PASSED_IN_ORDER,
        "execution 80: 15 less urgent ones started while it waited, in one tick start 3",
    ),
    "limit, passed over": (
        beside_a_long_run(ended=1_000),
        Rule.PASSED_IN_ORDER,
        "execution 2: 30 later ones started while it waited, in one tick start 3",
    ),
    "limit, never used": (
        beside_a_long_run(limit=2),
        Rule.PASSED_IN_ORDER,
        "execution 2: 38 later ones started while it waited, in one tick start 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("recording", "rule", "text"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_each_violation_is_found_by_its_rule(recording: Recording, rule: Rule, text: str) -> None:
    (finding,) = (each for each in at_the_pool(recording) if each.broken)
    assert finding.rule == rule
    assert text in " ".join(finding.examples)


def test_a_turn_that_is_lost_for_one_tick_breaks_no_rule() -> None:
    assert broken_at_the_pool(pooled(moved(IN_TURNS, 2, 3))) == set()
    assert broken_at_the_pool(pooled(moved((*ONES, *TWOS), 2, 1), order="arrival")) == set()


def test_nothing_is_compared_over_a_fault_or_a_change_of_the_settings() -> None:
    wrong = pooled((*ONES, *TWOS))
    restarted = fault(FaultKind.RESTART_BROKER, 0, 9_000)
    assert broken_at_the_pool(replace(wrong, faults=(restarted,))) == set()
    changes = tuple(
        RecordedChange(at=at(each), old={"weights": {}}, new={"weights": {}}) for each in range(0, 9_000, 400)
    )
    assert broken_at_the_pool(pooled((*ONES, *TWOS), changes)) == set()


def after_turns(first: Sequence[int], ones: int, twos: int) -> tuple[int, ...]:
    """Return these turns, then four of the second action, then five of the first to one of the second."""
    in_turns = [
        each
        for number, begins in enumerate(range(ones, EACH, 5))
        for each in (*ONES[begins : begins + 5], TWOS[twos + 4 + number])
    ]
    begun = (*first, *TWOS[twos : twos + 4], *in_turns)
    return (*begun, *(each for each in (*ONES, *TWOS) if each not in begun))


def test_after_a_change_of_weights_a_turn_may_be_what_it_was_with_the_earlier_one() -> None:
    """Three starts in a row, without those within one tick: more than two turns of weights 5 and 1."""
    weights = {action_ref(0): 5}
    before_change = IN_TURNS[:20]
    change = RecordedChange(at=at(2_050), old={"weights": {}}, new={"weights": weights})
    turns = after_turns(before_change, 10, 10)
    assert broken_at_the_pool(pooled(turns, (change,), tick_seconds=0.09, weights=weights)) == set()
    # The same beside a change that leaves these weights.
    by_weight = (*ONES[:5], TWOS[0], *ONES[5:10], TWOS[1])
    change = RecordedChange(
        at=at(1_250), old={"weights": {**weights, "stress.09": 2}}, new={"weights": weights}
    )
    recording = pooled(after_turns(by_weight, 10, 2), (change,), tick_seconds=0.09, weights=weights)
    assert broken_at_the_pool(recording) == {Rule.SHARED_FAIRLY}


def test_turns_within_the_bound_break_no_rule() -> None:
    assert broken_at_the_pool(pooled(ahead(4), limit=4, tick_seconds=0.09)) == set()


@pytest.mark.parametrize(
    "recording",
    [
        beside_a_long_run(),
        beside_a_long_run(ended=1_000, idle_allowed_seconds=2.9),
        beside_a_long_run(
            limit=2, new_limits=(LimitChange(action=0, limit=1, asked_at=at(0), answered_at=at(9)),)
        ),
    ],
    ids=["the slot is held", "its end may not be committed", "the limit was lowered"],
)
def test_an_execution_whose_queue_may_have_no_free_slot_is_passed(recording: Recording) -> None:
    assert broken_at_the_pool(recording) == set()


@pytest.mark.parametrize(
    "settings",
    [
        {"paused": True},
        {"max_concurrent_total": 1},
        {"uses": [{"resource": "shared", "units": 1, "weight": 1}]},
        {"rate.starts": 1, "rate.per": 1},
        {"pool": "another"},
    ],
    ids=lambda each: next(iter(each)),
)
def test_actions_with_other_gates_are_not_compared(settings: dict[str, Any]) -> None:
    assert compared(prioritized(pooled(IN_TURNS))) > 0
    assert compared(prioritized(pooled(IN_TURNS), **settings)) == 0


def test_actions_with_executions_of_others_are_not_compared() -> None:
    recording = pooled((*ONES, *TWOS), order="arrival")
    recording.executions["number"][0] = NONE
    assert compared(recording) == len(TWOS)
