"""The turns of plain actions at the worker slots of their pool: order (P12) and fair shares (P14).

In: a recording. Out: a `PassageCheck`. No record says since when a plain execution waits for nothing but a
worker slot. For an action without a limit this follows from its admission, because nothing else delays it:
these actions are replayed, and no others.

The check is sound: a correct installation never breaks a rule.

- An execution certainly waits from one tick of the watchdog after its admission, which is committed by then.
- A queue that another session holds loses its turn until the next tick, and the instant of a grant is taken
  before the lock of the pool. So an execution may be passed by as many as start within one tick, and two
  actions may be further apart by what each of them gets within one.
- Nothing is compared over a fault, or over a change of the pool's settings.
- What returns after a lost worker waits again at an unknown instant. It counts as a gain of its action only.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from turnstile.stress.check.columns import column
from turnstile.stress.check.definitions import DefinitionChange, history_of, is_fair
from turnstile.stress.check.passages import Broken, Guarantee, PassageCheck
from turnstile.stress.check.queues import disturbed
from turnstile.stress.recording import NEVER, NONE, SECOND, Recording
from turnstile.stress.trace import POOL, action_ref

_GATE: Final = f"pool {POOL}"
_TAG_SCALE: Final = 720_720
"""All weights divide it."""


class Start(NamedTuple):
    """One grant, or an execution that still waits. Instants in nanoseconds, of the database."""

    granted_at: int
    """NEVER: it still waits."""
    execution_id: int
    action: str
    waits_from: int
    """From when on it certainly waits for nothing but a worker slot; NEVER: unknown, or not as long."""


class Period(NamedTuple):
    """A time in which the pool had these settings and nothing was disturbed."""

    since: int
    until: int
    fair: bool
    weights: Mapping[str, int]


def check_pool(recording: Recording) -> PassageCheck:
    """Replay the turns at the pool, if the actions have no limit; otherwise nothing is checked."""
    checked: Counter[Guarantee] = Counter()
    broken: list[Broken] = []
    tick_ns = round(recording.tick_seconds * SECOND)
    if _is_plain(recording):
        starts = _starts(recording, tick_ns)
        for period in _periods(recording, tick_ns):
            own = [s for s in starts if period.since < s.granted_at and s.waits_from < period.until]
            turns = _Turns(period, own, tick_ns, checked)
            broken += turns.order()
            if period.fair:
                broken += turns.shares()
    return PassageCheck(broken=broken, checked=checked)


def _is_plain(recording: Recording) -> bool:
    scenario = recording.scenario
    has_gates = recording.gates is not None or bool(scenario.load.priorities)
    return (
        recording.pool is not None and scenario.limit is None and not (has_gates or recording.limit_changes)
    )


def _starts(recording: Recording, tick_ns: int) -> list[Start]:
    """Return all grants, and what still waits, in the order of the grants."""
    keys = max(recording.scenario.load.keys, 1)
    attempts = recording.attempts[recording.attempts["queue"] != NONE]
    names = ("execution_id", "attempt", "queue", "waiting_since", "granted_at")
    found = []
    for execution_id, attempt, queue, since, granted_at in zip(
        *(column(attempts, name).tolist() for name in names), strict=True
    ):
        waits_from = since + tick_ns if attempt == 1 else NEVER
        is_known = waits_from < granted_at
        found.append(
            Start(granted_at, execution_id, action_ref(queue // keys), waits_from if is_known else NEVER)
        )
    return sorted(found)


def _periods(recording: Recording, tick_ns: int) -> Iterator[Period]:
    assert recording.pool is not None
    changes = [DefinitionChange(each.at, each.old, each.new) for each in recording.pool.changes]
    versions = history_of(recording.pool.now, changes).versions
    ends = [*(at for at, _ in versions[1:]), recording.ended_at]
    for (since, definition), until in zip(versions, ends, strict=True):
        edge = since + tick_ns
        for began_at, ended_at in [*disturbed(recording), (until, until)]:
            if edge < min(began_at, until):
                yield Period(edge, min(began_at, until), is_fair(definition), definition.get("weights") or {})
            edge = max(edge, ended_at + tick_ns)


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

        In the fair order it precedes the later ones of its action only.
        """
        later: dict[str, list[int]] = defaultdict(list)
        """The instants of the grants of executions with larger ids, by action where that matters."""
        own = {s.execution_id: s for s in (*self.grants, *(start for _, _, start in self.arrivals))}
        for start in sorted(own.values(), key=lambda each: each.execution_id, reverse=True):
            flow = start.action if self.period.fair else ""
            if start.waits_from != NEVER:
                self.checked[Guarantee.ORDER] += 1
                until = min(start.granted_at, self.period.until)
                passed = bisect_left(later[flow], until) - bisect_right(later[flow], start.waits_from)
                if passed > self.most_within_tick[flow]:
                    what = (
                        f"{passed} later ones started while it waited, in one tick start"
                        f" {self.most_within_tick[flow]}"
                    )
                    yield Broken(Guarantee.ORDER, _GATE, until, what, start.execution_id)
            if start.granted_at < self.period.until:
                insort(later[flow], start.granted_at)

    def shares(self) -> Iterator[Broken]:
        """Check for any two actions that both wait: their gains by weight stay together."""
        waiting: Counter[str] = Counter()
        got: Counter[str] = Counter()
        epochs: Counter[str] = Counter()
        pairs: dict[tuple[str, str], tuple[tuple[int, int], int, int]] = {}
        costs = self._costs()
        bounds = {action: cost * (1 + self.most_within_tick[action]) for action, cost in costs.items()}
        arrived = 0
        for at, together in groupby(self.grants, key=lambda grant: grant.granted_at):
            while arrived < len(self.arrivals) and self.arrivals[arrived][0] <= at:
                waiting[self.arrivals[arrived][1]] += 1
                arrived += 1
            before, gained = got.copy(), set()
            for grant in together:
                waiting[grant.action] -= grant.waits_from != NEVER
                got[grant.action] += costs[grant.action]
                gained.add(grant.action)
            for action in [action for action, count in waiting.items() if not count]:
                del waiting[action]
                epochs[action] += 1
            for one, two in _pairs_of(gained, waiting):
                was, now = before[one] - before[two], got[one] - got[two]
                key = epochs[one], epochs[two]
                known, least, largest = pairs.get((one, two), (None, was, was))
                if known != key:
                    least = largest = was
                self.checked[Guarantee.FAIRNESS] += 1
                least, largest = min(least, now), max(largest, now)
                bound = bounds[one] + bounds[two]
                if largest - least > bound:
                    yield self._apart(at, one, two, largest - least, bound)
                    least = largest = now
                pairs[one, two] = key, least, largest

    def _apart(self, at: int, one: str, two: str, apart: int, bound: int) -> Broken:
        what = (
            f"{one!r} and {two!r} both waited, and their shares became {apart / _TAG_SCALE:g} apart,"
            f" more than {bound / _TAG_SCALE:g}"
        )
        return Broken(Guarantee.FAIRNESS, _GATE, at, what)

    def _costs(self) -> dict[str, int]:
        actions = {grant.action for grant in self.grants} | {action for _, action, _ in self.arrivals}
        return {action: _TAG_SCALE // self.period.weights.get(action, 1) for action in actions}


def _most_within(instants: Sequence[int], span_ns: int) -> int:
    """Return how many of these ascending instants are at most within one such span."""
    most = first = 0
    for last, at in enumerate(instants):
        while at - instants[first] > span_ns:
            first += 1
        most = max(most, last - first + 1)
    return most


def _pairs_of(gained: set[str], waiting: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of actions that wait, of which at least one has gained."""
    for one in sorted(gained & waiting.keys()):
        for two in waiting:
            if one != two and (two not in gained or one < two):
                yield (one, two) if one < two else (two, one)
