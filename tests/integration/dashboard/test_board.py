"""The board in memory: what it is told, it shows, sorts, searches and forgets."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from turnstile.executor.dashboard import board as board_module
from turnstile.executor.dashboard.board import Board, QueueOrder
from turnstile.executor.dashboard.lines import Line, QueueName, Reading, Workers

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def line(ref: str, key: str | None = None, **fields: Any) -> Line:
    given: dict[str, Any] = {
        "queue_id": hash((ref, key)),
        "pool": "default",
        "max_concurrent": 2,
        "paused": False,
        "depth": 0,
        "oldest_enqueued_at": None,
        "total_enqueued": 0,
        "total_completed": 0,
    }
    return Line(name=QueueName(ref, key), **{**given, **fields})


def reading(*lines: Line, seconds: float = 0, whole: bool = False, **held: int) -> Reading:
    return Reading(
        read_at=NOW + timedelta(seconds=seconds),
        whole=whole,
        truncated=False,
        lines=[replace(each, active_count=held.get(each.name.action_ref, 0)) for each in lines],
        held={hash((ref, None)): count for ref, count in held.items()},
        workers=Workers(),
    )


def names(board: Board, order: QueueOrder, search: str = "") -> list[str]:
    return [each.name.action_ref for each in board.sorted(order, search)]


def three() -> Board:
    board = Board()
    board.take(
        reading(
            line("a", depth=1, oldest_enqueued_at=NOW),
            line("b", depth=9, oldest_enqueued_at=NOW - timedelta(hours=1)),
            line("c", max_concurrent=1),
            whole=True,
            a=1,
            c=1,
        )
    )
    return board


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (QueueOrder.NAME, "abc"),
        (QueueOrder.WAITING, "bac"),
        (QueueOrder.OLDEST, "bac"),
        (QueueOrder.OCCUPANCY, "cab"),
    ],
)
def test_each_order_puts_what_needs_a_look_first(order: QueueOrder, expected: str) -> None:
    assert "".join(names(three(), order)) == expected


def test_the_order_by_rate_puts_the_busiest_first() -> None:
    board = three()
    board.take(reading(line("c", total_enqueued=30, total_completed=30), seconds=10))
    assert names(board, QueueOrder.RATE)[0] == "c"


def test_a_search_finds_parts_of_actions_and_of_keys_in_either_case() -> None:
    board = Board()
    board.take(reading(line("Reports.render"), line("mail", "Customer-7"), line("other"), whole=True))
    assert names(board, QueueOrder.NAME, "REPORTS") == ["Reports.render"]
    assert names(board, QueueOrder.NAME, "customer") == ["mail"]
    assert names(board, QueueOrder.NAME, "nothing") == []


def test_a_reading_returns_the_queues_that_differ_and_no_others() -> None:
    board = three()
    same, moved = line("a", depth=1, oldest_enqueued_at=NOW), line("b", depth=8)
    changed = board.take(reading(same, moved, seconds=1, a=1, c=1))
    assert [each.name.action_ref for each in changed] == ["b"]


def test_a_slot_that_was_freed_without_a_move_of_the_totals_is_seen() -> None:
    board = three()
    changed = board.take(reading(seconds=1, a=1))
    assert [(each.name.action_ref, each.active_count) for each in changed] == [("c", 0)]


def test_a_whole_reading_drops_what_is_gone_and_a_part_keeps_what_did_not_move() -> None:
    board = three()
    board.take(reading(line("a"), seconds=1))
    assert names(board, QueueOrder.NAME) == ["a", "b", "c"]
    board.take(reading(line("a"), seconds=2, whole=True))
    assert names(board, QueueOrder.NAME) == ["a"]


def test_what_happened_while_nobody_looked_is_in_no_rate() -> None:
    board = three()
    board.forget()
    board.take(reading(line("a", total_completed=100_000), seconds=3600, whole=True))
    board.take(reading(line("a", total_completed=100_020), seconds=3610))
    rates = board.rates(QueueName("a", None))
    assert rates is not None
    assert rates.completed == pytest.approx(2.0)


def test_a_queue_that_never_moved_has_stood_as_it_does_since_the_look_began() -> None:
    board = three()
    board.take(reading(seconds=30, a=1, c=1))
    rates = board.rates(QueueName("b", None))
    assert rates is not None
    assert rates.enqueued == 0
    assert board.depths(QueueName("b", None))[-7:] == [9] * 7
    assert board.depths(QueueName("b", None))[-8] is None


def test_the_totals_are_the_sums_over_all_queues() -> None:
    board = three()
    board.take(reading(line("b", depth=4, total_enqueued=7), seconds=1, a=1, b=2))
    sums, _ = board.total()
    assert (sums.depth, sums.active_count, sums.total_enqueued) == (5, 3, 7)


def test_the_totals_and_the_rates_do_not_notice_that_the_queue_of_an_idle_key_is_deleted() -> None:
    board = Board()
    gone, stays = line("a", "x", total_enqueued=100, total_completed=100), line("a", "y")
    board.take(reading(gone, stays, whole=True))
    board.take(replace(reading(stays, seconds=10, whole=True), deleted=100))
    sums, rates = board.total()
    assert (sums.total_enqueued, sums.total_completed) == (100, 100)
    assert rates is not None
    assert (rates.enqueued, rates.completed) == (0, 0)
    assert QueueName("a", "x") not in board.lines


def test_a_key_that_comes_back_with_a_new_queue_before_the_old_one_is_missed_counts_on() -> None:
    board = Board()
    board.take(reading(line("a", "x", total_enqueued=100, total_completed=100), whole=True))
    back = line("a", "x", queue_id=7, total_enqueued=20, total_completed=10)
    board.take(reading(back, seconds=10))
    sums, total = board.total()
    assert (sums.total_enqueued, sums.total_completed) == (120, 110)
    of_key = board.rates(QueueName("a", "x"))
    assert of_key is not None
    assert total is not None
    assert (of_key.enqueued, of_key.completed) == (total.enqueued, total.completed) == (2, 1)
    board.take(replace(reading(back, seconds=20, whole=True), deleted=100))
    assert board.total()[0] == sums


def test_a_board_that_is_full_takes_no_new_queue_and_goes_on_with_those_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board_module, "QUEUES_MAX", 3)
    board = three()
    board.take(reading(line("one too many"), line("a", depth=5), seconds=1))
    assert names(board, QueueOrder.NAME) == ["a", "b", "c"]
    assert board.lines[QueueName("a", None)].depth == 5
