"""Runs: what a worker gets of short actions beyond what may run at once (P1, P2, P7, P12, P14)."""

from collections import Counter
from typing import Any

import pytest

from tests.unit.queue_manager.scheduler import Scheduler, uses
from turnstile.common.domain.identifiers import Grant
from turnstile.executor.queue_manager.definitions import Action, Pool, Rate, Resource
from turnstile.executor.queue_manager.inputs import Admit, DeleteAction, Returned
from turnstile.executor.queue_manager.retries import RetryPolicy
from turnstile.executor.queue_manager.runs import (
    AHEAD_BYTES_MAX,
    AHEAD_MAX,
    AHEAD_OF_SLOTS_MAX,
    STALLED_SECONDS,
    note_size,
)

RETRY = RetryPolicy(max_attempts=3, delay_seconds=0.01, factor=1, jitter=0)


def short(*actions: Action | Pool | Resource, seconds: float = 0.025, **workers: int) -> Scheduler:
    """Return a scheduler that has seen one execution of each action: they ran for so long, `l` for longer."""
    s = Scheduler(*actions, workers=workers or {"w": 100})
    for action in actions:
        if isinstance(action, Action):
            s.end_after(9.0 if action.ref == "l" else seconds, s.submit(action.ref))
    return s


def test_a_queue_of_a_short_action_gets_a_horizon_s_worth_beyond_its_limit() -> None:
    s = short(Action(ref="a", max_concurrent=2))
    s.submit_all(*"a" * 20)
    assert s.running() == list(range(2, 12))
    assert s.state.actions["a"].queues[""].active == 2


def test_an_action_of_which_nothing_has_ended_or_that_lasts_has_no_runs() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1))
    s.submit_all(*"aaaa")
    assert s.end_after(0.5, 1) == [2]
    assert s.end_after(0.5, 2) == [3]


def test_the_mean_of_the_durations_decides() -> None:
    s = short(Action(ref="a", max_concurrent=1), seconds=0.01)
    s.end_after(2.0, s.submit("a"))
    s.submit_all(*"aaaaa")
    assert len(s.running()) == 1
    s.submit_all(*"a" * 40)
    lengths = []
    while len(s.running()) == 1:
        s.end_after(0.01, *s.running())
        lengths.append(len(s.running()))
    assert len(lengths) == 8


@pytest.mark.parametrize(
    "more",
    [
        {"max_concurrent_total": 9},
        {"uses": uses("r")},
        {"rate": Rate(starts=99, per_seconds=1)},
        {"on_worker_lost": "abandon"},
        {"max_reclaims": 0},
        {"runs": False},
    ],
    ids=["total", "resource", "rate", "abandon", "no reclaim", "told so"],
)
def test_an_action_with_gates_or_that_may_start_only_once_has_no_runs(more: dict[str, Any]) -> None:
    s = short(Resource(name="r", capacity=99), Action(ref="a", max_concurrent=1, **more))
    s.submit_all(*"aaaa")
    assert len(s.running()) == 1


def test_a_run_is_bounded_in_number() -> None:
    s = short(Action(ref="a", max_concurrent=50), seconds=0.0)
    s.submit_all(*"a" * 1000)
    assert len(s.running()) == 50 + AHEAD_MAX


def test_what_is_ahead_of_the_slots_of_a_worker_is_bounded_in_number() -> None:
    s = short(Action(ref="a"), seconds=0.0)
    s.submit_all(*"a" * 2000)
    assert len(s.running()) == 100 + AHEAD_OF_SLOTS_MAX


def test_a_run_is_extended_when_a_part_of_it_was_used_and_not_for_each_end() -> None:
    s = short(Action(ref="a", max_concurrent=1), seconds=0.01)
    s.submit_all(*"a" * 30)
    assert s.running() == list(range(2, 13))
    assert s.end_after(0.01, 2) == []
    assert s.end_after(0.01, 3) == [13, 14]


def test_a_turn_extends_runs_up_to_its_bound_and_says_so() -> None:
    s = short(Action(ref="a", max_concurrent=1), Action(ref="b", max_concurrent=1))
    s.turn(*(Admit(action_ref=ref) for ref in "abababab"), grants_max=4)
    assert s.out.is_unfinished
    assert len(s.turn()) == 4
    assert (s.out.is_unfinished, len(s.running())) == (False, 8)


