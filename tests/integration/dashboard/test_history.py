"""The ring of a queue's last minutes, against a plain list of everything that was noted."""

from hypothesis import given
from hypothesis import strategies as st

from turnstile.executor.dashboard.history import (
    BUCKET_SECONDS,
    BUCKETS,
    RATE_SECONDS,
    History,
    Totals,
    bucket_of,
)

BEGAN = 1_000_000.0
"""The beginning of a bucket."""


def totals(enqueued: int, completed: int = 0, depth: int = 0) -> Totals:
    return Totals(enqueued=enqueued, completed=completed, depth=depth)


def steady(seconds: int, *, per_second: int) -> History:
    history = History(BEGAN, totals(500))
    for second in range(1, seconds + 1):
        history.note(BEGAN + second, totals(500 + per_second * second))
    return history


@given(seconds=st.integers(1, 600), per_second=st.integers(1, 50))
def test_a_steady_rate_is_told_as_it_is_however_long_it_was_seen(seconds: int, per_second: int) -> None:
    rates = steady(seconds, per_second=per_second).rates(BEGAN + seconds)
    assert rates is not None
    # A bucket's point stands up to a second before its end.
    assert abs(rates.enqueued - per_second) <= per_second / RATE_SECONDS * 1.1


def test_nothing_is_said_before_a_second_was_seen() -> None:
    assert History(BEGAN, totals(7)).rates(BEGAN + 0.9) is None


def test_a_queue_that_stopped_falls_to_zero_within_the_span_of_the_rate() -> None:
    history = steady(120, per_second=5)
    at_rest = history.rates(BEGAN + 120 + RATE_SECONDS + BUCKET_SECONDS)
    assert at_rest is not None
    assert at_rest.enqueued == 0


def test_a_total_that_a_repair_lowered_is_no_negative_rate() -> None:
    history = History(BEGAN, totals(10, completed=10))
    history.note(BEGAN + 3, totals(10, completed=4))
    rates = history.rates(BEGAN + 10)
    assert rates is not None
    assert rates.completed == 0


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 9)), max_size=80))
def test_the_depths_are_the_last_ones_in_each_bucket(moves: list[tuple[int, int]]) -> None:
    history, noted, at = History(BEGAN, totals(0, depth=3)), [(BEGAN, 3)], BEGAN
    for seconds, depth in moves:
        at += seconds
        history.note(at, totals(0, depth=depth))
        noted.append((at, depth))
    last = bucket_of(at)
    expected = [
        next((depth for when, depth in reversed(noted) if bucket_of(when) <= bucket), None)
        for bucket in range(last - BUCKETS + 1, last + 1)
    ]
    assert history.depths(at) == expected


def test_a_queue_that_never_moves_costs_one_point() -> None:
    history = History(BEGAN, totals(1))
    for second in range(1000):
        history.note(BEGAN + second, totals(1))
    assert len(history._points) == 1


def test_a_ring_never_grows_beyond_its_span() -> None:
    assert len(steady(3600, per_second=1)._points) == BUCKETS + 1
