"""When a failure is retried."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstile.executor.queue_manager.retries import RetryPolicy, retry_delay_seconds

STEADY = RetryPolicy(max_attempts=100, delay_seconds=2.0, factor=3.0, max_delay_seconds=40.0, jitter=0.0)


def test_max_attempts_counts_the_first_attempt_too() -> None:
    assert retry_delay_seconds(RetryPolicy(), failures=1, spread=0.0) is None
    policy = RetryPolicy(max_attempts=3)
    waits = [retry_delay_seconds(policy, failures=failures, spread=0.0) for failures in (1, 2, 3, 4)]
    assert [wait is None for wait in waits] == [False, False, True, True]


def test_waits_grow_by_the_factor_up_to_the_longest() -> None:
    waits = [retry_delay_seconds(STEADY, failures=failures, spread=1.0) for failures in (1, 2, 3, 4, 5)]
    assert waits == [2.0, 6.0, 18.0, 40.0, 40.0]


@pytest.mark.parametrize(("spread", "seconds"), [(-1.0, 1.5), (0.0, 2.0), (1.0, 2.5), (0.5, 2.25)])
def test_jitter_spreads_a_wait_to_either_side(spread: float, seconds: float) -> None:
    policy = RetryPolicy(max_attempts=2, delay_seconds=2.0, jitter=0.25)
    assert retry_delay_seconds(policy, failures=1, spread=spread) == pytest.approx(seconds)


def test_at_the_longest_wait_retries_are_still_spread_and_none_is_longer() -> None:
    policy = RetryPolicy(max_attempts=9, delay_seconds=10.0, max_delay_seconds=10.0, jitter=0.5)
    waits = [retry_delay_seconds(policy, failures=1, spread=spread / 10) for spread in range(-10, 11)]
    assert (waits[0], waits[-1]) == (5.0, 10.0)
    assert len(set(waits)) == 21


@given(
    st.builds(
        RetryPolicy,
        max_attempts=st.integers(1, 1000),
        delay_seconds=st.floats(0, 1e8),
        factor=st.floats(1, 100),
        max_delay_seconds=st.floats(0, 1e8),
        jitter=st.floats(0, 1),
    ),
    st.integers(1, 1000),
    st.floats(-1, 1),
)
def test_every_wait_is_finite_and_not_negative(policy: RetryPolicy, failures: int, spread: float) -> None:
    wait = retry_delay_seconds(policy, failures=failures, spread=spread)
    assert (wait is None) == (failures >= policy.max_attempts)
    if wait is not None:
        assert math.isfinite(wait)
        assert 0 <= wait <= policy.max_delay_seconds