def test_a_queue_has_a_run_at_one_worker_only() -> None:
    s = short(Action(ref="a", max_concurrent=2), Action(ref="l"), u=2, v=2)
    s.submit_all("l", "l")
    assert s.submit_all(*"aaaa") == [5, 6]
    assert (len(s.at("u")), len(s.at("v"))) == (2, 2), "each has one of the queue"
    s.submit_all("l")
    s.end(3)
    assert s.end_after(0.01, 5) == [7], "a free slot where the rest of the queue is"


def test_a_queue_gathers_at_one_worker_and_moves_only_when_its_run_was_drained() -> None:
    s = short(Action(ref="a", max_concurrent=2), u=4, v=4)
    s.submit_all(*"a" * 30)
    (home,) = {each.worker for each in s.state.executions.values() if each.worker is not None}
    assert len(s.running()) == 10
    s.worker(home.id, 4, is_taking=False)
    other = "v" if home.id == "u" else "u"
    for _ in range(8):
        assert s.end_after(0.01, s.running()[0]) == []
    assert s.end_after(0.01, s.running()[0]) == [12]
    assert s.at(other) == [12]


def test_a_spread_queue_gathers_and_then_has_a_run() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=2), workers={"u": 2, "v": 2})
    s.submit_all(*"a" * 9)
    assert (s.at("u"), s.at("v")) == ([1], [2])
    s.end_after(0.025, 1)
    assert (s.at("u"), s.at("v")) == ([], [2, 3, 4, 5, 6, 7, 8, 9])


def test_a_run_ends_before_what_is_suspect() -> None:
    s = short(Action(ref="a", max_concurrent=1))
    s.submit_all("a", "a", run_at=1.0)
    assert s.submit_all("a", "a") == [4, 5]
    s.lose("w")
    s.wait(1.0)
    assert s.worker("v", 9) == [2, 3]
    assert s.end_after(0.025, 2) == []
    assert s.end_after(0.025, 3) == [4]


def test_a_worker_with_fewer_slots_than_the_limit_gets_no_run() -> None:
    s = short(Action(ref="a", max_concurrent=3), w=2)
    assert s.submit_all(*"aaaaaa") == [2, 3, 4]


def test_a_run_uses_the_slots_of_its_limit_and_others_use_the_rest() -> None:
    s = short(Action(ref="a", max_concurrent=1), Action(ref="l"), w=3)
    s.submit_all(*"a" * 5)
    assert s.submit_all("l", "l", "l") == [8, 9]


def test_a_run_is_not_extended_while_others_wait_for_its_worker() -> None:
    s = short(Action(ref="a", max_concurrent=1), Action(ref="l"), w=1)
    s.submit_all(*"a" * 10)
    assert s.running() == [3, 4, 5, 6, 7]
    s.submit("l")
    for number in range(3, 7):
        assert s.end_after(0.025, number) == []
    assert s.end_after(0.025, 7) == [13]


def test_what_waits_for_a_worker_gets_a_horizon_s_worth_beyond_its_slots() -> None:
    s = short(Action(ref="a"), w=2)
    s.submit_all(*"a" * 20)
    assert s.running() == list(range(2, 12))
    assert s.end_after(0.025, 2, 3) == [12, 13]


def test_workers_get_their_share_of_what_waits_for_them() -> None:
    s = short(Action(ref="a"), u=4, v=2)
    s.submit_all(*"a" * 12)
    assert (len(s.at("u")), len(s.at("v"))) == (8, 4)


def test_nothing_waits_behind_what_lasts() -> None:
    s = short(Action(ref="a"), Action(ref="l"), w=2)
    s.submit_all("l")
    s.submit_all(*"a" * 20)
    assert len(s.at("w")) == 1 + 1 + 4, "one slot ends short ones"


def test_an_action_that_lasts_gets_its_turn_beside_short_ones() -> None:
    s = short(Action(ref="a"), Action(ref="l"), w=1)
    s.submit_all(*"a" * 50)
    (last,) = [each.id for each in s.out.admitted][-1:]
    first = s.submit("l")
    assert first == last + 1
    for _ in range(5):
        assert s.state.executions.get(first) is None
        s.end_after(0.025, s.running()[0])
    assert s.running() == [first]


def test_weights_count_where_short_actions_wait_for_the_same_worker() -> None:
    s = short(Action(ref="a"), Action(ref="b"), Pool(name="default", weights={"a": 3}), w=2)
    s.submit_all(*"ab" * 200)
    started = Counter[str]()
    for _ in range(160):
        s.end_after(0.025, min(s.running(), key=s.grant))
        started.update(each.queue.action.ref for each in s.out.granted)
    assert abs(started["a"] - 3 * started["b"]) <= 4


