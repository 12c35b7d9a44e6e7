"""Waiting lists and lines do what their naive references do."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proof.queue_manager.references import (
    LINE_OPERATIONS,
    LIST_OPERATIONS,
    Operation,
    check_line,
    check_waiting_list,
)
from turnstile.executor.queue_manager.waiting import Waiting, WaitingList


def _operations(names: tuple[str, ...]) -> st.SearchStrategy[list[Operation]]:
    return st.lists(st.tuples(st.sampled_from(names), st.integers(0, 4999)), max_size=80)


@given(_operations(LIST_OPERATIONS))
@settings(deadline=None)
def test_a_waiting_list_is_a_sorted_list(operations: list[Operation]) -> None:
    check_waiting_list(operations)


@given(_operations(LINE_OPERATIONS), st.booleans())
@settings(deadline=None)
def test_a_line_is_a_sorted_list_of_ranks(operations: list[Operation], is_fair: bool) -> None:
    check_line(operations, is_fair=is_fair)


def test_positions_are_right_after_many_returns_to_the_head() -> None:
    waiting = WaitingList()
    for number in range(5000):
        waiting.add(Waiting(number, 0.0, 1.0))
    for _ in range(3000):
        waiting.take_first()
    for number in range(2999, 1999, -1):
        waiting.add(Waiting(number, 0.0, 1.0))
    assert waiting.position(2000) == 1
    assert waiting.position(4999) == 3000
