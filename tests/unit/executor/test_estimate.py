"""When an execution starts: what the interval promises on steady loads, and how wide it may be (P10).

Queues under a steady load are simulated: what a reader sees at some moment, and what came after it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapreplace
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnstile.executor.queries.estimate import (
    SLOTS_MAX,
    PastGrant,
    RunLengths,
    Slots,
    claim_waits,
    run_lengths,
    seconds_to_start,
)

Draw = Callable[[random.Random], float]
SETTLING_SECONDS = 0.005

LOADS: dict[str, Draw] = {
    "always alike": lambda dice: 10.0,
    "spread": lambda dice: dice.uniform(5, 15),
    "memoryless": lambda dice: dice.expovariate(1 / 10),
    "skewed": lambda dice: dice.lognormvariate(1, 1),
    "of two kinds": lambda dice: 1.0 if dice.random() < 0.8 else 30.0,
    "short": lambda dice: dice.uniform(0.05, 0.15),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The estimate at one moment, and the start that came."""

    earliest: float
    latest: float
    came: float

    @property
    def holds(self) -> bool:
        return self.earliest - 0.001 <= self.came <= self.latest + 0.1

    @property
    def width(self) -> float:
        return self.latest - self.earliest


def observe(draw: Draw, *, limit: int, position: int, seed: int) -> Observation:
    """Run a full queue for a while, estimate at some moment, and see when the position starts."""
    dice = random.Random(f"{seed} {limit} {position}")
    grants_seen = max(200, 3 * limit)
    past = grants_seen + 20 * limit
    runs = _runs(dice, draw, limit, past + 100 + position)
    now = dice.uniform(runs[past][0], runs[past + 100][0])
    granted = [run for run in runs if run[0] <= now]
    seen = [
        PastGrant(
            queued_ago=now,
            granted_ago=now - start,
            claimed_after=0.0,
            lasted=end - start if end <= now else None,
        )
        for start, end in granted[-grants_seen:]
    ]
    holders = [None if end <= now else now - start for start, end in granted if end + SETTLING_SECONDS > now]
    ages = dice.sample(holders, min(SLOTS_MAX, len(holders)))
    lengths = run_lengths(seen, limit=limit)
    assert lengths is not None
    slots = Slots(limit=limit, active_count=len(holders), ages=ages)
    earliest, latest = seconds_to_start(slots, lengths, position)
    return Observation(earliest=earliest, latest=latest, came=runs[len(granted) - 1 + position][0] - now)


def _runs(dice: random.Random, draw: Draw, limit: int, count: int) -> list[tuple[float, float]]:
    """Return start and end of each run of a queue that is never empty."""
    free_at, runs = [0.0] * limit, list[tuple[float, float]]()
    for _ in range(count):
        start = free_at[0]
        end = start + draw(dice)
        runs.append((start, end))
        heapreplace(free_at, end + SETTLING_SECONDS)
    return runs


LIMITS, POSITIONS, SEEDS = (1, 4, 16, 100), (1, 3, 20, 150), 4
SECONDS = st.floats(min_value=0, max_value=1e7)


def grant(
    *, granted_ago: float = 100.0, lasted: float | None = None, queued_ago: float = 1000.0,
    claimed_after: float | None = None,
) -> PastGrant:  # fmt: skip
    return PastGrant(
        queued_ago=queued_ago, granted_ago=granted_ago, lasted=lasted, claimed_after=claimed_after
    )


def learned(*seen: PastGrant, limit: int | None = None) -> RunLengths:
    found = run_lengths(seen, limit=limit)
    assert found is not None
    return found


def of_runs(*lasted: float | None, limit: int | None = None) -> RunLengths:
    return learned(*(grant(lasted=seconds) for seconds in lasted), limit=limit)


@pytest.mark.parametrize("load", LOADS)
def test_on_a_steady_load_at_least_eight_of_ten_starts_are_in_the_interval(load: str) -> None:
    seen_at = {
        position: [
            observe(LOADS[load], limit=limit, position=position, seed=seed)
            for limit in LIMITS
            for seed in range(SEEDS)
        ]
        for position in POSITIONS
    }
    for position, some in seen_at.items():
        assert sum(each.holds for each in some) >= 0.75 * len(some), f"position {position}"
    every = [each for some in seen_at.values() for each in some]
    assert sum(each.holds for each in every) >= 0.85 * len(every)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("limit", [1, 16])
