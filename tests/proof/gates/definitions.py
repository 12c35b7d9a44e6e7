"""What users define: actions, resources, pools, workers, rates. From these follow the gates, their global
order, and the route of each execution.

Nothing here decides. `model.py` (the decision) and `rules.py` (its checker) share these definitions and
nothing else.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

Order: TypeAlias = Literal["arrival", "fair"]
Kind: TypeAlias = Literal["queue", "total", "resource", "pool"]
QueueKey: TypeAlias = tuple[str, str]
"""An action and a concurrency key: its executions have the same first gate and the same route."""

GRANTED: Final = -1
"""In place of the gate where an execution waits: it has passed all gates and may run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """At most `starts` grants within any `per` units of time."""

    starts: int
    per: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Something that several actions share. `weights` are those of actions, default 1."""

    name: str
    capacity: int
    rank: int = 1
    order: Order = "arrival"
    weights: Mapping[str, int] = field(default_factory=dict)
    rate: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Limits are units of the gate in question; None is no limit."""

    name: str
    limit: int | None = None
    """`max_concurrent`: of each concurrency key."""
    keys: tuple[str, ...] = ("",)
    """All concurrency keys that occur."""
    key_limits: Mapping[str, int | None] = field(default_factory=dict)
    total: int | None = None
    """`max_concurrent_total`: of all keys together."""
    order: Order = "arrival"
    """Between the keys, at the total."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """Of keys, at the total; default 1."""
    uses: Mapping[str, int] = field(default_factory=dict)
    """Units of each resource."""
    rate: Rate | None = None
    pool: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """`lead`: how many executions may be granted beyond the worker slots of the pool."""

    name: str = "default"
    lead: int = 0
    order: Order = "fair"
    weights: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker process. `actions` are those it has code for; None is all."""

    name: str
    concurrency: int
    pools: tuple[str, ...] = ("default",)
    actions: frozenset[str] | None = None

    def serves(self, action: Action) -> bool:
        return action.pool in self.pools and (self.actions is None or action.name in self.actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One gate. `weights` are those of its flows."""

    kind: Kind
    name: str
    fair: bool
    weights: Mapping[str, int]
    capacity: int | None
    """At the beginning. A pool's capacity follows from its live workers instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """One gate of a route, and the units that are acquired there."""

    gate: int
    units: int


class System:
    """The definitions, compiled: gates by number, in the global order, and routes through them."""

    def __init__(
        self,
        *,
        actions: tuple[Action, ...],
        resources: tuple[Resource, ...] = (),
        pools: tuple[Pool, ...] = (Pool(),),
        workers: tuple[Worker, ...] = (Worker(name="w", concurrency=100),),
    ) -> None:
        names = [*(action.name for action in actions), *(resource.name for resource in resources)]
        assert len(set(names)) == len(names), "rates and gates are found by these names"
        self.actions = {action.name: action for action in actions}
        self.resources = {resource.name: resource for resource in resources}
        self.pools = {pool.name: pool for pool in pools}
        self.workers = {worker.name: worker for worker in workers}
        self.gates: tuple[Gate, ...] = tuple(self._gates_in_order())
        self.number = {gate.name: number for number, gate in enumerate(self.gates)}
        self.queue_keys: tuple[QueueKey, ...] = tuple((a.name, key) for a in actions for key in a.keys)
        self.routes = {queue_key: self._route(*queue_key) for queue_key in self.queue_keys}
        self.rates = self._rates()
        self.rate_number = {name: number for number, name in enumerate(self.rates)}
        self.rate_names = {action.name: self._rate_names(action) for action in actions}
        weights = [weight for gate in self.gates for weight in gate.weights.values()]
        self.tag_scale = math.lcm(*weights) if weights else 1
        """Tags are multiples of 1 / tag_scale, so that they are exact integers."""

    def _gates_in_order(self) -> list[Gate]:
        """Queues, totals, resources by (rank, name), pools: the one order in which units are acquired."""
        queues = [
            Gate(kind="queue", name=queue_name(a.name, key), fair=False, weights={},
                 capacity=a.key_limits.get(key, a.limit))
            for a in self.actions.values() for key in a.keys
        ]  # fmt: skip
        totals = [
            Gate(kind="total", name=f"total {a.name}", fair=a.order == "fair", weights=a.weights,
                 capacity=a.total)
            for a in self.actions.values() if a.total is not None
        ]  # fmt: skip
        resources = [
            Gate(kind="resource", name=r.name, fair=r.order == "fair", weights=r.weights, capacity=r.capacity)
            for r in sorted(self.resources.values(), key=lambda r: (r.rank, r.name))
        ]
        pools = [
            Gate(kind="pool", name=f"pool {p.name}", fair=p.order == "fair", weights=p.weights, capacity=None)
            for p in self.pools.values()
        ]
        return [*queues, *totals, *resources, *pools]

    def _route(self, action_name: str, key: str) -> tuple[Stop, ...]:
        action = self.actions[action_name]
        stops = [Stop(gate=self.number[queue_name(action_name, key)], units=1)]
        if action.total is not None:
            stops.append(Stop(gate=self.number[f"total {action_name}"], units=1))
        stops += [Stop(gate=self.number[name], units=units) for name, units in action.uses.items()]
        stops.append(Stop(gate=self.number[f"pool {action.pool}"], units=1))
        return tuple(sorted(stops, key=lambda stop: stop.gate))

    def _rates(self) -> dict[str, Rate]:
        owners: list[Action | Resource] = [*self.actions.values(), *self.resources.values()]
        return {owner.name: owner.rate for owner in owners if owner.rate is not None}

    def _rate_names(self, action: Action) -> tuple[str, ...]:
        """The rate of the action first, then those of its resources in the order of its route."""
        used = sorted(action.uses, key=lambda name: self.number[name])
        return tuple(name for name in (action.name, *used) if name in self.rates)


def queue_name(action: str, key: str) -> str:
    """The name of the queue's gate, as users write it."""
    return f"{action}/{key}" if key else action
