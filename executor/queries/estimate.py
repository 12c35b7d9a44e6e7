"""Estimates when an execution that waits will start: an interval, or nothing where there is no basis (P10).

In: why it waits, its position, and the latest grants of its queue and action. Out: an interval that contains
the start in at least eight of ten cases while the load stays the same. Pure. A start is the claim by a
worker, not the grant. What is paused, has no worker or a limit of 0, or waits while a server is unreachable
has no estimate; nor has an action of which no run has ended, except for what only waits for a rate.

Three steps. 1. The distribution of run lengths, also from runs that have not ended (Kaplan and Meier, 1958),
so that a sample full of unfinished long runs does not look like short ones. 2. A simulation of the full
queue: a fixed set of samples in place of random ones, so that the result is reproducible and monotonic in the
position. Each simulation scales all lengths by one factor, which stands for the error of the sampled rate:
few or irregular runs make the interval wide. 3. The wait from the grant to the claim.

An execution that waits only for a worker is estimated among all of its pool (`pool_grants`), from the worker
slots and the runs of the pool's actions.

An execution of an action with gates after its queue is estimated where it waits now, from what passed there
(`gate_grants`): its units are held from the passage to the end, and its claim comes after the waits at later
gates. Units become slots of their mean size. The starts of a rate follow from the recorded ones.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from heapq import heapify, heappop, heapreplace
from itertools import accumulate, pairwise
from math import ceil, exp, floor, fsum, sqrt
from random import Random
from statistics import NormalDist, fmean, median
from typing import Final

from turnstile.common.domain.states import Status
from turnstile.common.schemas import EstimatedStart
from turnstile.executor.queries.waiting_reason import Facts, GateFacts

SLOTS_MAX: Final = 64
"""Most slots that are simulated; of a wider queue a share is, with the same share of its executions."""
_OWN_GRANTS_MIN: Final = 8
"""With fewer finished runs of its own, a queue takes the runs of the action's other keys too."""
_LOW: Final = 0.05
_HIGH: Final = 0.95
_SLACK_SECONDS: Final = 0.1
"""Allowance for messages and commits."""
_TICK_SECONDS: Final = 1.0
"""What is due, or was left beside a free slot, may wait for the next tick of the watchdog."""
_AHEAD_MAX_SECONDS: Final = 10 * 366 * 86400.0

_OVERHEAD_MAX_SECONDS: Final = 1.0
"""A slot is settled and granted again in less; a longer gap was a pause or a change of the limit."""
_OUTLAST: Final = 2.0
"""A run that is longer than all finished ones is assumed to be half done (Lindy's law)."""
_LONGEST_TAIL: Final = 0.95
"""Bounds the rest of a run that is older than the sample: twenty times its age."""
_STRETCH_MIN: Final = 8
_STRETCHES_MIN: Final = 5
_MAD_TO_DEVIATION: Final = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""
_CHANCE_VARIANCE: Final = 2.0
"""Stretches of a steady load vary by so much more than expected, by chance."""

