"""Whatever the order of settling, `multiple` never reaches a delivery that was not meant."""

import hypothesis.strategies as st
from hypothesis import given

from turnstile.common.broker.outstanding import Outstanding


@given(st.data())
def test_any_order_of_settling_settles_exactly_what_was_meant(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 30))
    groups = data.draw(st.lists(st.sets(st.integers(1, count)), max_size=8))
    outstanding, at_broker = Outstanding(), set(range(1, count + 1))
    for tag in range(1, count + 1):
        outstanding.arrive(tag)
    for group in groups:
        meant = group & at_broker
        upto, singles = outstanding.settle(group)
        covered = {tag for tag in at_broker if tag <= upto} | set(singles)
        assert covered == meant
        assert not upto or upto in at_broker, "the broker refuses a tag that is not outstanding"
        at_broker -= covered
        assert len(outstanding) == len(at_broker)


def test_a_whole_batch_in_order_is_one_tag() -> None:
    outstanding = Outstanding()
    for tag in range(1, 101):
        outstanding.arrive(tag)
    assert outstanding.settle(range(1, 101)) == (100, [])


def test_one_that_stays_open_does_not_keep_the_tags_of_all_later_ones() -> None:
    outstanding = Outstanding()
    outstanding.arrive(1)
    for tag in range(2, 50_000):
        outstanding.arrive(tag)
        assert outstanding.settle([tag]) == (0, [tag])
    assert len(outstanding._order) < 2_000
    assert outstanding.settle([1]) == (1, [])