def test_pools_take_turns_at_a_worker_without_a_free_slot() -> None:
    s = Scheduler(Action(ref="a"), Action(ref="g", pool="gpu"), workers={})
    s.worker("w", 1, pools="default gpu")
    for ref in "ag":
        s.end_after(0.025, s.submit(ref))
    s.submit_all(*"a" * 20, *"g" * 20)
    started = Counter[str]()
    for _ in range(20):
        s.end_after(0.025, min(s.running(), key=s.grant))
        started.update(each.queue.action.ref for each in s.out.granted)
    assert abs(started["a"] - started["g"]) <= 1


def test_pools_fill_a_worker_that_they_share_whatever_each_has_elsewhere() -> None:
    s = Scheduler(Action(ref="a"), Action(ref="g", pool="gpu"), workers={})
    s.worker("shared", 1, pools="default gpu")
    s.worker("gpu", 1, pools="gpu")
    for ref in "ag":
        s.end_after(0.025, s.submit(ref))
    s.submit_all("a", "g")
    s.submit_all(*"a" * 20, *"g" * 20)
    assert (len(s.at("shared")), len(s.at("gpu"))) == (5, 5)


def test_a_pool_with_a_free_slot_elsewhere_has_no_turn_at_a_full_worker() -> None:
    s = Scheduler(Action(ref="a"), Action(ref="g", pool="gpu"), workers={})
    s.worker("shared", 1, pools="default gpu")
    s.worker("gpu", 3, pools="gpu")
    s.end_after(0.025, s.submit("a"))
    s.submit("a")
    s.submit("g")
    assert sorted(s.submit_all("a", "a", "g")) == [4, 5, 6]


def test_what_lasts_gets_its_turn_at_a_worker_that_pools_share() -> None:
    s = Scheduler(Action(ref="a"), Action(ref="l", pool="gpu"), workers={})
    s.worker("w", 1, pools="default gpu")
    s.end_after(0.025, s.submit("a"))
    s.submit_all(*"a" * 20)
    lasting = s.submit("l")
    for _ in range(5):
        s.end_after(0.025, s.running()[0])
    assert s.running() == [lasting]


@pytest.mark.parametrize("pool", ["default", "gpu"])
def test_what_waited_behind_what_lasts_is_at_the_worker_when_that_is_cancelled(pool: str) -> None:
    s = Scheduler(Action(ref="a"), Action(ref="l", pool=pool), workers={})
    s.worker("w", 1, pools="default gpu")
    s.end_after(0.025, s.submit("a"))
    s.submit("a")
    lasting = s.submit("l")
    assert s.submit_all(*"aaa") == []
    assert s.cancel(lasting, "l") == [4, 5, 6]


def test_what_lasts_is_passed_by_no_other_crew_at_its_worker() -> None:
    s = short(Action(ref="a"), Action(ref="l"), u=1)
    s.worker("v", 1, actions="a")
    s.submit_all("a", "a")
    s.submit("l")
    s.submit_all(*"a" * 9)
    assert (len(s.at("u")), len(s.at("v"))) == (1, 5)


def test_what_is_more_urgent_joins_the_run() -> None:
    s = short(Action(ref="a", max_concurrent=1))
    s.submit_all(*"a" * 10)
    assert s.running() == [2, 3, 4, 5, 6]
    urgent = s.submit("a", priority=1)
    assert urgent in s.running()
    assert 7 not in s.running()


def test_urgent_arrivals_are_bounded_too() -> None:
    s = short(Action(ref="a", max_concurrent=1))
    s.submit_all(*"a" * 10)
    s.submit_all(*"a" * 10, priority=1)
    assert len(s.running()) == 1 + 2 * 4


def test_a_retry_joins_the_run_at_its_place() -> None:
    s = short(Action(ref="a", max_concurrent=1, retry=RETRY))
    s.submit_all(*"a" * 10)
    s.fail(2, started_at=0.0, completed_at=0.025)
    assert s.wait(0.01) == [2]


def test_a_cancel_of_what_waits_in_a_run_asks_its_worker() -> None:
    s = short(Action(ref="a", max_concurrent=1))
    s.submit_all(*"aaaa")
    s.cancel(4)
    assert [(each.execution_id, each.grant) for each in s.out.asked] == [(4, s.grant(4))]


def test_a_paused_action_extends_no_run() -> None:
    s = short(Action(ref="a", max_concurrent=1))
    s.submit_all(*"a" * 10)
    s.change("a", paused=True)
    assert s.end_after(0.025, 2, 3, 4) == []


