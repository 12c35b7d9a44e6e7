"""When an execution that waits will start: an interval that holds in eight of ten cases (P10).

In: why it waits (`explain`), and how long executions of its kind held their slots lately (`Durations`, which
learns from each turn). Slots are freed and taken in several simulated futures, always the same ones. What is
paused, closed or without a worker has no estimate, nor has an action of which nothing has ended, except at
a rate.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from math import ceil, exp, sqrt
from random import Random
from statistics import fmean
from typing import Final, NamedTuple

from turnstile.executor.questions.explain import WaitingOn
from turnstile.executor.queue_manager.decisions import Decisions

SAMPLES: Final = 128
"""Durations that are remembered of an action."""
_FUTURES: Final = 32
"""The interval is from the first to the last start in so many simulated futures."""
_STARTS_MAX: Final = 64
"""Starts that are simulated one by one; those behind them follow the mean."""
_DRIFT: Final = 0.12
"""Least relative error of a rate."""
_PRIOR_VARIANCE: Final = 0.5
_SLACK_SECONDS: Final = 1.0
"""Allowance for messages, turns and the start at the worker."""
_RATIO_MAX: Final = 0.95
"""Bounds the rest of a run that is longer than all samples: nineteen times its age."""


class Interval(NamedTuple):
    """Instants in seconds since 1970."""

    earliest: float
    latest: float
    is_overdue: bool = False
    """Whether what is ahead has run longer than all known runs: its time has passed, and this is a guess."""


class Durations:
    """How long the latest executions of each action held their slots, in seconds. Lost with the process."""

    def __init__(self) -> None:
        self._of: dict[str, deque[float]] = {}

    def learn(self, out: Decisions) -> None:
        """Remember the ends that a turn decided."""
        for each in out.finished:
            if each.worker_id is not None and each.scheduled_at is not None:
                samples = self._of.setdefault(each.queue.action.ref, deque(maxlen=SAMPLES))
                if each.queue.action.pace and each.started_at is not None:
                    # It may have waited in a run, while others had its slot.
                    samples.append(each.completed_at - each.started_at)
                else:
                    samples.append(out.now - each.scheduled_at)

    def forget(self, ref: str) -> None:
        """Forget a deleted action."""
        self._of.pop(ref, None)

    def of(self, ref: str) -> list[float]:
        """Return the known durations of an action, ascending."""
        return sorted(self._of.get(ref, ()))


def estimated_start(on: WaitingOn, ref: str, durations: Durations, now: float) -> Interval | None:
    """Return when an execution of this action will start; None: there is no basis."""
    if on.closed is not None or (on.root_cause is not None and _is_stuck(on.root_cause.on)):
        return None
    match on.reason:
        case "handing_over":
            granted_at = now if on.at is None else on.at
            return Interval(granted_at, granted_at + _SLACK_SECONDS) if durations.of(ref) else None
        case "not_due":
            return None if on.root_cause is None else _when_due(on, on.root_cause.on, ref, durations, now)
        case "rate":
            return _at_rate(on)
        case "limit" | "total" | "resource" | "pool" if on.position is not None:
            return _at_slots(on, on.position, ref, durations, now)
        case _:
            return None


def _is_stuck(cause: WaitingOn) -> bool:
    return cause.closed is not None or cause.reason in ("paused", "no_worker")


def _when_due(on: WaitingOn, then: WaitingOn, ref: str, durations: Durations, now: float) -> Interval | None:
    """By its id it will precede those that arrive later, and perhaps all that wait now."""
    due_at = max(on.at or now, now)
    if then.reason == "handing_over" and durations.of(ref):
        return Interval(due_at, due_at + _SLACK_SECONDS)
    if then.reason != "limit" or then.position is None:
        return None
    last, first = (_at_slots(then, position, ref, durations, now) for position in (then.position, 1))
    if last is None or first is None:
        return None
    return Interval(due_at, max(last.latest, due_at + first.latest - now), last.is_overdue)


def _at_rate(on: WaitingOn) -> Interval | None:
    if on.at is None or on.position is None or not on.capacity:
        return None
    rounds = (on.position - 1) / on.capacity
    return Interval(on.at + int(rounds) * on.per_seconds, on.at + rounds * on.per_seconds + _SLACK_SECONDS)


def _at_slots(on: WaitingOn, position: int, ref: str, durations: Durations, now: float) -> Interval | None:
    """Count holders that run as slots; those that wait at a later gate start first.

    Units are slots of the mean size of the holders. Of many holders the listed ones stand for all, with their
    share of the position.
    """
    running = [each for each in on.holders if each.worker_id is not None]
    idle, held, capacity = len(on.holders) - len(running), on.held, on.capacity or 0
    # Of a queue and a total all holders are of this action.
    known = {each: durations.of(each) for each in {ref, *(each.action_ref for each in running)}}
    lengths = sorted(sample for samples in known.values() for sample in samples)
    if not running or not lengths or not capacity:
        return None
    ahead = position + idle
    if on.reason == "resource":
        ahead = ceil(ahead * on.units * len(on.holders) / held)
        held = capacity = len(on.holders)
    share = min(1.0, len(on.holders) / held)
    slots = max(1, round(min(held * share - idle, capacity * share)))
    rests = [(known[each.action_ref] or lengths, max(now - each.since, 0.0)) for each in running]
    excess = max(0, len(running) - slots)
    seconds = _futures(rests, slots, excess, lengths, max(1, ceil(ahead * share)))
    is_overdue = all(age > samples[-1] for samples, age in rests)
    return Interval(now + min(seconds), now + max(seconds) + _SLACK_SECONDS, is_overdue)


def _futures(
    rests: Sequence[tuple[Sequence[float], float]], slots: int, excess: int, lengths: Sequence[float],
    position: int,
) -> list[float]:  # fmt: skip
    """Return in how many seconds the start at this position comes in each future.

    All durations of a future are scaled by one factor: the error of what few samples say. `excess` slots are
    not taken again when they are freed: the limit was lowered.
    """
    mean = fmean(lengths)
    variance = fmean((length - mean) ** 2 for length in lengths)
    relative = variance / mean**2 if mean else 0.0
    error = sqrt((relative + _PRIOR_VARIANCE) / len(lengths) + _DRIFT**2)
    simulated = min(position, _STARTS_MAX)
    behind, found = position - simulated, []
    for number in range(_FUTURES):
        dice = Random(number)
        stretch, chance = exp(error * dice.gauss(0, 1)), dice.gauss(0, 1)
        free_in = [_rest(samples, age, dice.random()) for samples, age in rests]
        free_in += [0.0] * (slots + excess - len(free_in))
        heapify(free_in)
        for _ in range(excess):
            heappop(free_in)
        for _ in range(simulated - 1):
            heapreplace(free_in, free_in[0] + dice.choice(lengths))
        rest = max(mean * behind + chance * sqrt(variance * behind), 0.0) / slots
        found.append(stretch * (free_in[0] + rest))
    return found


def _rest(samples: Sequence[float], age: float, chance: float) -> float:
    """Return a quantile of what is left of a run of this age; one longer than all others may be half done."""
    index = bisect_right(samples, age)
    if index == len(samples):
        chance = min(chance, _RATIO_MAX)
        return age * chance / (1 - chance)
    return samples[index + int(chance * (len(samples) - index))] - age
