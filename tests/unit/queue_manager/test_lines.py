"""A line does what its naive reference does."""

from hypothesis import given
from hypothesis import strategies as st

from tests.proof.queue_manager.references import LINE_OPERATIONS, Operation, check_line
from turnstile.executor.queue_manager.lines import FairClock


@given(
    st.lists(st.tuples(st.sampled_from(LINE_OPERATIONS), st.integers(0, 4999)), max_size=80), st.booleans()
)
def test_a_line_is_a_sorted_list_of_ranks(operations: list[Operation], is_fair: bool) -> None:
    check_line(operations, is_fair=is_fair)


def test_tags_that_still_count_are_kept() -> None:
    clock = FairClock()
    for number in range(200):
        clock.charge(3, f"flow {number}", 1, 1)
    assert clock.start(3, "flow 0") > 0