def test_on_a_steady_load_the_interval_is_not_wider_than_the_wait(load: str, limit: int) -> None:
    near = [observe(LOADS[load], limit=limit, position=40, seed=seed) for seed in range(7)]
    assert median(each.width / each.came for each in near) < 1.5
    far = [observe(LOADS[load], limit=limit, position=400, seed=seed) for seed in range(7)]
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
def test_a_later_position_never_starts_earlier(
    *, ended: list[float], unended: int, ages: list[float | None], limit: int, position: int, further: int
) -> None:
    lengths = of_runs(*ended, *[None] * unended, limit=limit)
    slots = Slots(limit=limit, active_count=max(limit, len(ages)), ages=ages)
    earliest, latest = seconds_to_start(slots, lengths, position)
    assert 0 <= earliest <= latest < float("inf")
    earliest_behind, latest_behind = seconds_to_start(slots, lengths, position + further)
    assert earliest_behind >= earliest
    assert latest_behind >= latest


def test_a_changed_limit_changes_the_pace_at_once() -> None:
    lengths = of_runs(*[9.0, 10.0, 11.0] * 40)
    spans = {
        limit: seconds_to_start(Slots(limit=limit, active_count=limit, ages=[5.0] * limit), lengths, 200)
        for limit in (2, 4)
    }
    assert spans[2][0] > 1.7 * spans[4][0]
    assert spans[2][1] > 1.7 * spans[4][1]


def test_slots_above_a_lowered_limit_are_not_granted_again() -> None:
    lengths = of_runs(*[10.0] * 100)
    # Two of four must end before one may start: the third end frees its slot, at 8 to 9 s from now.
    slots = Slots(limit=2, active_count=4, ages=[4.0, 3.0, 2.0, 1.0])
    earliest, latest = seconds_to_start(slots, lengths, 1)
    assert 5 < earliest <= 8 <= latest < 11


def test_without_a_finished_run_there_is_no_basis() -> None:
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


def test_running_executions_count_as_long() -> None:
    """In the middle of a load most of the long runs have not ended: they must not be forgotten."""
    dice = random.Random(7)
    seen = []
    for number in range(400):
        granted_ago, lasted = 0.25 * number, 1.0 if dice.random() < 0.5 else 60.0
        seen.append(grant(granted_ago=granted_ago, lasted=lasted if lasted <= granted_ago else None))
    ended = [each.lasted for each in seen if each.lasted is not None]
    assert sum(ended) / len(ended) < 25
    assert learned(*seen).mean == pytest.approx(30.5, rel=0.1)


def test_in_a_full_queue_the_dispatch_counts_with_the_run() -> None:
    # A slot is granted every 3 s, of which 1 s is the run's.
    seen = [grant(granted_ago=3.0 * n, lasted=1.0, queued_ago=500.0) for n in range(1, 40)]
    assert learned(*seen, limit=1).mean == pytest.approx(1.0 + 1.0), "at most the bound"
    seen = [grant(granted_ago=1.2 * n, lasted=1.0, queued_ago=500.0) for n in range(1, 40)]
    assert learned(*seen, limit=1).mean == pytest.approx(1.2)
    assert learned(*seen, limit=2).mean == pytest.approx(1.0 + 1.0)


def test_an_unsteady_pace_is_less_certain() -> None:
    def paced(gap_seconds: list[float]) -> RunLengths:
        ago, seen = sum(gap_seconds), []
        for gap in gap_seconds:
            seen.append(grant(granted_ago=ago, lasted=0.9, queued_ago=500.0))
            ago -= gap
        return learned(*seen, limit=1)

    assert paced([1.0] * 80).wander < 0.01
    assert paced(([1.0] * 10 + [2.0] * 10) * 4).wander > 0.2


def test_waiting_for_arrivals_does_not_count_as_dispatch() -> None:
    seen = [grant(granted_ago=60.0 * n, lasted=1.0, queued_ago=60.0 * n) for n in range(1, 40)]
    assert learned(*seen, limit=1).mean == pytest.approx(1.0)
    # Four that arrive together start together: no slot was handed over between them.
    seen = [grant(granted_ago=50.0, lasted=10.0, queued_ago=50.0) for _ in range(4)]
    assert learned(*seen, limit=4).mean == pytest.approx(10.0)
