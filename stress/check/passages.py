"""Replays the gates of stored executions: units (P11), order (P12), rates (P13) and fair shares (P14).

In: the gates of the last attempt of each execution, as the installation stores them, and the definitions over
time. Out: a `Broken` for each violation. The check is sound: a correct installation never breaks a rule.

- Passages of one decision have one instant, and only states between instants count.
- What is unknown (earlier attempts, executions that still run or ended at a gate) can hide a violation and
  never makes one: such executions hold nothing here and wait for nothing, and a fair share is not compared
  while one of its flows has an execution whose passages may be unknown.
- Units count until `completed_at`; the installation releases them after that.
- While a change of a definition may be taking effect, the more generous definition counts.
- An execution whose route is closed, by a pause or by a capacity below its units, may be passed. It returns
  to its queue then, so its stay there is compared only if nothing on its route changed meanwhile.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from turnstile.stress.check.definitions import (
    Definition,
    DefinitionHistory,
    Definitions,
    any_in,
    is_fair,
    limit_of,
    rate_of,
    rate_periods,
    uses_of,
    weight_of,
)
from turnstile.stress.check.verdict import Rule
from turnstile.stress.recording import NEVER

GATE_RULES: Final = (Rule.UNITS_HELD, Rule.PASSED_IN_ORDER, Rule.RATE_KEPT, Rule.SHARED_FAIRLY)
TAG_SCALE: Final = 720_720
"""All weights divide it."""
_ROUNDING_NS: Final = 1_000
QUEUE: Final = "queue"
TOTAL: Final = "total"
RATE: Final = "rate"
_RESOURCE: Final = "resource "


class Stay(NamedTuple):
    """One gate of the last attempt."""

    gate: str
    """`queue`, `total`, `resource NAME`, or `rate`."""
    units: int
    arrived_at: int
    passed_at: int


class Passer(NamedTuple):
    """An execution of an action with gates. Instants in nanoseconds, of the database."""

    execution_id: int
    action: str
    key: str | None
    priority: int
    created_at: int
    completed_at: int
    """NEVER: it has not ended."""
    attempt: int
    stays: tuple[Stay, ...] = ()
    """In the order of its route; empty: unknown."""
    granted_ats: tuple[int, ...] = ()
    """The grants of its earlier attempts, as far as they are known."""

    @property
    def rank(self) -> tuple[int, int]:
        """Its position in a list by arrival."""
        return self.priority, self.execution_id

    @property
    def queue_key(self) -> "QueueKey":
        """What its route follows from."""
        return self.action, self.key

    @property
    def resources(self) -> Iterator[tuple[str, int]]:
        """The resources that it uses, and its units there."""
        return ((s.gate.removeprefix(_RESOURCE), s.units) for s in self.stays if s.gate.startswith(_RESOURCE))


QueueKey: TypeAlias = tuple[str, str | None]
"""An action and a key."""


class GateId(NamedTuple):
    """`owner`: the action, for all kinds but resources. Executions wait for a rate by action."""

    gate: str
    owner: str = ""
    key: str | None = None

    def __str__(self) -> str:
        return " ".join(part for part in (self.gate, self.owner, self.key) if part)


class Broken(NamedTuple):
    """A violation."""

    rule: Rule
    gate: str
    at: int
    what: str
    execution_id: int | None = None


Passage: TypeAlias = tuple[Passer, Stay]


@dataclass(frozen=True, kw_only=True)
class GateHistory:
    """What an installation has stored."""

    passers: Sequence[Passer]
    """All executions of actions that have gates at any time."""
    definitions: Definitions

    def gates(self) -> dict[GateId, list[Passage]]:
        """Return the passages of each gate, in their order."""
        found: dict[GateId, list[Passage]] = defaultdict(list)
        for passer in self.passers:
            for stay in passer.stays:
                found[_gate_id(passer, stay)].append((passer, stay))
        for passages in found.values():
            passages.sort(key=lambda each: (each[1].passed_at, each[0].execution_id))
        return found

    def route(self, passer: Passer) -> Iterator[DefinitionHistory]:
        """Yield the definitions that decide where an execution waits."""
        yield self.definitions.action(passer.action)
        for name, _ in passer.resources:
            yield self.definitions.resource(name)
        yield from self.definitions.pools_of(passer.action)

    def own(self, gate: GateId) -> DefinitionHistory:
        """Return the definitions that a gate follows from."""
        if gate.gate.startswith(_RESOURCE):
            return self.definitions.resource(gate.gate.removeprefix(_RESOURCE))
        return self.definitions.action(gate.owner)


def _gate_id(passer: Passer, stay: Stay) -> GateId:
    if stay.gate.startswith(_RESOURCE):
        return GateId(stay.gate)
    return GateId(stay.gate, passer.action, passer.key if stay.gate == QUEUE else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageCheck:
    """The result of a replay."""

    broken: Sequence[Broken]
    checked: Mapping[Rule, int]
    """Passages (P11), those while others wait (P12), starts (P13), comparisons of two flows (P14)."""


def check_passages(history: GateHistory) -> PassageCheck:
    """Return everything that breaks a guarantee of gates, and how much was checked."""
    gates = history.gates()
    checked: Counter[Rule] = Counter(dict.fromkeys(GATE_RULES, 0))
    broken = [
        *(found for gate, passages in gates.items() for found in _units(history, gate, passages, checked)),
        *(found for gate, passages in gates.items() for found in _order(history, gate, passages, checked)),
        *_rates(history, checked),
        *(found for gate, passages in gates.items() for found in _fairness(history, gate, passages, checked)),
    ]
    return PassageCheck(broken=broken, checked=checked)


_Checked: TypeAlias = "Counter[Rule]"


def _decisions(passages: Iterable[Passage]) -> Iterator[tuple[int, list[Passage]]]:
    for at, together in groupby(passages, key=lambda each: each[1].passed_at):
        yield at, list(together)


def capacity_of(definition: Definition, gate: GateId) -> int | None:
    """Return the units of a gate; None: no limit."""
    if gate.gate == QUEUE:
        return limit_of(definition, gate.key)
    name = "max_concurrent_total" if gate.gate == TOTAL else "capacity"
    capacity: int | None = definition.get(name)
    return capacity


# P11.


def _units(
    history: GateHistory, gate: GateId, passages: Sequence[Passage], checked: _Checked
) -> Iterator[Broken]:
    """Check each decision: what is held after it fits the capacity in force."""
    if gate.gate == RATE:
        return
    own, held = history.own(gate), 0
    ends: list[tuple[int, int]] = []
    for at, together in _decisions(passages):
        checked[Rule.UNITS_HELD] += len(together)
        for passer, stay in together:
            expected = _expected_units(history, gate, passer, at)
            if stay.units not in expected:
                what = f"it acquired {stay.units} units, its action takes {sorted(expected)}"
                yield Broken(Rule.UNITS_HELD, str(gate), at, what, passer.execution_id)
            held += stay.units
            heapq.heappush(ends, (passer.completed_at, stay.units))
        while ends and ends[0][0] <= at:
            held -= heapq.heappop(ends)[1]
        capacities = [capacity_of(each, gate) for each in history.definitions.around(own, at)]
        highest = max((each for each in capacities if each is not None), default=0)
        if None not in capacities and held > highest:
            what = f"{held} units were held after it passed, the capacity was {highest}"
            yield Broken(Rule.UNITS_HELD, str(gate), at, what, together[-1][0].execution_id)


def _expected_units(history: GateHistory, gate: GateId, passer: Passer, at: int) -> set[int]:
    if not gate.gate.startswith(_RESOURCE):
        return {1}
    definitions, name = history.definitions, gate.gate.removeprefix(_RESOURCE)
    uses = map(uses_of, definitions.around(definitions.action(passer.action), at))
    return {each[name].units for each in uses if name in each}


# P12.


def _order(
    history: GateHistory, gate: GateId, passages: Sequence[Passage], checked: _Checked
) -> Iterator[Broken]:
    """Check each passage: nothing that precedes it waits, unless its route is closed."""
    arrivals = sorted(
        (stay.arrived_at, passer.rank, stay.passed_at, passer)
        for passer, stay in passages
        if _waits_throughout(history, gate, passer, stay)
    )
    waiting: dict[QueueKey, list[tuple[tuple[int, int], int, Passer]]] = defaultdict(list)
    arrived, own = 0, history.own(gate)
    for at, together in _decisions(passages):
        while arrived < len(arrivals) and arrivals[arrived][0] < at:
            _, rank, passed_at, passer = arrivals[arrived]
            heapq.heappush(waiting[passer.queue_key], (rank, passed_at, passer))
            arrived += 1
        heads = []
        for queue_key, heap in list(waiting.items()):
            while heap and heap[0][1] <= at:
                heapq.heappop(heap)
            if heap:
                heads.append(heap[0][2])
            else:
                del waiting[queue_key]
        may_be_fair = any(map(is_fair, history.definitions.around(own, at))) and gate.gate != RATE
        if heads:
            checked[Rule.PASSED_IN_ORDER] += len(together)
        for passer, _ in together:
            for head in heads:
                if _precedes(gate, head, passer, may_be_fair) and not _may_be_closed(history, head, at):
                    what = (
                        f"execution {passer.execution_id} passed while execution {head.execution_id} waited"
                    )
                    yield Broken(Rule.PASSED_IN_ORDER, str(gate), at, what, passer.execution_id)


def _waits_throughout(history: GateHistory, gate: GateId, passer: Passer, stay: Stay) -> bool:
    after, settling_ns = stay.arrived_at, history.definitions.settling_ns
    if gate.gate == QUEUE:
        return not any(history.definitions.changed(e, after, stay.passed_at) for e in history.route(passer))
    return not any(e.moves_in(after - settling_ns, stay.passed_at) for e in history.route(passer))


def _precedes(gate: GateId, one: Passer, other: Passer, may_be_fair: bool) -> bool:
    if may_be_fair and one.priority == other.priority and _flow(gate, one) != _flow(gate, other):
        return False
    return one.rank < other.rank


def _flow(gate: GateId, passer: Passer) -> str:
    return str(passer.key or "") if gate.gate == TOTAL else passer.action


def _may_be_closed(history: GateHistory, passer: Passer, at: int) -> bool:
    """Return whether a gate of its route may have been closed for this execution."""
    definitions = history.definitions
    for action in definitions.around(definitions.action(passer.action), at):
        limits = limit_of(action, passer.key), action.get("max_concurrent_total")
        if not action or action.get("paused") or 0 in limits:
            return True
    for own in definitions.pools_of(passer.action):
        if any(pool.get("paused") for pool in definitions.around(own, at)):
            return True
    return any(
        not resource or resource.get("paused") or _is_below(resource.get("capacity"), units)
        for name, units in passer.resources
        for resource in definitions.around(definitions.resource(name), at)
    )


def _is_below(capacity: int | None, units: int) -> bool:
    return capacity is not None and capacity < units


# P13.


def _rates(history: GateHistory, checked: _Checked) -> Iterator[Broken]:
    """Check all grants through each rate, within each period in which the rate did not change."""
    definitions = history.definitions
    starts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for passer in history.passers:
        for at in _grants(passer):
            for owner in _rate_owners(history, passer, at):
                starts[owner].append((at, passer.execution_id))
    for owner, grants in starts.items():
        grants.sort()
        is_resource = owner.startswith(_RESOURCE)
        own = (
            definitions.resource(owner.removeprefix(_RESOURCE)) if is_resource else definitions.action(owner)
        )
        for since, until, rate in rate_periods(own, definitions.settling_ns, NEVER):
            within = [grant for grant in grants if since <= grant[0] < until]
            checked[Rule.RATE_KEPT] += len(within)
            for (first, _), (last, execution_id) in zip(within, within[rate.starts :], strict=False):
                if last - first < rate.per_ns - _ROUNDING_NS:
                    what = f"start {rate.starts + 1} was {last - first} ns after the first, not {rate.per_ns}"
                    yield Broken(Rule.RATE_KEPT, f"{RATE} {owner}", last, what, execution_id)


def _grants(passer: Passer) -> Iterator[int]:
    yield from passer.granted_ats
    if passer.stays:
        yield passer.stays[-1].passed_at


def _rate_owners(history: GateHistory, passer: Passer, at: int) -> Iterator[str]:
    """Yield what certainly counted a grant at this instant: the action, and resources with a rate."""
    definitions = history.definitions
    possible = definitions.around(definitions.action(passer.action), at)
    if all(map(rate_of, possible)):
        yield passer.action
    for name in set.intersection(*(set(uses_of(each)) for each in possible)):
        if all(map(rate_of, definitions.around(definitions.resource(name), at))):
            yield f"{_RESOURCE}{name}"


# P14.


def _fairness(
    history: GateHistory, gate: GateId, passages: Sequence[Passage], checked: _Checked
) -> Iterator[Broken]:
    """Check the shares of flows that wait throughout, for each priority."""
    if gate.gate in (QUEUE, RATE) or not any(is_fair(d) for _, d in history.own(gate).versions):
        return
    unknown = _unknown_periods(history, gate)
    changed_at = sorted(
        at
        for own in {id(own): own for passer, _ in passages for own in history.route(passer)}.values()
        for at in own.changed_at
    )
    for priority in sorted({passer.priority for passer, _ in passages}):
        own = [each for each in passages if each[0].priority == priority]
        fair = _FairGate(history, gate, own, unknown, changed_at)
        yield from fair.violations()
        checked[Rule.SHARED_FAIRLY] += fair.shares.compared


def _unknown_periods(history: GateHistory, gate: GateId) -> Mapping[str, list[tuple[int, int]]]:
    """Return for each flow when one of its executions may have passed the gate unrecorded."""
    definitions = history.definitions
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for passer in history.passers:
        if not _may_pass(history, gate, passer):
            continue
        if not passer.stays:
            found[_flow(gate, passer)].append((passer.created_at, passer.completed_at))
            continue
        until = passer.stays[0].passed_at
        may_have_returned = passer.stays[0].arrived_at != passer.created_at or any(
            definitions.changed(e, passer.created_at, until) for e in history.route(passer)
        )
        if passer.attempt > 1 or may_have_returned:
            found[_flow(gate, passer)].append((passer.created_at, until))
    for periods in found.values():
        periods.sort()
    return found


def _may_pass(history: GateHistory, gate: GateId, passer: Passer) -> bool:
    if gate.gate == TOTAL:
        return passer.action == gate.owner
    name = gate.gate.removeprefix(_RESOURCE)
    return any(name in uses_of(each) for _, each in history.definitions.action(passer.action).versions)


class Shares:
    """The gains of flows, and how far those of two became apart over the time in which both waited."""

    def __init__(self, bounds: Mapping[str, int]) -> None:
        self._bounds = bounds
        """Of each flow its part of how far it may be apart from another one."""
        self._got: Counter[str] = Counter()
        self._epochs: Counter[str] = Counter()
        self._pairs: dict[tuple[str, str], tuple[tuple[int, int], int, int]] = {}
        """For two flows their epochs, and the least and the largest difference of their shares since then."""
        self.compared = 0

    def interrupt(self, flow: str) -> None:
        """Begin anew with a flow: it did not wait, or may have got something that is not stored."""
        self._epochs[flow] += 1

    def gain(self, gains: Mapping[str, int], waiting: Collection[str]) -> Iterator[str]:
        """Add what waiting flows got at one instant; yield a sentence for any two that are too far apart."""
        before = {flow: self._got[flow] for flow in gains}
        self._got.update(gains)
        for flow in gains:
            for other in waiting:
                if other != flow and (other not in gains or flow < other):
                    one, two = min(flow, other), max(flow, other)
                    was = before.get(one, self._got[one]) - before.get(two, self._got[two])
                    yield from self._compare(one, two, was)

    def _compare(self, one: str, two: str, was: int) -> Iterator[str]:
        self.compared += 1
        epochs = self._epochs[one], self._epochs[two]
        known, least, largest = self._pairs.get((one, two), (None, was, was))
        if known != epochs:
            least = largest = was
        now = self._got[one] - self._got[two]
        least, largest = min(least, now), max(largest, now)
        bound = self._bounds[one] + self._bounds[two]
        if largest - least > bound:
            yield (
                f"{one!r} and {two!r} both waited, and their shares became"
                f" {(largest - least) / TAG_SCALE:g} apart, more than {bound / TAG_SCALE:g}"
            )
            least = largest = now
        self._pairs[one, two] = epochs, least, largest


class _FairGate:
    """What the flows of one gate got, for executions of one priority.

    A flow waits throughout a decision if an execution of it has arrived by then and does not pass with it.
    Two flows are compared over the decisions throughout which both wait.
    """

    def __init__(
        self,
        history: GateHistory,
        gate: GateId,
        passages: Sequence[Passage],
        unknown: Mapping[str, list[tuple[int, int]]],
        changed_at: Sequence[int],
    ) -> None:
        self._history, self._gate, self._passages = history, gate, passages
        self._unknown, self._changed_at = unknown, changed_at
        self._unknown_from: dict[str, tuple[int, int]] = defaultdict(lambda: (0, -NEVER - 1))
        self.shares = Shares(self._largest_costs())

    def violations(self) -> Iterator[Broken]:
        arrivals = sorted((stay.arrived_at, _flow(self._gate, passer)) for passer, stay in self._passages)
        waiting: Counter[str] = Counter()
        arrived, before = 0, -NEVER
        for at, together in _decisions(self._passages):
            while arrived < len(arrivals) and arrivals[arrived][0] <= at:
                waiting[arrivals[arrived][1]] += 1
                arrived += 1
            for passer, _ in together:
                waiting[_flow(self._gate, passer)] -= 1
            for flow in [flow for flow, count in waiting.items() if not count]:
                del waiting[flow]
                self.shares.interrupt(flow)
            known = self._known(waiting, before, at)
            for flow in waiting.keys() - known:
                self.shares.interrupt(flow)
            gains: Counter[str] = Counter()
            for passer, stay in together:
                if _flow(self._gate, passer) in known:
                    gains[_flow(self._gate, passer)] += self._cost(passer, stay, at)
            for what in self.shares.gain(gains, known):
                yield Broken(Rule.SHARED_FAIRLY, str(self._gate), at, what)
            before = at

    def _known(self, waiting: Iterable[str], before: int, at: int) -> set[str]:
        """Return of which flows everything is known: no change, and none that may have passed unrecorded."""
        definitions = self._history.definitions
        own = definitions.around(self._history.own(self._gate), at)
        is_changed = any_in(self._changed_at, before - definitions.settling_ns, at)
        known = {flow for flow in waiting if not self._is_unknown(flow, before, at)}
        return known if not is_changed and all(map(is_fair, own)) else set()

    def _is_unknown(self, flow: str, before: int, at: int) -> bool:
        periods = self._unknown.get(flow, ())
        number, until = self._unknown_from[flow]
        while number < len(periods) and periods[number][0] <= at:
            until = max(until, periods[number][1])
            number += 1
        self._unknown_from[flow] = number, until
        return until >= before

    def _cost(self, passer: Passer, stay: Stay, at: int) -> int:
        [*_, action] = self._history.definitions.around(self._history.definitions.action(passer.action), at)
        return stay.units * TAG_SCALE // self._weight(action, passer)

    def _weight(self, action: Definition, passer: Passer) -> int:
        if self._gate.gate == TOTAL:
            return weight_of(action, passer.key)
        use = uses_of(action).get(self._gate.gate.removeprefix(_RESOURCE))
        return 1 if use is None else use.weight

    def _largest_costs(self) -> dict[str, int]:
        """Return the most that one execution of each flow ever cost: earlier weights count in its tag."""
        found: dict[str, int] = defaultdict(int)
        seen: dict[tuple[QueueKey, int], int] = {}
        for passer, stay in self._passages:
            of = passer.queue_key, stay.units
            if of not in seen:
                versions = self._history.definitions.action(passer.action).versions
                seen[of] = max(stay.units * TAG_SCALE // self._weight(d, passer) for _, d in versions)
            flow = _flow(self._gate, passer)
            found[flow] = max(found[flow], seen[of])
        return found
