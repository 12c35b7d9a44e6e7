"""Pools, crews and workers: which worker gets what, turns, and what a lost worker leaves."""

from collections import Counter

import pytest

from tests.unit.queue_manager.scheduler import Scheduler, uses
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager.definitions import Action, Pool, Resource
from turnstile.executor.queue_manager.inputs import DeleteAction, DeletePool, WorkerChanged


def test_actions_take_turns_in_a_fair_pool_by_their_weights() -> None:
    s = Scheduler(Action(ref="a"), Action(ref="b"), Pool(name="default", weights={"a": 3}), workers={"w": 1})
    s.submit_all(*"a" * 30, *"b" * 30)
    started = Counter(s.drain(20))
    assert abs(started["a"] - 3 * started["b"]) <= 4


def test_a_pool_by_arrival_starts_in_order_of_ids() -> None:
    s = Scheduler(Action(ref="a"), Action(ref="b"), Pool(name="default", order="arrival"), workers={"w": 1})
    s.submit_all(*"aabab")
    assert s.drain(4) == ["a", "b", "a", "b"]


def test_shares_at_a_pool_hold_between_plain_actions_and_those_with_resources() -> None:
    s = Scheduler(
        Resource(name="r", capacity=2), Action(ref="a"), Action(ref="c", uses=uses("r")), workers={"w": 4}
    )
    s.submit_all(*"a" * 100, *"c" * 100)
    started = Counter(s.drain(100))
    assert abs(started["a"] - started["c"]) <= 4


def test_priorities_are_strict_at_a_fair_pool() -> None:
    s = Scheduler(Action(ref="a"), Action(ref="b"), workers={"w": 1})
    s.submit_all("a", "a", "a")
    s.submit("b", priority=1)
    assert s.drain(2) == ["b", "a"]


def test_the_least_flexible_worker_goes_first() -> None:
    s = Scheduler(Action(ref="a"), Action(ref="b"), workers={})
    s.worker("all", 1)
    s.worker("only-a", 1, actions="a")
    s.submit_all("a", "b")
    assert {each.id: each.worker.id for each in s.out.granted} == {1: "only-a", 2: "all"}


def test_a_worker_slot_never_idles_beside_what_its_worker_could_run() -> None:
    s = Scheduler(Action(ref="a"), Action(ref="b"), workers={})
    s.worker("all", 2)
    s.worker("only-a", 2, actions="a")
    s.submit_all(*"a" * 30, *"b" * 30)
    assert len(s.running()) == 4
    for _ in range(8):
        s.end(s.running()[0])
        assert len(s.running()) == 4


def test_work_is_spread_over_equal_workers() -> None:
    s = Scheduler(Action(ref="a"), workers={"u": 4, "v": 2})
    s.submit_all(*"aaa")
    assert Counter(each.worker.id for each in s.out.granted) == {"u": 2, "v": 1}


def test_an_action_that_no_worker_serves_blocks_nothing() -> None:
    s = Scheduler(Action(ref="a"), Action(ref="b"), workers={})
    s.worker("w", 1, actions="b")
    assert s.submit_all("a", "b") == [2]
    assert s.worker("v", 1) == [1]


def test_an_action_without_code_runs_on_every_worker_of_its_pool() -> None:
    s = Scheduler(Action(ref="a", needs_code=False), workers={})
    s.worker("w", 1, actions="b")
    assert s.submit_all("a") == [1]


def test_a_paused_pool_starts_nothing() -> None:
    s = Scheduler(Action(ref="a"), Pool(name="default", paused=True))
    assert s.submit_all("a") == []
    assert s.define(Pool(name="default")) == [1]


def test_a_draining_worker_gets_nothing_and_keeps_what_it_has() -> None:
    s = Scheduler(Action(ref="a"), workers={"w": 2})
    s.submit_all("a")
    s.worker("w", 2, is_taking=False)
    assert s.submit_all("a") == []
    assert s.running() == [1]
    assert s.worker("w", 2) == [2]


def test_a_lowered_concurrency_takes_nothing_away() -> None:
    s = Scheduler(Action(ref="a"), workers={"w": 2})
    s.submit_all(*"aaa")
    s.worker("w", 1)
    assert s.end(1) == []
    assert s.end(2) == [3]


def test_pools_take_turns_at_a_shared_worker() -> None:
    s = Scheduler(Action(ref="a"), Action(ref="g", pool="gpu"), workers={})
    s.worker("w", 1, pools="default gpu")
    s.submit_all(*"aaaa", *"gggg")
    started = s.drain(6)
    assert [started[n] != started[n + 1] for n in range(5)] == [True] * 5


def test_a_pool_with_workers_of_its_own_still_gets_its_turn_at_a_shared_one() -> None:
    s = Scheduler(Action(ref="a"), Action(ref="g", pool="gpu"), workers={"own": 1})
    s.worker("shared", 1, pools="default gpu")
    s.submit_all(*"a" * 30, *"g" * 30)
    got = Counter[str]()
    for _ in range(10):
        (execution,) = s.state.workers["own"].held.values()
        s.end(execution.id)
        (execution,) = s.state.workers["shared"].held.values()
        s.end(execution.id)
        got += Counter(each.queue.action.ref for each in s.out.granted if each.worker.id == "shared")
    assert got == {"a": 5, "g": 5}


