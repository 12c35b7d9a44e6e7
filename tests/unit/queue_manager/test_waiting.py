"""A waiting list does what its naive reference does."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from tests.proof.queue_manager.references import LIST_OPERATIONS, Operation, check_waiting_list
from turnstile.executor.queue_manager.waiting import Waiting, WaitingList


@given(st.lists(st.tuples(st.sampled_from(LIST_OPERATIONS), st.integers(0, 4999)), max_size=80))
def test_a_waiting_list_is_a_sorted_list(operations: list[Operation]) -> None:
    check_waiting_list(operations)


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


def test_the_first_ids_are_a_copy() -> None:
    waiting = WaitingList()
    for number in range(1, 1300):
        waiting.add(Waiting(number, 0.0, inf))
    for count in (0, 1, 512, 513, 1299):
        assert list(waiting.first_ids(count)) == list(range(1, count + 1))
    found = waiting.first_ids(5000)
    waiting.take_first()
    assert list(found) == list(range(1, 1300))