_SIMULATIONS: Final = 64
_STARTS_MAX: Final = 64
"""Starts that are simulated one by one; those behind them follow the mean."""
_OUTLIERS: Final = 2
"""Simulations at either end that the interval leaves out."""
_PRIOR_VARIANCE: Final = 0.5
_DRIFT: Final = 0.12
"""Least relative error of any rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastGrant:
    """One recent grant; `_ago` counts seconds back from the snapshot."""

    queued_ago: float
    granted_ago: float
    claimed_after: float | None
    """Seconds from the grant to the claim; None: not claimed."""
    lasted: float | None
    """Seconds from the grant to the end; None: it has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentGrants:
    """The recent grants and the present slot holders of a queue."""

    read_at: datetime
    own: Sequence[PastGrant]
    """Latest grants of the queue itself."""
    others: Sequence[PastGrant]
    """Latest grants of the action's other keys."""
    ages: Sequence[float | None]
    """Seconds since the grants of some slot holders; None: it has ended and is not settled."""
    ahead: int | None
    """Of a delayed execution: how many queued ones have smaller ids; else None."""
    gate: "AheadAtGate | None" = None
    """Of an execution that waits at a gate after its queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadAtGate:
    """What is before an execution at a gate after its queue."""

    holders: int
    """Executions that hold units."""
    units_ahead: float | None
    """Units that it and those before it need; None at a rate."""
    due: tuple[float, float] | None
    """Seconds until its start is free, of a rate: alone, and in turns with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """The slots of a queue."""

    limit: int
    active_count: int
    ages: Sequence[float | None]
    """Seconds since the grants of some holders, at most `SLOTS_MAX`; None: ended and not settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLengths:
    """A distribution of seconds, as weighted points."""

    points: tuple[float, ...]
    """Ascending."""
    cumulative: tuple[float, ...]
    """The weight of each point and those before it; the last is 1."""
    ended: int
    """Number of finished runs in the sample."""
    mean: float
    deviation: float
    wander: float = 0.0
    """Relative variation of the pace beyond what the run lengths explain."""

    def length(self, chance: float) -> float:
        """Return the quantile: a share `chance` (0 to 1) of the runs is not longer."""
        return self.points[min(bisect_left(self.cumulative, chance), len(self.points) - 1)]

    def rest(self, age: float, chance: float) -> float:
        """Return the same quantile of the remaining seconds of a run of this age."""
        index = bisect_right(self.points, age)
        if index == len(self.points):
            chance = min(chance, _LONGEST_TAIL)
            return age * chance / (1 - chance)
        before = self.cumulative[index - 1] if index else 0.0
        return max(self.length(before + chance * (1 - before)), self.points[index]) - age


def may_be_estimated(facts: Facts) -> bool:
    """Return whether a start can be expected, so that recent grants are worth a query."""
    waits = facts.status in (Status.DELAYED, Status.QUEUED, Status.SCHEDULED)
    if facts.status is not Status.SCHEDULED and facts.pool_capacity is not None:
        # The turns of other actions are not in the grants of the queue.
        waits = waits and is_measured_in_pool(facts)
    may_start = facts.served and facts.trouble is None and not facts.paused and facts.max_concurrent != 0
    return waits and may_start and (facts.gate is None or facts.gate.closed is None)


def is_measured_in_pool(facts: Facts) -> bool:
    """Return whether it waits only for a worker, at a known position among those of its pool."""
    return facts.pool_position is not None and not facts.pool_paused


def is_measured_at_gates(facts: Facts) -> bool:
    """Return whether recent grants are a gate's, or those of a queue whose executions have gates after it."""
    return facts.has_gates and facts.status in (Status.DELAYED, Status.QUEUED)


def estimated_start(facts: Facts, recent: RecentGrants) -> EstimatedStart | None:
    """Return the interval of the start; None where there is no basis."""
    waits = _waits(recent)
    if waits is None or not may_be_estimated(facts):
        return None
    match facts.status:
        case Status.SCHEDULED:
            age = 0.0
            if facts.scheduled_at is not None:
                age = max((recent.read_at - facts.scheduled_at).total_seconds(), 0.0)
            return _interval(recent, waits.rest(age, _LOW), waits.rest(age, _HIGH) + _SLACK_SECONDS)
        case Status.DELAYED:
            granted = _grant_when_due(facts, recent)
        case _ if facts.pool_position is not None:
            granted = _grant_in_pool(facts, recent, facts.pool_position)
        case _ if facts.gate is not None:
            granted = _grant_at_gate(facts.gate, recent)
        case _:
            granted = _grant_in_queue(facts, recent, facts.position or 1)
    if granted is None:
        return None
    return _interval(
        recent, granted[0] + waits.length(_LOW), granted[1] + waits.length(_HIGH) + _SLACK_SECONDS
    )


def _waits(recent: RecentGrants) -> RunLengths | None:
    if recent.gate is None:
        return claim_waits([*recent.own, *recent.others])
    # Other actions may have other gates after this one.
    waits = claim_waits(recent.own) or claim_waits(recent.others)
    if waits is None and recent.gate.due is not None:
        return _distribution([0.0, _TICK_SECONDS], [0.5, 0.5], ended=0)
    return waits


def _grant_in_queue(facts: Facts, recent: RecentGrants, position: int) -> tuple[float, float] | None:
    limit = facts.max_concurrent
    if limit is None or position <= limit - facts.active_count:
        return 0.0, _TICK_SECONDS
    if sum(grant.lasted is not None for grant in recent.own) >= _OWN_GRANTS_MIN:
        lengths = run_lengths(recent.own, limit=limit)
    else:
        lengths = run_lengths([*recent.own, *recent.others], limit=None)
    if lengths is None:
        return None
    return seconds_to_start(
        Slots(limit=limit, active_count=facts.active_count, ages=recent.ages), lengths, position
    )


