"""Counts over plain numbers and intervals."""

import pytest

from turnstile.stress.check.counts import out_of_order, peak_concurrency, percentile


@pytest.mark.parametrize(
    ("intervals", "peak"),
    [
        ([], 0),
        ([(1, 2), (2, 3)], 1),
        ([(1, 3), (2, 3), (2, 4)], 3),
        ([(1, None), (5, None), (2, 4)], 2),
        ([(1, 1), (3, 2)], 0),
    ],
)
def test_peak_concurrency_counts_half_open_intervals(
    intervals: list[tuple[int, int | None]], peak: int
) -> None:
    assert peak_concurrency(intervals) == peak


def test_a_number_after_a_larger_one_is_out_of_order() -> None:
    assert out_of_order([0, 3, 1, 2, 4]) == [(3, 1), (3, 2)]


def test_percentiles_are_values_of_the_input() -> None:
    assert percentile([], 0.5) is None
    assert percentile([7.0], 0.99) == 7.0
    hundred = [float(n) for n in range(1, 101)]
    assert (percentile(hundred, 0.5), percentile(hundred, 0.99)) == (50.0, 99.0)
