"""A free slot beside somebody waiting: how long is too long, and when it is nobody's fault."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.stress.hand_made import Life, at, broken, fault, hand_made
from turnstile.stress.check.judge import judge
from turnstile.stress.check.verdict import Rule
from turnstile.stress.recording import Recording
from turnstile.stress.stage import FaultKind


def idle(seconds: float, **rest: Any) -> set[Rule]:
    """A slot that was free beside somebody waiting for so long."""
    waiting = Life(id=2, since=5, granted=10 + seconds * 1000, ended=20 + seconds * 1000)
    return broken(hand_made(Life(id=1, since=0, granted=1, ended=10), waiting, **rest))


def test_a_slot_may_be_idle_for_as_long_as_the_watchdog_takes() -> None:
    assert idle(2.0) == set()
    assert idle(2.1) == {Rule.NO_IDLE_SLOT}
    assert idle(2.1, idle_allowed_seconds=2.2) == set()


def test_nothing_is_idle_before_it_was_let_go() -> None:
    assert idle(9.0, opened_at=at(8_000)) == set()
    assert idle(9.0, opened_at=at(5_000)) == {Rule.NO_IDLE_SLOT}


@pytest.mark.parametrize(
    ("kind", "settling_seconds"), [(FaultKind.KILL_EXECUTOR, 6), (FaultKind.PURGE_QUEUES, 13)]
)
def test_while_something_is_broken_and_until_it_has_settled_idle_slots_are_excused(
    kind: FaultKind, settling_seconds: int
) -> None:
    faults = (fault(kind, 1_000, 1_000),)
    assert idle(1 + settling_seconds + 1.9, faults=faults) == set()
    assert idle(1 + settling_seconds + 2.1, faults=faults) == {Rule.NO_IDLE_SLOT}
    assert idle(2.1, faults=(fault(kind, 5_000, 6_000),)) == {Rule.NO_IDLE_SLOT}


def test_a_short_window_within_a_long_one_does_not_end_it() -> None:
    faults = (fault(FaultKind.PURGE_QUEUES, 5, 6), fault(FaultKind.KILL_EXECUTOR, 1_000, 1_001))
    assert idle(12.0, faults=faults) == set()


def in_turns(*grants: float) -> Recording:
    """Two slots that pass from one to the next: each is held for a second, and granted again late."""
    lives = [Life(id=n, since=0, granted=at_ms, ended=at_ms + 1_000) for n, at_ms in enumerate(grants, 1)]
    return hand_made(*lives, limit=2)


def test_slots_that_are_never_all_held_are_no_fault_if_none_of_them_is_free_for_long() -> None:
    assert broken(in_turns(*range(1, 20_000, 900))) == set()
    assert broken(in_turns(*range(1, 20_000, 1_600))) == {Rule.NO_IDLE_SLOT}


def test_two_slots_that_are_idle_at_once_are_one_spell() -> None:
    both = in_turns(1, 101, 5_000, 5_000)
    assert [finding.broken for finding in judge(both).broken] == [1]
    assert "from 1.001 s on, when 1 were held and 2 waited" in judge(both).broken[0].examples[0]


def test_a_slot_is_idle_only_for_as_long_as_somebody_waits() -> None:
    lives = Life(id=1, since=0, granted=10, ended=20), Life(id=2, since=9_000, granted=9_001, ended=9_010)
    assert broken(hand_made(*lives, limit=2)) == set()


def test_a_limit_that_is_changed_excuses_no_idle_slot() -> None:
    assert idle(2.1, faults=(fault(FaultKind.CHANGE_LIMIT, 5, 2_000),)) == {Rule.NO_IDLE_SLOT}


def test_without_a_limit_as_many_are_granted_as_one_grant_takes() -> None:
    in_turns = [Life(id=n, since=0, granted=1_500 * n, ended=10_000) for n in (1, 2, 3, 4)]
    assert broken(hand_made(*in_turns, limit=None)) == set()
    assert broken(hand_made(*in_turns, limit=9)) == {Rule.NO_IDLE_SLOT}
    late = replace(in_turns[-1], granted=7_000)
    assert broken(hand_made(*in_turns[:-1], late, limit=None)) == {Rule.NO_IDLE_SLOT}
