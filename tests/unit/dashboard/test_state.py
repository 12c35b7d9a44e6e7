"""The dashboard's state in memory: what it shows, sorts, searches and forgets; the history of a queue."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstile.executor.dashboard import state as state_module
from turnstile.executor.dashboard.failures import Failures
from turnstile.executor.dashboard.state import (
    BUCKETS,
    RATE_SECONDS,
    ActionTotals,
    DashboardState,
    Group,
    Queue,
    QueueName,
    QueueOrder,
    Snapshot,
    Totals,
    TotalsHistory,
    Workers,
    bucket_of,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def queue(ref: str, key: str | None = None, **fields: Any) -> Queue:
    given: dict[str, Any] = {
        "pool": "default",
        "max_concurrent": 2,
        "paused": False,
        "depth": 0,
        "oldest_enqueued_at": None,
        "enqueued": 0,
        "completed": 0,
    }
    return Queue(name=QueueName(ref, key), **{**given, **fields})


def snapshot(
    *queues: Queue, seconds: float = 0, whole: bool = False, deleted: Sequence[str] = (), **held: int
) -> Snapshot:
    totals: dict[str, ActionTotals] = {}
    for each in queues:
        enqueued, completed = totals.get(each.name.action_ref, (0, 0))
        totals[each.name.action_ref] = (
            ActionTotals(None, None)
            if each.enqueued is None or each.completed is None or enqueued is None or completed is None
            else ActionTotals(enqueued + each.enqueued, completed + each.completed)
        )
    return Snapshot(
        read_at=NOW + timedelta(seconds=seconds),
        whole=whole,
        truncated=False,
        queues=[replace(each, active_count=held.get(each.name.action_ref, 0)) for each in queues],
        workers=Workers(),
        totals=totals,
        deleted=deleted,
    )


def names(state: DashboardState, order: QueueOrder, search: str = "") -> list[str]:
    return [each.name.action_ref for each in state.sorted(order, search)]


def three() -> DashboardState:
    state = DashboardState()
    state.apply(
        snapshot(
            queue("a", depth=1, oldest_enqueued_at=NOW),
            queue("b", depth=9, oldest_enqueued_at=NOW - timedelta(hours=1)),
            queue("c", max_concurrent=1),
            whole=True,
            a=1,
            c=1,
        )
    )
    return state


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (QueueOrder.NAME, "abc"),
        (QueueOrder.WAITING, "bac"),
        (QueueOrder.OLDEST, "bac"),
        (QueueOrder.OCCUPANCY, "cab"),
    ],
)
def test_each_order_puts_the_most_urgent_first(order: QueueOrder, expected: str) -> None:
    assert "".join(names(three(), order)) == expected


def test_a_search_finds_parts_of_actions_and_keys_in_any_case() -> None:
    state = DashboardState()
    state.apply(snapshot(queue("Reports.render"), queue("mail", "Customer-7"), queue("other"), whole=True))
    assert names(state, QueueOrder.NAME, "REPORTS") == ["Reports.render"]
    assert names(state, QueueOrder.NAME, "customer") == ["mail"]
    assert names(state, QueueOrder.NAME, "nothing") == []


def test_a_snapshot_returns_only_the_queues_that_differ() -> None:
    state = three()
    same, moved = queue("a", depth=1, oldest_enqueued_at=NOW), queue("b", depth=8)
    changed = state.apply(snapshot(same, moved, seconds=1, a=1, c=1))
    assert [each.name.action_ref for each in changed] == ["b"]


def test_a_slot_freed_without_a_change_of_the_totals_is_applied() -> None:
    state = three()
    changed = state.apply(snapshot(queue("c", max_concurrent=1), seconds=1))
    assert [(each.name.action_ref, each.active_count) for each in changed] == [("c", 0)]


def test_queues_end_with_their_action_and_with_a_whole_snapshot_without_them() -> None:
    state = three()
    state.apply(snapshot(queue("a"), seconds=1))
    assert names(state, QueueOrder.NAME) == ["a", "b", "c"]
    state.apply(snapshot(queue("a"), seconds=2, deleted=["c"]))
    assert names(state, QueueOrder.NAME) == ["a", "b"]
    state.apply(snapshot(queue("a"), seconds=3, whole=True))
    assert names(state, QueueOrder.NAME) == ["a"]


def test_the_row_of_an_unused_action_ends_with_its_first_queue_of_a_key() -> None:
    state = DashboardState()
    state.apply(snapshot(queue("a"), queue("b"), whole=True))
    state.apply(snapshot(queue("a", "key", depth=1, enqueued=1), seconds=1))
    assert set(state.queues) == {QueueName("a", "key"), QueueName("b", None)}
    state.apply(snapshot(queue("c", enqueued=1), queue("c", "key"), seconds=2))
    assert QueueName("c", None) in state.queues
    state.apply(snapshot(queue("a"), seconds=3))
    assert QueueName("a", None) not in state.queues


def test_failures_are_shown_once_at_the_queue_without_a_key() -> None:
    state = DashboardState()
    state.apply(
        snapshot(queue("a"), *(queue("a", key, depth=1, enqueued=1) for key in "xy"), queue("b"), whole=True)
    )
    assert [each.name for each in state.sorted(QueueOrder.NAME, "a")] == [("a", "x"), ("a", "y")]
    starts, _ = state.failures.starts(NOW)
    failed = Failures(read_at=NOW, since=NOW - timedelta(minutes=10), ended=9, failed=3, last=None)
    state.apply_failures(starts, [("a", failed)])
    shown = state.sorted(QueueOrder.FAILURES, "")
    assert [(each.name, state.failures_of(each)) for each in shown] == [
        (("a", None), failed), (("a", "x"), None), (("a", "y"), None), (("b", None), None)
    ]  # fmt: skip
    assert state.depths(shown[0])[-1] == 0
    state.apply(snapshot(queue("a", enqueued=1, depth=1), seconds=1))
    assert [each.depth for each in state.sorted(QueueOrder.FAILURES, "")] == [1, 1, 1, 0]
    state.apply(snapshot(queue("b"), seconds=2, deleted=["a"]))
    assert [each.name for each in state.sorted(QueueOrder.NAME, "")] == [("b", None)]


def grouped(state: DashboardState, search: str = "") -> Sequence[Queue]:
    return state.sorted(QueueOrder.WAITING, search, by_action=True)


def test_the_queues_of_an_action_are_one_group_with_their_sums() -> None:
    state = DashboardState()
    state.apply(
        snapshot(
            queue("a", "x", depth=2, enqueued=2, oldest_enqueued_at=NOW),
            queue("a", "y", depth=3, enqueued=3, oldest_enqueued_at=NOW - timedelta(hours=1)),
            queue("a", "z", enqueued=1, completed=1), queue("b", depth=4, enqueued=4),
            whole=True,
        )
    )  # fmt: skip
    a, b = grouped(state)
    assert isinstance(a, Group)
    assert (a.depth, a.keys, a.idle_keys, a.max_concurrent) == (5, 3, 1, None)
    assert (a.oldest_enqueued_at, b) == (NOW - timedelta(hours=1), state.queues[QueueName("b", None)])
    assert [each.name.action_ref for each in grouped(state, "Z")] == ["a"]
    state.apply(snapshot(queue("a", "x", depth=1, enqueued=2, completed=1), seconds=10))
    assert grouped(state)[0].depth == 4
    assert [depth for depth in state.depths(grouped(state)[0]) if depth is not None] == [5, 5, 4]
    state.apply(snapshot(queue("b"), seconds=11, deleted=["a"]))
    assert [each.name.action_ref for each in grouped(state)] == ["b"]


def test_an_action_that_failed_lately_is_not_idle() -> None:
    state = DashboardState()
    state.apply(snapshot(queue("a", "x", completed=1), queue("b"), whole=True))
    assert [state.is_idle(each) for each in grouped(state)] == [True, True]
    starts, _ = state.failures.starts(NOW)
    failed = Failures(read_at=NOW, since=NOW - timedelta(minutes=10), ended=9, failed=3, last=None)
    state.apply_failures(starts, [("a", failed)])
    assert [(each.name.action_ref, state.is_idle(each)) for each in grouped(state)] == [
        ("a", False),
        ("b", True),
    ]


def test_slots_that_are_held_while_waiting_are_in_use() -> None:
    state = DashboardState()
    state.apply(snapshot(queue("a", held_waiting=2), queue("b"), whole=True, b=1))
    assert names(state, QueueOrder.OCCUPANCY) == ["a", "b"]
    sums, _ = state.total()
    assert (sums.active_count, sums.held_waiting) == (1, 2)


def test_a_time_without_clients_is_in_no_rate() -> None:
    state = three()
    state.forget()
    state.apply(snapshot(queue("a", completed=100_000), seconds=3600, whole=True))
    state.apply(snapshot(queue("a", completed=100_020), seconds=3610))
    rates = state.rates(state.queues[QueueName("a", None)])
    assert rates is not None
    assert rates.completed == pytest.approx(2.0)


def test_lengths_go_on_and_rates_begin_anew_with_another_leader_and_without_one() -> None:
    name, state = QueueName("a", None), DashboardState()
    state.apply(snapshot(queue("a", depth=3, enqueued=100, completed=50), whole=True))
    state.apply(snapshot(queue("a", depth=2, enqueued=None, completed=None), seconds=10, whole=True))
    assert (state.rates(state.queues[name]), state.total()[0].total_enqueued, state.total()[1]) == (
        None,
        None,
        None,
    )
    state.apply(snapshot(queue("a", depth=2, enqueued=0, completed=0), seconds=20, whole=True))
    state.apply(snapshot(queue("a", depth=5, enqueued=30, completed=20), seconds=30))
    rates = state.rates(state.queues[name])
    assert rates is not None
    assert (rates.enqueued, rates.completed) == (3, 2)
    assert [depth for depth in state.depths(state.queues[name]) if depth is not None] == [3, 3, 2, 2, 2, 2, 5]


def test_a_full_state_keeps_the_busiest_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "QUEUES_MAX", 3)
    state = three()
    state.apply(snapshot(queue("idle too"), queue("c", depth=5), seconds=1, a=1))
    assert names(state, QueueOrder.NAME) == ["a", "b", "c"]
    assert state.truncated
    state.apply(snapshot(queue("c"), seconds=2))
    state.apply(snapshot(queue("busy", depth=1), seconds=3))
    assert names(state, QueueOrder.NAME) == ["a", "b", "busy"]


BEGAN = 1_000_000.0
"""The beginning of a bucket."""


def totals(enqueued: int, completed: int = 0, depth: int = 0) -> Totals:
    return Totals(enqueued=enqueued, completed=completed, depth=depth)


def steady(seconds: int, *, per_second: int) -> TotalsHistory:
    history = TotalsHistory(BEGAN, totals(500))
    for second in range(1, seconds + 1):
        history.add(BEGAN + second, totals(500 + per_second * second))
    return history


@given(seconds=st.integers(1, 600), per_second=st.integers(1, 50))
def test_a_steady_rate_is_exact_over_any_known_time(seconds: int, per_second: int) -> None:
    rates = steady(seconds, per_second=per_second).rates(BEGAN + seconds)
    assert rates is not None
    # A bucket's point is up to a second before its end.
    assert abs(rates.enqueued - per_second) <= per_second / RATE_SECONDS * 1.1


def test_a_lower_total_begins_a_new_count() -> None:
    history = TotalsHistory(BEGAN, totals(10, completed=10))
    history.add(BEGAN + 3, totals(10, completed=4))
    assert history.rates(BEGAN + 3) is None
    history.add(BEGAN + 7, totals(10, completed=8))
    rates = history.rates(BEGAN + 7)
    assert rates is not None
    assert rates.completed == 1


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 9)), max_size=80))
def test_the_depths_are_the_last_ones_in_each_bucket(moves: list[tuple[int, int]]) -> None:
    history, noted, at = TotalsHistory(BEGAN, totals(0, depth=3)), [(BEGAN, 3)], BEGAN
    for seconds, depth in moves:
        at += seconds
        history.add(at, totals(0, depth=depth))
        noted.append((at, depth))
    last = bucket_of(at)
    expected = [
        next((depth for when, depth in reversed(noted) if bucket_of(when) <= bucket), None)
        for bucket in range(last - BUCKETS + 1, last + 1)
    ]
    assert history.depths(at) == expected


def test_a_history_is_bounded_and_a_constant_queue_costs_one_point() -> None:
    history = TotalsHistory(BEGAN, totals(1))
    for second in range(1000):
        history.add(BEGAN + second, totals(1))
    assert len(history._points) == 1
    assert len(steady(3600, per_second=1)._points) == BUCKETS + 1