def test_an_action_that_changes_its_pool_waits_there() -> None:
    s = Scheduler(Action(ref="a", pool="gpu"))
    assert s.submit_all("a") == []
    assert s.change("a", pool="default") == [1]


def test_a_worker_that_repeats_what_it_offers_changes_nothing() -> None:
    s = Scheduler(Action(ref="a"), workers={"w": 1})
    s.submit_all("a", "a")
    assert s.worker("w", 1) == []
    assert s.out.changed == {}


def test_what_a_lost_worker_held_returns_to_the_head_with_a_new_grant() -> None:
    s = Scheduler(Action(ref="a", max_concurrent=1), workers={"w": 1})
    s.submit_all("a", "a")
    old = s.grant(1)
    s.worker("v", 1)
    assert s.lose("w") == [1]
    assert [(each.execution_id, each.grant) for each in s.out.asked] == [(1, old)]
    assert s.grant(1) > old
    assert s.execution(1).attempt == 2
    assert [(each.id, each.outcome) for each in s.out.attempts] == [(1, "reclaimed")]


@pytest.mark.parametrize("knows", ["the return", "an earlier report"])
def test_what_may_run_once_only_ends_when_it_is_returned_after_its_start(knows: str) -> None:
    s = Scheduler(Action(ref="a", on_worker_lost="abandon"), workers={"w": 1})
    s.submit_all("a")
    if knows == "an earlier report":
        s.report_start(1)
    assert s.give_back(1, had_started=knows == "the return") == []
    assert s.outcomes() == {1: Status.ABANDONED}
    assert s.out.finished[0].error == (
        "Returned", "worker w returned it after its start, and it may not run again",
    )  # fmt: skip


def test_what_may_run_once_only_goes_back_while_it_has_not_started() -> None:
    s = Scheduler(Action(ref="a", on_worker_lost="abandon"), workers={"w": 1})
    s.submit_all("a")
    assert s.give_back(1) == [1]


def test_a_cancel_wins_when_what_may_run_once_only_is_returned() -> None:
    s = Scheduler(Action(ref="a", on_worker_lost="abandon"), workers={"w": 1})
    s.submit_all("a")
    s.cancel(1)
    s.give_back(1, had_started=True)
    assert s.outcomes() == {1: Status.CANCELLED}


def test_an_abandoned_execution_ends_with_its_worker() -> None:
    s = Scheduler(Action(ref="a", on_worker_lost="abandon"), workers={"w": 1})
    s.submit_all("a")
    s.lose("w")
    assert s.outcomes() == {1: Status.ABANDONED}
    assert s.out.finished[0].error is not None


@pytest.mark.parametrize("is_counted", [True, False])
def test_reclaims_are_used_up_by_losses_that_count(is_counted: bool) -> None:
    s = Scheduler(Action(ref="a", max_reclaims=1), workers={"w0": 1})
    s.submit_all("a")
    for number in range(2):
        s.lose(f"w{number}", is_counted=is_counted)
        s.worker(f"w{number + 1}", 1)
    assert (s.running() == [1]) is not is_counted


def test_losses_in_an_outage_use_up_no_reclaim() -> None:
    s = Scheduler(Action(ref="a", max_reclaims=1), workers={"u": 1})
    s.submit_all("a")
    s.worker("v", 1)
    s.lose("u", is_counted=False)
    s.worker("w", 1)
    assert s.lose("v") == [1]


def test_a_cancel_wins_over_a_reclaim() -> None:
    s = Scheduler(Action(ref="a"), workers={"w": 1})
    s.submit_all("a")
    s.cancel(1, reason="wrong customer")
    s.worker("v", 1)
    assert s.lose("w") == []
    assert s.outcomes() == {1: Status.CANCELLED}
    assert s.out.finished[0].error == ("Cancelled", "wrong customer")


def test_a_reclaimed_execution_whose_time_is_over_expires() -> None:
    s = Scheduler(Action(ref="a", ttl_seconds=5), workers={"w": 1, "v": 1})
    s.submit_all("a")
    s.now = 5
    assert s.lose(s.execution(1).worker.id) == []  # type: ignore[union-attr]
    assert s.outcomes() == {1: Status.EXPIRED}


def test_losing_an_unknown_worker_changes_nothing() -> None:
    s = Scheduler(Action(ref="a"))
    s.submit_all("a")
    s.lose("nobody")
    assert s.running() == [1]


def test_a_pool_without_actions_goes_with_the_tags_of_its_turns() -> None:
    s = Scheduler(Action(ref="a", pool="p"), Action(ref="b", pool="p"), workers={})
    s.turn(WorkerChanged(worker_id="w", pools=frozenset(["p"]), concurrency=1))
    s.submit_all("a", "b", "a")
    s.turn(DeletePool(name="p"))
    assert "p" in s.state.pools
    s.drain(3)
    for ref in "ab":
        s.turn(DeleteAction(ref=ref, reason="x"))
    s.turn(DeletePool(name="p"))
    assert "p" not in s.state.pools
    assert s.out.has_forgotten
    s.turn(DeletePool(name="p"))
    assert not s.out.has_forgotten