def _grant_in_pool(facts: Facts, recent: RecentGrants, position: int) -> tuple[float, float] | None:
    lengths = run_lengths([*recent.own, *recent.others], limit=None)
    if lengths is None or not facts.pool_slots:
        return None
    slots = Slots(limit=facts.pool_slots, active_count=facts.pool_held, ages=recent.ages)
    return seconds_to_start(slots, lengths, position)


def _grant_at_gate(gate: GateFacts, recent: RecentGrants) -> tuple[float, float] | None:
    at = recent.gate
    if at is None or gate.position is None:
        return None
    if gate.kind == "pool":
        return at.due
    if gate.capacity is None or at.units_ahead is None or at.units_ahead <= gate.capacity - gate.held:
        return 0.0, _TICK_SECONDS
    lengths = run_lengths([*recent.own, *recent.others], limit=None)
    if lengths is None:
        return None
    units = (gate.held + at.units_ahead) / (at.holders + gate.position)
    slots = Slots(
        limit=max(1, floor(gate.capacity / units)),
        active_count=min(ceil(gate.held / units), at.holders),
        ages=recent.ages,
    )
    return seconds_to_start(slots, lengths, max(1, ceil(at.units_ahead / units)))


def _grant_when_due(facts: Facts, recent: RecentGrants) -> tuple[float, float] | None:
    # By its id it will be behind those of the present queue that have not started by then, and before the
    # rest.
    if facts.run_at is None:
        return None
    from_now = _grant_in_queue(facts, recent, (recent.ahead or 0) + 1)
    at_the_head = _grant_in_queue(facts, recent, 1)
    if from_now is None or at_the_head is None:
        return None
    due = max((facts.run_at - recent.read_at).total_seconds(), 0.0)
    return max(from_now[0], due), max(from_now[1], due + at_the_head[1] + _TICK_SECONDS)


def _interval(recent: RecentGrants, earliest: float, latest: float) -> EstimatedStart:
    return EstimatedStart(
        earliest=recent.read_at + timedelta(seconds=min(earliest, _AHEAD_MAX_SECONDS)),
        latest=recent.read_at + timedelta(seconds=min(max(earliest, latest), _AHEAD_MAX_SECONDS)),
    )


def run_lengths(grants: Sequence[PastGrant], *, limit: int | None) -> RunLengths | None:
    """Return how long one run takes a slot, dispatch included; None where none has ended.

    `limit` is that of the queue of `grants`; None: they are of several queues, or it has none.
    """
    seen = sorted(
        (grant.granted_ago if grant.lasted is None else grant.lasted, grant.lasted is None)
        for grant in grants
    )
    points, weights, left = list[float](), list[float](), 1.0
    for index, (seconds, is_running) in enumerate(seen):
        if not is_running:
            weight = left / (len(seen) - index)
            points.append(seconds)
            weights.append(weight)
            left -= weight
    ended = len(points)
    if not ended:
        return None
    overhead, stretches = 0.0, list[float]()
    size = limit * ceil(_STRETCH_MIN / limit) if limit else _STRETCH_MIN
    if seen[-1][1]:
        points.append(seen[-1][0] * _OUTLAST)
        weights.append(left)
    elif limit:
        # The longest run has ended, so the mean is known.
        stretches = _stretches(grants, size)
        if stretches:
            excess = limit * median(stretches) / size - fmean(points, weights)
            overhead = min(max(excess, 0.0), _OVERHEAD_MAX_SECONDS)
    lengths = _distribution([point + overhead for point in points], weights, ended=ended)
    return replace(lengths, wander=_wander(stretches, size, lengths))


def claim_waits(grants: Iterable[PastGrant]) -> RunLengths | None:
    """Return how long granted attempts wait for a worker to claim them; None where none was claimed."""
    waits = sorted(grant.claimed_after for grant in grants if grant.claimed_after is not None)
    return _distribution(waits, [1 / len(waits)] * len(waits), ended=len(waits)) if waits else None


def _distribution(points: Sequence[float], weights: Sequence[float], *, ended: int) -> RunLengths:
    cumulative = list(accumulate(weights))
    mean = fmean(points, weights)
    return RunLengths(
        points=tuple(points),
        cumulative=tuple(each / cumulative[-1] for each in cumulative),
        ended=ended,
        mean=mean,
        deviation=sqrt(fmean([(point - mean) ** 2 for point in points], weights)),
    )


