"""Queues, keys, totals and priorities: P1, P2, P12."""

from collections import Counter
from typing import Any

import pytest

from tests.unit.queue_manager.scheduler import Scheduler, uses
from turnstile.common.domain.errors import Code
from turnstile.executor.queue_manager.definitions import Action, KeySettings, Rate, Resource
from turnstile.executor.queue_manager.inputs import Admit, SetKey


def test_a_queue_starts_at_most_its_limit_in_order_of_ids() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=2))
    assert s.submit_all("a", "a", "a", "a") == [1, 2]
    assert s.end(2) == [3]
    assert s.end(1, 3) == [4]


def test_no_limit_starts_everything_that_workers_can_take() -> None:
    s = Scheduler(Action(ref="a"), workers={"w": 3})
    assert s.submit_all(*"aaaaa") == [1, 2, 3]


def test_a_limit_of_zero_starts_nothing() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=0))
    assert s.submit_all("a") == []
    assert s.change("a", max_concurrent=1) == [1]


def test_ids_are_in_order_of_arrival_over_all_queues() -> None:
    s = Scheduler(Action(ref="a"), Action(ref="b"))
    s.submit_all("a", "b", "a/k", "b")
    assert [(each.id, each.queue.action.ref) for each in s.out.admitted] == [
        (1, "a"),
        (2, "b"),
        (3, "a"),
        (4, "b"),
    ]


def test_each_key_has_a_queue_of_its_own() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    assert s.submit_all("a/x", "a/x", "a/y") == [1, 3]
    assert s.end(1) == [2]


def test_a_key_can_have_a_limit_of_its_own() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    s.turn(SetKey(action_ref="a", key="x", settings=KeySettings(has_limit=True, max_concurrent=2)))
    assert s.submit_all("a/x", "a/x", "a/x", "a/y", "a/y") == [1, 2, 4]
    s.turn(SetKey(action_ref="a", key="x", settings=None))
    assert s.end(1) == []
    assert s.end(2) == [3]


def test_a_key_can_have_no_limit_where_its_action_has_one() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    s.turn(SetKey(action_ref="a", key="x", settings=KeySettings(has_limit=True)))
    assert s.submit_all("a/x", "a/x", "a/y", "a/y") == [1, 2, 3]


def test_a_total_limits_all_keys_together_in_order_of_arrival() -> None:
    s = Scheduler(Action(ref="a", max_concurrent_total=2))
    assert s.submit_all("a/x", "a/y", "a/x", "a/z") == [1, 2]
    assert s.end(2) == [3]
    assert s.end(1) == [4]


def test_a_smaller_priority_goes_first_and_the_order_within_it_is_exact() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    for priority in (3, 5, 1, 3, 1):
        s.submit("a", priority=priority)
    assert [s.end(s.running()[0])[0] for _ in range(4)] == [3, 5, 4, 2]


def test_a_priority_counts_between_keys_at_the_total() -> None:
    s = Scheduler(Action(ref="a", max_concurrent_total=1))
    s.submit_all("a/x", "a/x", "a/y")
    s.submit("a", "z", priority=1)
    assert s.end(1) == [4]
    assert s.end(4) == [2]


def test_raising_a_limit_acts_at_once_and_lowering_it_takes_nothing_away() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    s.submit_all(*"aaaa")
    assert s.change("a", max_concurrent=3) == [2, 3]
    assert s.change("a", max_concurrent=1) == []
    assert s.running() == [1, 2, 3]
    assert s.end(1) == s.end(2) == []
    assert s.end(3) == [4]


def test_a_paused_action_starts_nothing_and_resumes_at_once() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1, paused=True))
    assert s.submit_all("a", "a") == []
    assert s.change("a", paused=False) == [1]


def test_a_lowered_limit_holds_before_all_queues_were_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstile.executor.queue_manager.transitions.STEPS_MAX", 1)
    s = Scheduler(Action(ref="a", max_concurrent=2, max_concurrent_total=4))
    s.submit_all("a/w", "a/x", "a/y", "a/z", "a/w", "a/x", "a/y", "a/z")
    s.change("a", max_concurrent=1)
    assert s.out.is_unfinished
    assert s.end(4) == [8]
    while s.out.is_unfinished:
        assert s.turn() == []


def test_a_new_order_of_the_total_keeps_every_queue_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnstile.executor.queue_manager.transitions.STEPS_MAX", 1)
    s = Scheduler(Action(ref="a", max_concurrent_total=1))
    s.submit_all("a/w", "a/x", "a/y")
    s.submit("a", "z", priority=1)
    s.change("a", order="fair")
    assert s.end(1) == [4]


