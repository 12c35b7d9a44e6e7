"""Histograms that are added as numbers, and their percentiles."""

from random import Random

import pytest

from turnstile.executor.histogram import histogram_of, percentile


def test_without_durations_there_is_no_percentile() -> None:
    assert percentile(0, 0.5) is None


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_percentile_of_added_histograms_is_within_ten_percent(share: float) -> None:
    random = Random(3)
    seconds = sorted(random.lognormvariate(0, 3) for _ in range(20_000))
    histogram = sum(map(histogram_of, seconds[::2])) + sum(map(histogram_of, seconds[1::2]))
    assert percentile(histogram, share) == pytest.approx(seconds[int(len(seconds) * share)], rel=0.1)


@pytest.mark.parametrize("seconds", [0.002, 0.03, 1.0, 60.0, 86_400.0, 30 * 86_400.0])
def test_equal_durations_have_a_percentile_near_each_of_them(seconds: float) -> None:
    for share in (0.5, 0.95):
        assert percentile(1000 * histogram_of(seconds), share) == pytest.approx(seconds, rel=0.19)


def test_durations_beyond_the_buckets_are_counted_in_the_first_and_the_last_one() -> None:
    # The clock of a worker may be behind.
    for seconds in (-1.0, 0.0, 0.0005):
        assert (percentile(histogram_of(seconds), 1.0) or 0) <= 0.001
    assert (percentile(histogram_of(1e12), 0.5) or 0) > 30 * 86_400
