"""When the n-th execution of a full line starts: what the interval promises, and how wide it may be (P10)."""

from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.executor.steady_lines import LOADS, look
from turnstile.executor.reading.estimate_line import Slots, seconds_to_start
from turnstile.executor.reading.estimate_runs import Grant, run_lengths

LIMITS, POSITIONS, LOOKS = (1, 4, 16, 100), (1, 3, 20, 150), 7
SECONDS = st.floats(min_value=0, max_value=1e7)


def grants(*lasted: float | None) -> list[Grant]:
    return [Grant(queued_ago=1000, granted_ago=100, claimed_after=0, lasted=seconds) for seconds in lasted]


@pytest.mark.parametrize("load", LOADS)
def test_on_a_steady_load_the_start_lies_inside_in_at_least_eight_of_ten_cases(load: str) -> None:
    looks = {
        position: [
            look(LOADS[load], limit=limit, position=position, seed=seed)
            for limit in LIMITS
            for seed in range(LOOKS)
        ]
        for position in POSITIONS
    }
    for position, some in looks.items():
        assert sum(each.holds for each in some) >= 0.75 * len(some), f"position {position}"
    every = [each for some in looks.values() for each in some]
    assert sum(each.holds for each in every) >= 0.85 * len(every)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("limit", [1, 16])
def test_on_a_steady_load_the_interval_is_no_wider_than_the_wait_is_long(load: str, limit: int) -> None:
    near = [look(LOADS[load], limit=limit, position=40, seed=seed) for seed in range(7)]
    assert median(each.width / each.came for each in near) < 1.5
    far = [look(LOADS[load], limit=limit, position=400, seed=seed) for seed in range(7)]
    assert median(each.width / each.came for each in far) < 0.75


@settings(max_examples=40, deadline=None)
@given(
    ended=st.lists(SECONDS, min_size=1, max_size=20),
    unended=st.integers(min_value=0, max_value=10),
    ages=st.lists(st.none() | SECONDS, max_size=12),
    limit=st.integers(min_value=1, max_value=300),
    position=st.integers(min_value=1, max_value=10**7),
    further=st.integers(min_value=0, max_value=10**6),
)
def test_whatever_was_seen_who_stands_further_back_starts_no_earlier(
    *, ended: list[float], unended: int, ages: list[float | None], limit: int, position: int, further: int
) -> None:
    lengths = run_lengths(grants(*ended, *[None] * unended), limit=limit)
    assert lengths is not None
    slots = Slots(limit=limit, active_count=max(limit, len(ages)), ages=ages)
    earliest, latest = seconds_to_start(slots, lengths, position)
    assert 0 <= earliest <= latest < float("inf")
    earliest_behind, latest_behind = seconds_to_start(slots, lengths, position + further)
    assert earliest_behind >= earliest
    assert latest_behind >= latest


def test_fewer_runs_make_a_wider_interval() -> None:
    slots = Slots(limit=1, active_count=1, ages=[0.0])
    widths = []
    for count in (1, 3, 10, 100):
        lengths = run_lengths(grants(*[10.0] * count), limit=None)
        assert lengths is not None
        earliest, latest = seconds_to_start(slots, lengths, 5)
        assert earliest < 50 < latest
        widths.append(latest - earliest)
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 3 * widths[-1]


def test_a_changed_limit_changes_the_pace_at_once() -> None:
    lengths = run_lengths(grants(*[9.0, 10.0, 11.0] * 40), limit=None)
    assert lengths is not None
    spans = {
        limit: seconds_to_start(Slots(limit=limit, active_count=limit, ages=[5.0] * limit), lengths, 200)
        for limit in (2, 4)
    }
    assert spans[2][0] > 1.7 * spans[4][0]
    assert spans[2][1] > 1.7 * spans[4][1]


def test_slots_above_a_lowered_limit_are_not_granted_on() -> None:
    lengths = run_lengths(grants(*[10.0] * 100), limit=None)
    assert lengths is not None
    # Two of four must end before one may start: the third end makes way for it, at 8 to 9 s from now.
    slots = Slots(limit=2, active_count=4, ages=[4.0, 3.0, 2.0, 1.0])
    earliest, latest = seconds_to_start(slots, lengths, 1)
    assert 5 < earliest <= 8 <= latest < 11
