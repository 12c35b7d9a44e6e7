"""A worker is lost only after the database was healthy for a whole lease."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from turnstile.executor.database_health import DatabaseClock, DatabaseHealth

START = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_SECONDS = 15.0


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def checks(*seconds: float) -> DatabaseHealth:
    health = DatabaseHealth(LEASE_SECONDS)
    for second in seconds:
        health.seen(at(second))
    return health


def test_a_whole_lease_of_readings_is_healthy() -> None:
    assert checks(*range(15)).healthy_for_a_lease() is None
    assert checks(*range(16)).healthy_for_a_lease() == at(15)


def test_a_late_reading_is_no_gap() -> None:
    every = DatabaseHealth(LEASE_SECONDS).check_seconds
    assert checks(*(n * 2 * every for n in range(100))).healthy_for_a_lease() is not None


def test_an_outage_starts_the_lease_anew() -> None:
    health = checks(*range(20))
    health.lost()
    assert health.healthy_for_a_lease() is None
    for second in range(21, 36):
        health.seen(at(second))
    assert health.healthy_for_a_lease() is None
    health.seen(at(36))
    assert health.healthy_for_a_lease() == at(36)


def test_a_server_that_stood_still_without_any_error_starts_the_lease_anew() -> None:
    health = checks(*range(20), 40)
    assert health.healthy_for_a_lease() is None


def test_a_clock_that_was_set_back_starts_the_lease_anew() -> None:
    assert checks(*range(20), 18).healthy_for_a_lease() is None


@given(st.lists(st.floats(0.01, 30), min_size=1, max_size=60))
def test_there_is_no_long_gap_within_the_last_lease_of_a_healthy_database(gaps: list[float]) -> None:
    health, now, seen = DatabaseHealth(LEASE_SECONDS), 0.0, [0.0]
    health.seen(at(0))
    for gap in gaps:
        now += gap
        seen.append(now)
        health.seen(at(now))
    if health.healthy_for_a_lease() is not None:
        recent = [s for s in seen if s >= now - LEASE_SECONDS]
        assert all(b - a <= LEASE_SECONDS / 3 + 1e-3 for a, b in pairwise(recent))
        assert recent[0] <= now - LEASE_SECONDS + LEASE_SECONDS / 3


# --- a clock that jumps -------------------------------------------------------------------------------


def jumps(*probes: tuple[float, float, float]) -> list[float]:
    """Return the jumps that a clock finds: each probe is (sent, time of the database, answered)."""
    clock = DatabaseClock()
    return [round(clock.seen(sent, at(shown), answered), 3) for sent, shown, answered in probes]


def test_a_clock_that_is_set_back_or_ahead_jumps_once_by_so_much() -> None:
    assert jumps((10, 100, 10), (11, 41, 11), (12, 42, 12)) == [0, -60, 0]
    assert jumps((10, 100, 10), (11, 161, 11), (12, 162, 12)) == [0, 60, 0]


def test_a_jump_within_an_outage_is_seen_after_it() -> None:
    assert jumps((10, 100, 10), (610, 100, 610)) == [0, -600]


@given(st.floats(0, 30), st.floats(0, 30), st.floats(0, 1), st.floats(0, 1))
def test_an_answer_that_is_slow_is_no_jump(first: float, second: float, early: float, late: float) -> None:
    """The database may read its clock at any moment of the request."""
    assert jumps((0, first * early, first), (40, 40 + second * late, 40 + second)) == [0, 0]