def test_a_full_queue_refuses_and_says_how_much_waits() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1, max_queued=1))
    s.submit_all(*"aaaa")
    assert [each.id for each in s.out.admitted] == [1, 2]
    assert [each.code for each in s.out.refused] == [Code.QUEUE_FULL] * 2
    assert "1 waiting of at most 1, 0 running of at most 1" in s.out.refused[0].message
    s.end(1)
    assert s.submit("a") == 3


def test_reject_refuses_what_cannot_start_at_once() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1, when_full="reject"))
    s.submit_all("a", "a", "a/k")
    assert [each.id for each in s.out.admitted] == [1, 2]


def test_a_paused_action_without_limit_still_bounds_what_waits() -> None:
    s = Scheduler(Action(ref="a", max_queued=1, paused=True))
    s.submit_all("a", "a")
    assert (len(s.out.admitted), len(s.out.refused)) == (1, 1)


def test_what_is_delayed_is_not_refused_by_a_full_queue() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=0, max_queued=0))
    s.submit("a", run_at=5.0)
    assert [each.code for each in s.out.refused] == []


def test_an_unknown_action_is_refused_with_its_source() -> None:
    s = Scheduler()
    s.turn(Admit(action_ref="a", source="letter"))
    assert [(each.code, each.source) for each in s.out.refused] == [(Code.UNKNOWN_ACTION, "letter")]


def test_positions_count_smaller_priorities() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=0))
    s.turn(*(Admit(action_ref="a", priority=p) for p in (3, 1, 3)))
    assert [each.position for each in s.out.admitted] == [1, 1, 3]


def test_idle_queues_are_forgotten() -> None:
    s = Scheduler(Action(ref="a"))
    s.submit_all(*(f"a/{n}" for n in range(50)))
    s.end(*s.running())
    assert s.state.actions["a"].queues == {}


def test_keys_of_a_fair_total_take_turns_by_their_weights() -> None:
    s = Scheduler(Action(ref="a", max_concurrent_total=1, order="fair"))
    s.turn(SetKey(action_ref="a", key="x", settings=KeySettings(weight=2)))
    s.submit_all(*["a/x"] * 12, *["a/y"] * 6)
    started = Counter[str]()
    for _ in range(9):
        s.end(s.running()[0])
        started[s.out.granted[0].queue.key] += 1
    assert abs(started["x"] - 2 * started["y"]) <= 2


def test_keys_of_a_fair_total_that_are_resumed_start_in_turns_from_the_first() -> None:
    s = Scheduler(Action(ref="a", max_concurrent_total=3, order="fair", paused=True))
    s.submit_all(*["a/x"] * 3, *["a/y"] * 3, *["a/z"] * 3)
    assert s.change("a", paused=False) == [1, 4, 7]


def test_a_turn_grants_up_to_its_bound_and_says_so() -> None:
    s = Scheduler(Action(ref="a"))
    assert s.turn(*[Admit(action_ref="a")] * 5, grants_max=2) == [1, 2]
    assert s.out.is_unfinished
    assert s.turn() == [3, 4, 5]
    assert not s.out.is_unfinished


@pytest.mark.parametrize("more", [{}, {"max_concurrent": 1}, {"max_concurrent_total": 1, "order": "fair"}])
def test_deciding_again_changes_nothing(more: dict[str, Any]) -> None:
    s = Scheduler(Action(ref="a", **more))
    s.submit_all("a", "a/k", "a")
    assert s.turn() == []
    assert s.out.changed == {}


def test_a_turn_names_the_fair_gates_and_the_rates_that_it_changed_and_no_others() -> None:
    s = Scheduler(
        Resource(name="x", capacity=9, order="fair"), Resource(name="y", capacity=9, order="fair"),
        Action(ref="a", uses=uses("x"), rate=Rate(starts=9, per_seconds=1)),
        Action(ref="b", uses=uses("y"), rate=Rate(starts=9, per_seconds=1)),
    )  # fmt: skip
    s.submit_all("a", "a")
    assert {clock.name: list(tags) for clock, tags in s.out.charged.items()} == {
        "resource x": [(3, "a")],
        "pool default": [(3, "a")],
    }
    assert {window.name: count for window, count in s.out.started.items()} == {"action a": 2}
    s.wait(1)
    assert (s.out.charged, s.out.started) == ({}, {})


def test_a_gate_that_is_fair_no_more_says_that_its_tags_mean_nothing() -> None:
    s = Scheduler(Action(ref="a", max_concurrent_total=9, order="fair"))
    s.submit_all("a/k", "a/l")
    assert not s.out.has_forgotten
    s.change("a", order="arrival")
    assert s.out.has_forgotten