def _wander(stretches: Sequence[float], size: int, lengths: RunLengths) -> float:
    """Compare the pace of one stretch with that of the next: on a steady load only the runs differ."""
    middle = median(stretches) if len(stretches) >= _STRETCHES_MIN else 0.0
    if not middle or not lengths.mean:
        return 0.0
    wandered = _MAD_TO_DEVIATION * median(abs(each - middle) for each in stretches) / middle
    explained = _CHANCE_VARIANCE * (lengths.deviation / lengths.mean) ** 2 / size
    return sqrt(max(wandered**2 - explained, 0.0))


def _stretches(grants: Sequence[PastGrant], size: int) -> list[float]:
    """Return the seconds of each `size` successive grants that had to wait for a slot to be freed."""
    ordered = sorted(grants, key=lambda grant: -grant.granted_ago)
    ends = sorted(grant.lasted - grant.granted_ago for grant in grants if grant.lasted is not None)
    gaps = [
        before.granted_ago - grant.granted_ago
        for before, grant in pairwise(ordered)
        if bisect_right(ends, -grant.granted_ago) > bisect_left(ends, -grant.queued_ago)
    ]
    return [fsum(gaps[at : at + size]) for at in range(0, len(gaps) - size + 1, size)]


def seconds_to_start(slots: Slots, lengths: RunLengths, position: int) -> tuple[float, float]:
    """Return the interval of the grant of the execution at this position, in seconds from now."""
    share = min(1.0, SLOTS_MAX / max(slots.limit, slots.active_count))
    simulation = _simulation(slots, lengths, share)
    starts = position * share
    late = simulation.seconds_to(starts, ceil)
    if starts < 1:
        return 0.0, late[-1 - _OUTLIERS]
    early = late if starts == position <= _STARTS_MAX else simulation.seconds_to(starts, floor)
    return early[_OUTLIERS], late[-1 - _OUTLIERS]


def _simulation(slots: Slots, lengths: RunLengths, share: float) -> "_Simulation":
    slot_count = max(1, round(slots.limit * share))
    # After the limit was lowered, the first slots that are freed are not granted again.
    excess = max(0, round((slots.active_count - slots.limit) * share))
    variation = lengths.deviation / lengths.mean if lengths.mean else 0.0
    return _Simulation(
        ages=tuple(slots.ages)[: slot_count + excess],
        slot_count=slot_count,
        excess=excess,
        lengths=lengths,
        uncertainty=sqrt((variation**2 + _PRIOR_VARIANCE) / lengths.ended + _DRIFT**2 + lengths.wander**2),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Simulation:
    ages: Sequence[float | None]
    slot_count: int
    excess: int
    lengths: RunLengths
    uncertainty: float

    def seconds_to(self, position: float, rounded: Callable[[float], int]) -> list[float]:
        """Return, ascending, the time of the start at this position in each simulation.

        Slots that were granted together end together: behind what is simulated, whole rounds are counted.
        """
        starts = rounded(position)
        simulated = min(starts, _STARTS_MAX)
        behind = rounded((starts - simulated) / self.slot_count) * self.slot_count
        return sorted(self._seconds_to(simulated, behind, samples) for samples in _all_samples())

    def _seconds_to(self, simulated: int, behind: int, samples: Sequence[float]) -> float:
        of_rate, of_rest, *others = samples
        stretch = exp(self.uncertainty * of_rate)
        sample = iter(others)
        rest, length = self.lengths.rest, self.lengths.length
        freed_at = [0.0 if age is None else stretch * rest(age, next(sample)) for age in self.ages]
        # A slot without a holder is free at once.
        freed_at.extend([0.0] * (self.slot_count + self.excess - len(freed_at)))
        heapify(freed_at)
        for _ in range(self.excess):
            heappop(freed_at)
        for _ in range(simulated - 1):
            heapreplace(freed_at, freed_at[0] + stretch * length(next(sample)))
        behind_seconds = max(
            0.0, self.lengths.mean * behind + of_rest * self.lengths.deviation * sqrt(behind)
        )
        return freed_at[0] + stretch / self.slot_count * behind_seconds


@cache
def _all_samples() -> tuple[tuple[float, ...], ...]:
    """Return the samples of each simulation, evenly spread: two normal deviates, then shares."""
    shares = [(number + 0.5) / _SIMULATIONS for number in range(_SIMULATIONS)]
    deviates = [NormalDist().inv_cdf(share) for share in shares]
    shuffler = Random(1)
    columns = [shuffler.sample(deviates, _SIMULATIONS) for _ in range(2)]
    columns += [shuffler.sample(shares, _SIMULATIONS) for _ in range(3 * SLOTS_MAX)]
    return tuple(zip(*columns, strict=True))