def test_a_lowered_limit_gives_no_slot_of_what_runs_to_others() -> None:
    s = short(Action(ref="a", max_concurrent=4), Action(ref="l"), w=4)
    s.submit_all(*"aaaaaa")
    s.change("a", max_concurrent=1)
    assert s.submit_all("l") == []
    for execution_id in (3, 4, 5, 6):
        s.report_start(execution_id)
    for execution_id in (7, 8):
        s.give_back(execution_id)
    assert s.end(3) == [9, 7, 8]


def test_a_raised_limit_gives_slots_to_what_waits_in_the_run() -> None:
    s = short(Action(ref="a", max_concurrent=1), Action(ref="l"), w=4)
    s.submit_all(*"aaaa")
    s.change("a", max_concurrent=3)
    assert s.submit_all("l", "l") == [7]


def test_what_stalls_at_a_worker_is_recalled_and_its_action_has_no_runs_until_it_is_short_again() -> None:
    s = short(Action(ref="a", max_concurrent=1))
    s.submit_all(*"a" * 4)
    s.wait(STALLED_SECONDS)
    assert [(each.queue.action.ref, each.worker_id, each.barrier) for each in s.out.recalled] == [
        ("a", "w", Grant(1, 5))
    ]
    for number in (3, 4, 5):
        assert s.give_back(number) == []
    assert s.end_after(0.01, 2) == [3]


def test_what_runs_for_long_without_anything_behind_it_is_not_recalled() -> None:
    s = short(Action(ref="a", max_concurrent=2), Action(ref="b"), w=3)
    s.submit_all("a", "a", "b")
    s.wait(STALLED_SECONDS)
    s.wait(STALLED_SECONDS)
    assert s.out.recalled == []


def test_what_waits_at_a_busy_worker_is_recalled() -> None:
    s = short(Action(ref="a"), w=1)
    s.submit_all("a", "a")
    s.wait(STALLED_SECONDS)
    assert len(s.out.recalled) == 1
    s.worker("v", 1)
    assert s.give_back(3) == [3]
    assert s.at("v") == [3]


def test_an_action_is_not_deleted_while_its_run_is_at_a_worker() -> None:
    s = short(Action(ref="a", max_concurrent=2))
    s.submit_all(*"a" * 6)
    s.change("a", max_concurrent=0)
    s.end(*s.running()[:2])
    assert s.state.actions["a"].queues[""].active == 0
    s.turn(DeleteAction(ref="a", reason="not needed", cancel_max=100))
    assert [(each[0], each[2]) for each in s.out.deleted] == [(False, 4)]
    s.end(*s.running())
    s.turn(DeleteAction(ref="a", reason="not needed", cancel_max=100))
    assert [each[0] for each in s.out.deleted] == [True]


def test_what_had_not_started_at_a_lost_worker_does_not_count_as_reclaimed() -> None:
    s = short(Action(ref="a", max_concurrent=1, max_reclaims=1))
    s.submit_all(*"aaa")
    s.lose("w")
    assert [s.execution(each).reclaims for each in (2, 3, 4)] == [1, 0, 0]


def test_what_a_lost_worker_had_is_granted_singly_until_it_has_ended_once() -> None:
    s = short(Action(ref="a", max_concurrent=1, retry=RETRY))
    s.submit_all(*"aaa")
    s.lose("w")
    assert s.worker("v", 9) == [2]
    assert s.end_after(0.025, 2) == [3]
    assert s.fail(3, started_at=0.0, completed_at=0.025) == [4]
    assert s.wait(0.01) == [3]


def test_the_loss_of_a_worker_in_an_outage_makes_nothing_suspect() -> None:
    s = short(Action(ref="a", max_concurrent=1))
    s.submit_all(*"aaa")
    s.lose("w", is_counted=False)
    assert s.worker("v", 9) == [2, 3, 4]


# What workers are told.


def told(s: Scheduler) -> tuple[list[tuple[str, str]], list[tuple[str, str, Grant]]]:
    """Return which queues which workers are told the limit of, and what they must return."""
    limited = [(each.queue.action.ref, each.worker_id) for each in s.out.limited]
    recalled = [(each.queue.action.ref, each.worker_id, each.barrier) for each in s.out.recalled]
    return limited, recalled


