"""Lines under a steady load, simulated: what an observer sees at some moment, and what came after it."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapreplace

from turnstile.executor.reading.estimate_line import SLOTS_MAX, Slots, seconds_to_start
from turnstile.executor.reading.estimate_runs import Grant, run_lengths

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
class Look:
    """What was expected at one moment, and what came."""

    earliest: float
    latest: float
    came: float

    @property
    def holds(self) -> bool:
        return self.earliest - 0.001 <= self.came <= self.latest + 0.1

    @property
    def width(self) -> float:
        return self.latest - self.earliest


def look(draw: Draw, *, limit: int, position: int, seed: int) -> Look:
    """Let a full queue run for a while, look at it at some moment, and see when the position starts."""
    dice = random.Random(f"{seed} {limit} {position}")
    grants_seen = max(200, 3 * limit)
    past = grants_seen + 20 * limit
    runs = _runs(dice, draw, limit, past + 100 + position)
    now = dice.uniform(runs[past][0], runs[past + 100][0])
    granted = [run for run in runs if run[0] <= now]
    seen = [
        Grant(
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
    return Look(earliest=earliest, latest=latest, came=runs[len(granted) - 1 + position][0] - now)


def _runs(dice: random.Random, draw: Draw, limit: int, count: int) -> list[tuple[float, float]]:
    """Return start and end of each run of a line in which somebody always waits."""
    free_at, runs = [0.0] * limit, list[tuple[float, float]]()
    for _ in range(count):
        start = free_at[0]
        end = start + draw(dice)
        runs.append((start, end))
        heapreplace(free_at, end + SETTLING_SECONDS)
    return runs
