"""The turns of plain actions at the worker slots of their pool: order (P12) and fair shares (P14).

In: a recording. Out: a `PassageCheck`. No record says since when a plain execution waits for nothing but a
worker slot: `pool_waits` derives it, and says which executions it leaves out.

The check is sound: a correct installation never breaks a rule.

- A queue that another session holds loses its turn until the next tick, and the instant of a grant is taken
  before the lock of the pool. So an execution may be passed by as many as start within one tick, and two
  actions may be further apart by what each of them gets within one.
- Nothing is compared over a fault, or over a change of the pool's settings. After a change of weights the
  turn of an action may still be what it was with an earlier weight.
- An execution of which the beginning of its wait is unknown passes others and is a gain of its action, and is
  not itself compared.
- Executions of actions with more gates are not compared: their stored gates end before the pool.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from turnstile.stress.check.definitions import is_fair, recorded_history
from turnstile.stress.check.excuses import disturbed
from turnstile.stress.check.passages import TAG_SCALE, Broken, Guarantee, PassageCheck, Shares
from turnstile.stress.check.pool_waits import Start, starts_of
from turnstile.stress.recording import NEVER, SECOND, Recording
from turnstile.stress.trace import POOL

_GATE: Final = f"pool {POOL}"


class Period(NamedTuple):
    """A time in which the pool had these settings and nothing was disturbed."""

    since: int
    until: int
    fair: bool
    weights: Mapping[str, int]
    least_weights: Mapping[str, int]
    """The smallest one that each action had so far: its turn may be what it was with that one."""


def check_pool(recording: Recording) -> PassageCheck:
    """Replay the turns of plain actions at the pool."""
    checked: Counter[Guarantee] = Counter()
    broken: list[Broken] = []
    if recording.pool is not None:
        tick_ns = round(recording.tick_seconds * SECOND)
        starts = starts_of(recording)
        has_waits = any(start.waits_from != NEVER for start in starts)
        for period in _periods(recording, tick_ns) if has_waits else ():
            own = [
                start
                for start in starts
                if period.since < start.granted_at
                and (start.granted_at < period.until or start.waits_from < period.until)
            ]
            turns = _Turns(period, own, tick_ns, checked)
            broken += turns.order()
            if period.fair:
                broken += turns.shares()
    return PassageCheck(broken=broken, checked=checked)


def _periods(recording: Recording, tick_ns: int) -> Iterator[Period]:
    assert recording.pool is not None
    versions = recorded_history(recording.pool).versions
    ends = [*(at for at, _ in versions[1:]), recording.ended_at]
    least: Mapping[str, int] | None = None
    for (since, definition), until in zip(versions, ends, strict=True):
        weights: Mapping[str, int] = definition.get("weights") or {}
        least = _lower(weights if least is None else least, weights)
        edge = since + tick_ns
        for began_at, ended_at in [*disturbed(recording), (until, until)]:
            if edge < min(began_at, until):
                yield Period(edge, min(began_at, until), is_fair(definition), weights, least)
            edge = max(edge, ended_at + tick_ns)


def _lower(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    """Return the smaller weight of each action; what is not named has the weight 1."""
    return {action: min(one[action], other[action]) for action in one.keys() & other.keys()}


class _Turns:
    """The grants of one period, and what waited meanwhile."""

    def __init__(
        self, period: Period, starts: Sequence[Start], tick_ns: int, checked: "Counter[Guarantee]"
    ) -> None:
        self.period, self.checked = period, checked
        self.grants = [start for start in starts if start.granted_at < period.until]
        self.arrivals = sorted((s.waits_from, s.action, s) for s in starts if s.waits_from != NEVER)
        instants: dict[str, list[int]] = defaultdict(list)
        for grant in self.grants:
            for flow in (grant.action, ""):
                instants[flow].append(grant.granted_at)
        self.most_within_tick = Counter({flow: _most_within(own, tick_ns) for flow, own in instants.items()})
        """The most grants of an action within one tick; of all with the empty name."""

    def order(self) -> Iterator[Broken]:
        """Check each execution that waited: it was passed by no more later ones than start within a tick.

        In the fair order it precedes those of its priority that are later in its action.
        """
        own = {s.execution_id: s for s in (*self.grants, *(start for _, _, start in self.arrivals))}
        ranked = sorted(own.values(), key=lambda each: each.rank, reverse=True)
        # Grants as their negative instants: then most are appended.
        less_urgent: list[int] = []
        for _, together in groupby(ranked, key=lambda each: each.priority):
            later: dict[str, list[int]] = defaultdict(list)
            for start in together:
                flow = start.action if self.period.fair else ""
                if start.waits_from != NEVER:
                    self.checked[Guarantee.ORDER] += 1
                    yield from self._passed(start, later[flow], "later", flow)
                    yield from self._passed(start, less_urgent, "less urgent", "")
                if start.granted_at < self.period.until:
                    insort(later[flow], -start.granted_at)
            less_urgent = sorted([*less_urgent, *(at for instants in later.values() for at in instants)])

    def _passed(self, start: Start, grants: Sequence[int], which: str, flow: str) -> Iterator[Broken]:
        until = min(start.granted_at, self.period.until)
        passed = bisect_left(grants, -start.waits_from) - bisect_right(grants, -until)
        if passed > self.most_within_tick[flow]:
            what = (
                f"{passed} {which} ones started while it waited, in one tick start"
                f" {self.most_within_tick[flow]}"
            )
            yield Broken(Guarantee.ORDER, _GATE, until, what, start.execution_id)

    def shares(self) -> Iterator[Broken]:
        """Check for any two actions with waiting executions of one priority: their gains stay together."""
        for priority in sorted({start.priority for _, _, start in self.arrivals}):
            yield from self._shares_of(priority)

    def _shares_of(self, priority: int) -> Iterator[Broken]:
        costs, highest = self._costs(self.period.weights), self._costs(self.period.least_weights)
        shares = Shares(
            {action: highest[action] + cost * self.most_within_tick[action] for action, cost in costs.items()}
        )
        waiting: Counter[str] = Counter()
        arrivals = [each for each in self.arrivals if each[2].priority == priority]
        grants = [grant for grant in self.grants if grant.priority == priority]
        arrived = 0
        for at, together in groupby(grants, key=lambda grant: grant.granted_at):
            while arrived < len(arrivals) and arrivals[arrived][0] <= at:
                waiting[arrivals[arrived][1]] += 1
                arrived += 1
            gained: Counter[str] = Counter()
            for grant in together:
                waiting[grant.action] -= grant.waits_from != NEVER
                gained[grant.action] += costs[grant.action]
            for action in [action for action, count in waiting.items() if not count]:
                del waiting[action]
                shares.interrupt(action)
            gains = {action: gain for action, gain in sorted(gained.items()) if action in waiting}
            for what in shares.gain(gains, waiting):
                yield Broken(Guarantee.FAIRNESS, _GATE, at, what)
        self.checked[Guarantee.FAIRNESS] += shares.compared

    def _costs(self, weights: Mapping[str, int]) -> dict[str, int]:
        actions = {grant.action for grant in self.grants} | {action for _, action, _ in self.arrivals}
        return {action: TAG_SCALE // weights.get(action, 1) for action in actions}


def _most_within(instants: Sequence[int], span_ns: int) -> int:
    """Return how many of these ascending instants are at most within one such span."""
    most = first = 0
    for last, at in enumerate(instants):
        while at - instants[first] > span_ns:
            first += 1
        most = max(most, last - first + 1)
    return most