def test_a_raised_limit_is_told_and_a_lowered_one_recalls_what_was_granted_until_then() -> None:
    s = short(Action(ref="a", max_concurrent=2), Action(ref="b"))
    s.submit_all(*"a" * 20, "b")
    s.change("a", max_concurrent=3)
    assert told(s) == ([("a", "w")], [])
    last = Grant(s.state.epoch, s.state.grant_counter)
    s.change("a", max_concurrent=1)
    assert told(s) == ([("a", "w")], [("a", "w", last)])
    s.change("b", max_concurrent=None)
    assert told(s) == ([("b", "w")], [])


def test_a_pause_of_an_action_or_its_pool_recalls() -> None:
    s = short(Action(ref="a", max_concurrent=2))
    s.submit_all(*"a" * 20)
    s.change("a", paused=True)
    assert len(s.out.recalled) == 1
    s.turn(*(Returned(execution_id=each, grant=s.grant(each)) for each in s.running()))
    s.change("a", paused=False)
    assert (s.out.recalled, len(s.running())) == ([], 10)
    s.define(Pool(name="default", paused=True))
    assert len(s.out.recalled) == 1
    s.define(Pool(name="default", paused=True))
    assert s.out.recalled == []


def test_what_is_behind_a_returned_one_is_recalled_once() -> None:
    s = short(Action(ref="a", max_concurrent=1))
    s.submit_all(*"a" * 5)
    last = s.grant(6)
    s.give_back(2)
    assert told(s) == ([], [("a", "w", last)])
    for execution_id in (3, 4, 5):
        assert s.give_back(execution_id) == []
        assert s.out.recalled == []
    assert s.give_back(6) == [2, 3, 4, 5, 6]
    s.give_back(4)
    assert len(s.out.recalled) == 1


def test_a_worker_gets_nothing_before_what_was_recalled_has_come_back_or_started() -> None:
    s = short(Action(ref="a", max_concurrent=4), Action(ref="b"), w=9)
    s.submit_all(*"aaaa")
    s.give_back(4)
    assert s.submit_all("b", "a") == []
    s.report_start(3)
    s.give_back(6)
    assert s.submit_all() == []
    assert s.end(5) == [7, 4, 6, 8]


def test_a_return_of_what_had_started_recalls_nothing() -> None:
    s = short(Action(ref="a", max_concurrent=2))
    s.submit_all(*"a" * 5)
    s.give_back(2, had_started=True)
    assert s.out.recalled == []


def test_a_worker_that_answered_is_told_what_it_may_have_missed() -> None:
    s = short(Action(ref="a", max_concurrent=2))
    s.submit_all(*"a" * 5)
    s.worker("w", 90)
    s.worker("w", 90, is_taking=False)
    s.worker("w", 90)
    assert told(s) == ([], [])
    s.worker("w", 90, is_answer=True)
    assert told(s) == ([("a", "w")], [])


def test_a_recall_that_is_not_answered_is_repeated_to_a_worker_that_answered() -> None:
    s = short(Action(ref="a", max_concurrent=2))
    s.submit_all(*"a" * 5)
    s.give_back(4)
    s.change("a", runs=False)
    s.worker("w", 100, is_answer=True)
    assert len(s.out.recalled) == 1
    for execution_id in (2, 3):
        s.report_start(execution_id)
    for execution_id in (5, 6):
        s.give_back(execution_id)
    s.worker("w", 100, is_answer=True)
    assert s.out.recalled == []


def test_a_run_is_bounded_in_bytes_by_the_latest_sizes() -> None:
    s = short(Action(ref="a", max_concurrent=1), seconds=0.0)
    note_size(s.state.actions["a"], AHEAD_BYTES_MAX // 4)
    s.submit_all(*"a" * 400)
    assert len(s.running()) == 1 + 4
    for _ in range(500):
        note_size(s.state.actions["a"], 100)
    s.end_after(0.0, *s.running())
    assert len(s.running()) > 50
    note_size(s.state.actions["a"], 2 * AHEAD_BYTES_MAX)
    s.end_after(0.0, *s.running())
    assert len(s.running()) == 1


def test_a_paused_action_gets_nothing_when_its_run_is_back() -> None:
    s = short(Action(ref="a", max_concurrent=1))
    s.submit_all(*"a" * 5)
    s.change("a", paused=True)
    s.report_start(2)
    for execution_id in (3, 4, 5, 6):
        assert s.give_back(execution_id) == []


def test_what_stalled_gets_no_run_when_it_is_back() -> None:
    s = short(Action(ref="a", max_concurrent=1))
    s.submit_all(*"a" * 5)
    s.wait(STALLED_SECONDS)
    assert len(s.out.recalled) == 1
    s.report_start(2)
    for execution_id in (3, 4, 5, 6):
        assert s.give_back(execution_id) == []
