"""How long runs take, learned from a few grants of which some have not ended."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstile.executor.reading.estimate_runs import Grant, RunLengths, claim_waits, run_lengths

SECONDS = st.floats(min_value=0, max_value=1e7)


def grant(
    *, granted_ago: float = 100.0, lasted: float | None = None, queued_ago: float = 1000.0,
    claimed_after: float | None = None,
) -> Grant:  # fmt: skip
    return Grant(queued_ago=queued_ago, granted_ago=granted_ago, lasted=lasted, claimed_after=claimed_after)


def learned(*seen: Grant, limit: int | None = None) -> RunLengths:
    found = run_lengths(seen, limit=limit)
    assert found is not None
    return found


def test_while_nothing_has_ended_nothing_is_known() -> None:
    assert run_lengths([], limit=1) is None
    assert run_lengths([grant(), grant()], limit=1) is None
    assert claim_waits([grant()]) is None


@given(
    ended=st.lists(SECONDS, min_size=1, max_size=30),
    running=st.lists(SECONDS, max_size=30),
    chance=st.floats(min_value=0, max_value=1),
    age=SECONDS,
)
def test_a_length_is_never_shorter_than_the_shortest_and_a_rest_never_negative(
    ended: list[float], running: list[float], chance: float, age: float
) -> None:
    lengths = learned(
        *(grant(lasted=seconds) for seconds in ended), *(grant(granted_ago=seconds) for seconds in running)
    )
    assert lengths.length(chance) >= min(ended)
    assert lengths.rest(age, chance) >= 0
    assert lengths.cumulative[-1] == pytest.approx(1)
    assert list(lengths.points) == sorted(lengths.points)


def test_what_still_runs_counts_as_long() -> None:
    """Seen in the middle of a load, most of the long ones have not ended: they must not be forgotten."""
    dice = random.Random(7)
    seen = []
    for number in range(400):
        granted_ago, lasted = 0.25 * number, 1.0 if dice.random() < 0.5 else 60.0
        seen.append(grant(granted_ago=granted_ago, lasted=lasted if lasted <= granted_ago else None))
    ended = [each.lasted for each in seen if each.lasted is not None]
    assert sum(ended) / len(ended) < 25
    assert learned(*seen).mean == pytest.approx(30.5, rel=0.1)


def test_the_rest_of_a_run_is_that_of_those_who_lasted_as_long() -> None:
    lengths = learned(*(grant(lasted=seconds) for seconds in (1.0, 1.0, 10.0, 20.0)))
    assert [lengths.rest(5.0, chance) for chance in (0.25, 0.75)] == [5.0, 15.0]


def test_a_run_older_than_all_seen_is_given_as_long_again() -> None:
    lengths = learned(grant(lasted=1.0))
    assert lengths.rest(30.0, 0.5) == pytest.approx(30.0)


def test_in_a_full_queue_the_hand_over_counts_with_the_run() -> None:
    # A slot goes on every 3 s, of which 1 s is the run's.
    seen = [grant(granted_ago=3.0 * n, lasted=1.0, queued_ago=500.0) for n in range(1, 40)]
    assert learned(*seen, limit=1).mean == pytest.approx(1.0 + 1.0), "no more than the bound"
    seen = [grant(granted_ago=1.2 * n, lasted=1.0, queued_ago=500.0) for n in range(1, 40)]
    assert learned(*seen, limit=1).mean == pytest.approx(1.2)
    assert learned(*seen, limit=2).mean == pytest.approx(1.0 + 1.0)


def test_a_pace_that_wandered_is_less_certain() -> None:
    def paced(gap_seconds: list[float]) -> RunLengths:
        ago, seen = sum(gap_seconds), []
        for gap in gap_seconds:
            seen.append(grant(granted_ago=ago, lasted=0.9, queued_ago=500.0))
            ago -= gap
        return learned(*seen, limit=1)

    assert paced([1.0] * 80).unrest < 0.01
    assert paced(([1.0] * 10 + [2.0] * 10) * 4).unrest > 0.2


def test_waiting_for_arrivals_does_not_count_as_hand_over() -> None:
    seen = [grant(granted_ago=60.0 * n, lasted=1.0, queued_ago=60.0 * n) for n in range(1, 40)]
    assert learned(*seen, limit=1).mean == pytest.approx(1.0)
    # Four that arrive together start together: no slot was handed over between them.
    seen = [grant(granted_ago=50.0, lasted=10.0, queued_ago=50.0) for _ in range(4)]
    assert learned(*seen, limit=4).mean == pytest.approx(10.0)
