"""The list of what has not started: order, limits, barriers, turns of queues."""

import pytest

from tests.unit.worker_core.world import grant, offer
from turnstile.common.domain.identifiers import Grant
from turnstile.worker.core import waiting
from turnstile.worker.core.waiting import Waiting, WaitingList


def put(items: WaitingList, *ids: int, queue: str = "q", priority: int = 3, again: int = 0) -> list[bool]:
    return [items.put(Waiting(queue, offer(each, priority=priority, again=again), 0.0)) for each in ids]


def taken(items: WaitingList) -> list[int]:
    found = []
    while (each := items.next()) is not None:
        found.append(each.offer.execution_id)
    return found


def test_offers_of_a_queue_start_in_order_of_priority_and_id_whenever_they_arrived() -> None:
    items = WaitingList(10)
    put(items, 5, 3)
    put(items, 9, priority=1)
    put(items, 4)
    assert taken(items) == [9, 3, 4, 5]


def test_a_retry_joins_at_the_place_of_its_id() -> None:
    items = WaitingList(1)
    put(items, 2, 3, 4)
    assert taken(items) == [2]
    put(items, 2, again=1)
    items.ended("q")
    assert taken(items) == [2]


def test_more_than_at_once_of_a_queue_never_run() -> None:
    items = WaitingList(10)
    items.limit("q", 2)
    put(items, 1, 2, 3)
    assert taken(items) == [1, 2]
    items.ended("q")
    assert taken(items) == [3]


def test_a_lower_at_once_starts_nothing_until_enough_has_ended() -> None:
    items = WaitingList(10)
    put(items, 1, 2, 3, 4)
    items.limit("q", 3)
    assert taken(items) == [1, 2, 3]
    assert items.limit("q", 1)
    items.ended("q")
    items.ended("q")
    assert taken(items) == []
    items.ended("q")
    assert taken(items) == [4]


def test_no_more_than_the_concurrency_of_the_worker_run() -> None:
    items = WaitingList(2)
    put(items, 1, 2)
    put(items, 3, queue="r")
    assert len(taken(items)) == 2
    items.ended("q")
    assert len(taken(items)) == 1


def test_a_full_queue_delays_no_other_queue() -> None:
    items = WaitingList(10)
    items.limit("q", 0)
    put(items, 1, 2)
    put(items, 3, 4, queue="r")
    assert taken(items) == [3, 4]


def test_queues_take_turns_for_the_slots_of_the_worker() -> None:
    items = WaitingList(2)
    put(items, 1, 2, 3)
    put(items, 4, 5, 6, queue="r")
    assert taken(items) == [1, 4]
    items.ended("q")
    items.ended("r")
    assert taken(items) == [2, 5]


def test_a_recall_returns_in_order_what_has_not_started_up_to_its_barrier() -> None:
    items = WaitingList(1)
    put(items, 1, 4, 3, 2, 9)
    put(items, 5, queue="r")
    assert taken(items) == [1]
    assert [each.execution_id for each in items.recall("q", grant(4))] == [2, 3, 4]
    items.ended("q")
    assert items.next() is not None


def test_an_offer_up_to_the_barrier_is_not_taken_however_late_it_arrives() -> None:
    items = WaitingList(1)
    items.recall("q", grant(7))
    items.recall("q", grant(5))
    assert put(items, 6, 7, 8) == [False, False, True]
    assert put(items, 6, queue="r") == [True]
    assert items.put(Waiting("q", offer(6, again=1), 0.0))


def test_what_is_behind_a_returned_one_is_given_back_and_nothing_starts_until_that_is_recalled() -> None:
    items = WaitingList(9)
    items.limit("q", 1)
    put(items, 1, 4, 3)
    put(items, 5, queue="r")
    assert taken(items) == [1, 5]
    items.ended("q")
    assert [each.execution_id for each in items.close("q", grant(1))] == [3, 4]
    assert put(items, 6, 2) == [False, False]
    items.recall("q", grant(5))
    assert put(items, 7) == [False]
    items.recall("q", grant(7))
    assert put(items, 8) == [True]
    assert taken(items) == [8]


def test_a_removed_offer_does_not_start() -> None:
    items = WaitingList(9)
    put(items, 1, 2)
    removed = items.remove(grant(1))
    assert removed is not None
    assert removed.execution_id == 1
    assert items.remove(grant(1)) is None
    assert grant(1) not in items
    assert taken(items) == [2]


def test_clear_returns_everything() -> None:
    items = WaitingList(1)
    put(items, 2, 1)
    put(items, 3, queue="r")
    assert [each.execution_id for each in items.clear()] == [1, 2, 3]
    assert taken(items) == []
    assert list(items.held()) == []


def test_queues_that_were_idle_for_longest_are_forgotten_above_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "_IDLE_QUEUES_MAX", 2)
    items = WaitingList(9)
    for name in ("a", "b", "c"):
        items.recall(name, Grant(1, 5))
    put(items, 8, queue="d")
    assert put(items, 1, queue="a") == [True]
    assert put(items, 1, queue="c") == [False]
