"""Why executions wait, where they stand, and who holds what they wait for: from the state that decides (P10).

The nearest reason wins: paused; a closed gate; the slots of the queue are held, or will be by those ahead
(limit); no worker takes the action; else what keeps the next execution of the action waiting: the total, a
resource, a rate, or the workers (pool). Nothing here changes what is decided. A position at a gate is
searched among the first ones only, whatever waits there and however many keys an action has.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace, nsmallest
from itertools import chain, islice
from math import inf
from typing import Final, Literal, NamedTuple, TypeAlias

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager.definitions import UNBOUNDED
from turnstile.executor.queue_manager.gates import obstructing, units_of
from turnstile.executor.queue_manager.lines import Entry, FairClock
from turnstile.executor.queue_manager.rates import RateWindow
from turnstile.executor.queue_manager.state import (
    ActionState,
    Execution,
    Member,
    PoolState,
    Queue,
    ResourceGate,
    State,
    Worker,
)

HOLDERS_MAX: Final = 100
"""Most holders or pools in one answer."""
POSITIONS_MAX: Final = 1000
"""Executions at a gate among which the position of one is searched."""
_STEP: Final = 250
"""Queues that are copied in one step."""
CAUSES_MAX: Final = 3
"""Longest chain of root causes."""

Counted: TypeAlias = Literal["limit", "total", "resource", "rate", "pool", "paused", "no_worker"]
Closed: TypeAlias = Literal["paused", "capacity_zero", "capacity_too_low"]


class Holder(NamedTuple):
    """An execution that holds a slot, units or a worker slot. Without a worker it waits at a later gate."""

    id: int
    action_ref: str
    units: int
    worker_id: str | None
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingOn:
    """What an execution waits for: mostly a gate. A field that does not apply has its default."""

    reason: Counted | Literal["not_due", "handing_over"]
    name: str = ""
    """Of the resource or pool; of a rate: `action REF` or `resource NAME`;
    of a limit: the key that has its own."""
    closed: Closed | None = None
    units: int = 1
    capacity: int | None = None
    """Slots, units, or slots of the workers that take the action; of a rate: starts per `per_seconds`."""
    held: int = 0
    position: int | None = None
    """There, from 1; for a limit or a closed gate: in its queue. None: behind `POSITIONS_MAX`.

    For a limit it counts what is before it in a run (`runs`).
    """
    waiting: int | None = None
    first: tuple[int, int] | None = None
    """Id and units of what passes first at a resource; None: it itself."""
    holders: tuple[Holder, ...] = ()
    other_pools: tuple[str, ...] = ()
    """For `no_worker`: other pools where a worker has the action."""
    at: float | None = None
    """When it is due, was granted, or has its next start; None: that is kept for one that holds units."""
    per_seconds: float = 0.0
    root_cause: "RootCause | None" = None


class RootCause(NamedTuple):
    """What holders that do not run wait for. No ids: what those ahead wait for, or it itself once due."""

    ids: tuple[int, ...]
    on: WaitingOn


class Step(NamedTuple):
    """One gate on the way to a start, and what is held of it."""

    gate: str
    """queue, total, resource NAME, rate of OWNER, pool NAME."""
    state: Literal["passed", "waiting", "not_reached"]
    units: int
    held: int
    capacity: int | None


class Explanation(NamedTuple):
    """Where an execution stands, and why it does not run."""

    status: Status
    position: int | None
    """In its queue, from 1; None: it is not in it."""
    queue_length: int
    waiting_on: WaitingOn | None
    path: tuple[Step, ...] = ()
    """The gates before its start, in order, while it waits."""


class Stop(NamedTuple):
    """What keeps the next execution of an action, or one that holds units, from its start."""

    reason: Counted
    closed: Closed | None = None
    gate: ResourceGate | None = None
    window: RateWindow | None = None


class Bound(NamedTuple):
    """What keeps some executions waiting."""

    reason: Counted
    name: str = ""
    """Of the resource or pool; of a rate: `action REF` or `resource NAME`."""
    closed: Closed | None = None


class Bounds(NamedTuple):
    """What keeps the executions of an action waiting, and what is held of its gates."""

    action_ref: str
    next: Bound
    """Of those that the limits of their queues let start."""
    is_closed: bool
    """Nothing that others release can help."""
    holding: tuple[tuple[str, Bound, int], ...]
    """Those that hold units already: by key, what they wait for, and how many."""
    gates: tuple[Step, ...]
    """But for its queues."""


class Place(NamedTuple):
    """An execution that waits, in an order."""

    priority: int
    id: int
    queue: Queue


# One execution.


def explain(
    state: State, execution_id: int, action_ref: str, key: str = "", priority: int = 3
) -> Explanation | None:
    """Explain an execution, which waits plainly if the state knows no more of it; None: it has ended."""
    execution = state.executions.get(execution_id)
    if execution is None:
        queue = state.queue(action_ref, key)
        if queue is None or queue.position(priority, execution_id) is None:
            return None
        execution = Execution(execution_id, queue, priority, 0.0, inf)
    queue = execution.queue
    position = queue.position(execution.priority, execution_id)
    length = queue.length + queue.holding
    on = _waiting_on(state, execution, position)
    path = () if on is None else _path(state, execution, on)
    return Explanation(execution.status, position, length, on, path)


def _waiting_on(state: State, execution: Execution, position: int | None) -> WaitingOn | None:
    match execution.status:
        case Status.DELAYED:
            then = _in_queue(state, execution, execution.queue.length + 1, CAUSES_MAX)
            return WaitingOn(reason="not_due", at=execution.due_at, root_cause=RootCause((), then))
        case Status.QUEUED:
            if position is None:
                return _stopped(state, execution, stop_of(state, execution), CAUSES_MAX)
            return _in_queue(state, execution, position, CAUSES_MAX)
        case Status.SCHEDULED if (worker := execution.worker) is not None:
            return _at_worker(execution, worker)
        case _:
            return None


def _at_worker(execution: Execution, worker: Worker) -> WaitingOn:
    """Explain what was granted. Beyond the limit of its queue, or the slots of the worker, it waits there."""
    queue = execution.queue
    slots = set(with_slots(queue))
    if execution not in slots:
        ahead = sum(_place(each) < _place(execution) for each in queue.holders if each not in slots)
        return WaitingOn(
            reason="limit", name=_limited_key(queue), capacity=queue.limit, held=len(slots),
            position=ahead + 1, holders=holders_of(slots),
        )  # fmt: skip
    slots = set(with_worker_slots(worker))
    name, at = queue.action.definition.pool, execution.scheduled_at
    if execution in slots:
        return WaitingOn(reason="handing_over", name=name, at=at, holders=holders_of(slots))
    ahead = sum(_granted(each) < _granted(execution) for each in worker.held.values() if each not in slots)
    return WaitingOn(
        reason="pool", name=name, capacity=worker.concurrency, held=len(slots), position=ahead + 1,
        waiting=worker.used - len(slots), holders=holders_of(slots),
    )  # fmt: skip


def _limited_key(queue: Queue) -> str:
    return queue.key if queue.settings.has_limit else ""


def gate_of(on: WaitingOn) -> str:
    """Return the step of a path at which something waits."""
    match on.reason:
        case "paused" | "limit":
            return "queue"
        case "total":
            return "total"
        case "resource":
            return f"resource {on.name}"
        case "rate":
            return f"rate of {on.name}"
        case _:
            return f"pool {on.name}"


def _path(state: State, execution: Execution, on: WaitingOn) -> tuple[Step, ...]:
    """Return the gates before a start; what is not due has reached none."""
    gates = [*_gates(state, execution.queue)]
    at = -1 if on.reason == "not_due" else [each.gate for each in gates].index(gate_of(on))
    return tuple(
        each._replace(state="passed" if n < at else "waiting" if n == at else "not_reached")
        for n, each in enumerate(gates)
    )


def _gates(state: State, queue: Queue) -> Iterator[Step]:
    yield Step("queue", "not_reached", 1, queue.held - queue.surplus, queue.limit)
    yield from _shared_gates(state, queue.action)


def _shared_gates(state: State, action: ActionState) -> Iterator[Step]:
    if (total := action.definition.max_concurrent_total) is not None:
        yield Step("total", "not_reached", 1, action.held, total)
    yield from _rate_step(state, action.window)
    for use, gate in zip(action.uses, action.gates, strict=True):
        yield Step(gate.name, "not_reached", use.units, gate.held, _capacity_of(gate))
        yield from _rate_step(state, gate.window)
    held, capacity = _worker_slots(action)
    yield Step(f"pool {action.definition.pool}", "not_reached", 1, held, capacity)


def _capacity_of(gate: ResourceGate) -> int | None:
    capacity = gate.definition.capacity
    return None if capacity == UNBOUNDED else capacity


def _rate_step(state: State, window: RateWindow | None) -> Iterator[Step]:
    if window is not None:
        starts = window.rate.starts
        yield Step(f"rate of {window.name}", "not_reached", 1, starts - window.left(state.now), starts)


def _worker_slots(action: ActionState) -> tuple[int, int]:
    """Return how many slots of the workers that take an action are in use, and how many there are."""
    taking = [worker for worker in action.crew.workers if worker.is_taking]
    # What is there beyond the slots of a worker waits for one.
    used = sum(min(worker.used, worker.concurrency) for worker in taking)
    return used, sum(worker.concurrency for worker in taking)


def _in_queue(state: State, execution: Execution, position: int, depth: int) -> WaitingOn:
    queue, stop = execution.queue, stop_of(state, execution.queue.action)
    limit = queue.limit
    if is_closed(stop) or limit is None or position <= limit - queue.held:
        return _stopped(state, execution, stop, depth)
    idle = [each for each in queue.holders if each.worker is None] if queue.holding else []
    return WaitingOn(
        reason="limit", name=_limited_key(queue), capacity=limit, held=queue.held - queue.surplus,
        position=position + queue.surplus, holders=holders_of(with_slots(queue)),
        root_cause=_cause(state, idle, in_order(queue) if queue.has_room else iter(()), depth),
    )  # fmt: skip


def _stopped(state: State, execution: Execution, stop: Stop, depth: int) -> WaitingOn:
    action = execution.queue.action
    match stop.reason:
        case "total" | "resource":
            return _on_units(state, execution, stop, depth)
        case "rate":
            return _on_rate(state, execution, stop)
        case "pool" | "no_worker":
            return _on_workers(state, execution, stop)
        case _:
            return WaitingOn(reason="paused", name=action.ref)


def _on_units(state: State, execution: Execution, stop: Stop, depth: int) -> WaitingOn:
    action, gate, units = execution.queue.action, stop.gate, 1
    if gate is None:
        name, capacity, held = action.ref, action.definition.max_concurrent_total, action.held
        order, waiting = order_of(action), startable(action)
        at_workers = chain.from_iterable(worker.held.values() for worker in state.workers.values())
        holding = [*action.holding, *(each for each in at_workers if each.action is action)]
    else:
        name, capacity, held = gate.definition.name, _capacity_of(gate), gate.held
        members, holding, units = members_at(state, gate), [*gate.holders], units_of(action, gate)
        order, waiting = order_at(gate, members), sum(map(startable, members))
    idle = [each for each in holding if each.worker is None]
    seen = WaitingOn(
        reason=stop.reason, name=name, closed=stop.closed, units=units, capacity=capacity, held=held,
        holders=holders_of(holding, gate),
        position=execution.queue.position(execution.priority, execution.id),
    )  # fmt: skip
    if stop.closed is not None:
        return seen
    cause = _cause(state, idle, iter(()), depth)
    head = next(order, None)
    first = None
    if gate is not None and head is not None and head.id != execution.id:
        first = head.id, units_of(head.queue.action, gate)
    order = chain(() if head is None else (head,), order)
    return replace(seen, position=_index(order, execution), waiting=waiting, first=first, root_cause=cause)


def _on_rate(state: State, execution: Execution, stop: Stop) -> WaitingOn:
    action, gate, window = execution.queue.action, stop.gate, stop.window
    assert window is not None
    members = [action] if gate is None else members_at(state, gate)
    order = order_of(action) if gate is None else order_at(gate, members)
    next_start_at, rate = window.next_start_at(state.now), window.rate
    return WaitingOn(
        reason="rate", name=window.name, capacity=rate.starts, per_seconds=rate.per_seconds,
        held=rate.starts - window.left(state.now), at=None if next_start_at == inf else next_start_at,
        position=_index(order, execution), waiting=sum(map(startable, members)),
    )  # fmt: skip


def _on_workers(state: State, execution: Execution, stop: Stop) -> WaitingOn:
    action, crew = execution.queue.action, execution.queue.action.crew
    held, capacity = _worker_slots(action)
    seen = WaitingOn(
        reason="handing_over" if stop.reason == "pool" and crew.has_room else stop.reason,
        name=crew.pool.definition.name, closed="paused" if crew.pool.definition.paused else None,
        capacity=capacity, held=held,
    )  # fmt: skip
    if stop.reason == "no_worker":
        return replace(seen, other_pools=_other_pools(state, action))
    members = members_at(state, crew.pool)
    return replace(
        seen, position=_index(order_at(crew.pool, members), execution), waiting=sum(map(startable, members)),
        # What ends at a worker that drains frees no slot.
        holders=holders_of(
            chain.from_iterable(with_worker_slots(each) for each in crew.workers if each.is_taking)
        ),
    )  # fmt: skip


def _other_pools(state: State, action: ActionState) -> tuple[str, ...]:
    taking = [worker for worker in state.workers.values() if worker.is_taking]
    having = (each for each in taking if each.actions is None or action.ref in each.actions)
    names = {name for worker in having for name in worker.pools}
    return tuple(sorted(names - {action.definition.pool})[:HOLDERS_MAX])


def _cause(state: State, idle: Iterable[Execution], ahead: Iterator[Place], depth: int) -> RootCause | None:
    """Return what the first of those that hold and do not run waits for; else the first of those ahead."""
    holding = nsmallest(HOLDERS_MAX, idle, key=_id)
    if depth and holding:
        stops = [stop_of(state, each) for each in holding]
        ids = [each.id for each, stop in zip(holding, stops, strict=True) if stop == stops[0]]
        return RootCause(tuple(ids), _stopped(state, holding[0], stops[0], depth - 1))
    place = next(ahead, None) if depth else None
    if place is None:
        return None
    first = Execution(place.id, place.queue, place.priority, 0.0, inf)
    return RootCause((), _stopped(state, first, stop_of(state, place.queue.action), depth - 1))


# What keeps a member waiting.


def is_closed(stop: Stop) -> bool:
    """Return whether nothing that others release can help."""
    return stop.closed is not None or stop.reason == "paused"


def stop_of(state: State, member: Member) -> Stop:
    """Return what keeps a member from its start, the nearest reason first."""
    action = member.action
    total = action.definition.max_concurrent_total
    if isinstance(member, ActionState):
        if action.definition.paused:
            return Stop("paused")
        if total == 0:
            return Stop("total", "capacity_zero")
        for use, gate in zip(action.uses, action.gates, strict=True):
            if gate.definition.paused:
                return Stop("resource", "paused", gate)
            if gate.definition.capacity == 0:
                return Stop("resource", "capacity_zero", gate)
            if gate.definition.capacity < use.units:
                return Stop("resource", "capacity_too_low", gate)
    if not action.crew.is_served:
        return Stop("no_worker")
    if isinstance(member, ActionState):
        if total is not None and action.held >= total:
            return Stop("total")
        if action.window is not None and not action.window.has_start(state.now):
            return Stop("rate", window=action.window)
    return _stop_at_gates(state, member)


def _stop_at_gates(state: State, member: Member) -> Stop:
    """Follow a member to the gate that it cannot pass, and there the one that it may not pass."""
    action, stage = member.action, member.reached
    if not 0 <= stage < len(action.gates):
        return Stop("pool")
    gate = action.gates[stage]
    lane = gate.lanes[action.crew]
    ahead = lane.first()
    if ahead is not None and ahead.member is member:
        ahead = obstructing(gate, lane, ahead)
    if gate.held + units_of(member, gate) > gate.definition.capacity:
        return Stop("resource", gate=gate)
    if gate.window is not None and not gate.window.has_start(state.now):
        return Stop("rate", gate=gate, window=gate.window)
    if ahead is not None and ahead.member.action.crew is not action.crew:
        return Stop("resource", gate=gate)
    stop = Stop("pool") if ahead is None else _stop_at_gates(state, ahead.member)
    return stop if stop.reason == "pool" else Stop("resource", gate=gate)


# All that wait of an action.


def bounds_of(state: State, action: ActionState) -> Bounds:
    """Return what keeps the executions of an action waiting."""
    stop = stop_of(state, action)
    holding = Counter((each.queue.key, _bound(action, stop_of(state, each))) for each in action.holding)
    return Bounds(
        action_ref=action.ref, next=_bound(action, stop), is_closed=is_closed(stop),
        holding=tuple((*each, count) for each, count in holding.items()),
        gates=tuple(_shared_gates(state, action)),
    )  # fmt: skip


def _bound(action: ActionState, stop: Stop) -> Bound:
    pool = action.crew.pool.definition
    if stop.reason in ("pool", "no_worker"):
        return Bound(stop.reason, pool.name, "paused" if pool.paused else None)
    if stop.window is not None:
        return Bound(stop.reason, stop.window.name)
    return Bound(stop.reason, "" if stop.gate is None else stop.gate.definition.name, stop.closed)


def limited(queue: Queue) -> int:
    """Return how many wait for nothing but a slot of their queue: what has its slots is at workers."""
    return 0 if queue.startable or queue.holding else queue.length


def counts_by_bound(
    bounds: Bounds, length: int, startable: int, limited: int, key: str | None = None
) -> Counter[Bound]:
    """Return how many executions wait for what in the end, in the queue of one key or in all of an action.

    `length` are those that hold no units yet. What waits behind others waits for what these wait for: a slot
    that is free, or is held by an execution that waits itself, is not what it lacks.
    """
    counts = Counter[Bound]()
    for of_key, bound, count in bounds.holding:
        if key in (None, of_key):
            counts[bound] += count
    is_held = counts and not startable and not bounds.is_closed
    behind = counts.most_common(1)[0][0] if is_held else bounds.next
    limited = 0 if bounds.is_closed else min(limited, length)
    counts[behind] += length - limited
    counts[Bound("limit")] += limited
    return +counts


# Holders.


def _id(execution: Execution) -> int:
    return execution.id


def holders_of(executions: Iterable[Execution], gate: ResourceGate | None = None) -> tuple[Holder, ...]:
    """Return the first of these executions, by id, with their units at a gate."""
    return tuple(
        Holder(
            each.id, each.queue.action.ref, gate.holders[each] if gate else 1,
            each.worker.id if each.worker else None, each.scheduled_at or _passed_at(each),
        )
        for each in nsmallest(HOLDERS_MAX, executions, key=_id)
    )  # fmt: skip


def with_slots(queue: Queue) -> Iterable[Execution]:
    """Return what has the slots of a queue: in a run these are the ones that start first."""
    if not queue.surplus:
        return queue.holders
    return nsmallest(queue.held - queue.surplus, queue.holders, key=_place)


def with_worker_slots(worker: Worker) -> Iterable[Execution]:
    """Return what has the slots of a worker: without runs what runs, and then what was granted first."""
    found: Iterable[Execution] = worker.held.values()
    if worker.surplus:
        queues = dict.fromkeys(each.queue for each in found)
        holders = chain.from_iterable(map(with_slots, queues))
        found = [each for each in holders if each.worker is worker]
    if worker.used <= worker.concurrency:
        return found
    return nsmallest(
        worker.concurrency, found, key=lambda each: (each.status is not Status.RUNNING, _granted(each))
    )


def _place(execution: Execution) -> tuple[int, int]:
    return execution.priority, execution.id


def _granted(execution: Execution) -> Grant:
    assert execution.grant is not None
    return execution.grant


def _passed_at(execution: Execution) -> float:
    return execution.passages[-1].passed_at if execution.passages else execution.queued_at


# Orders: what waits, as it will pass if nothing else arrives.


def startable(member: Member) -> int:
    """Return how many executions a member stands for: those that the limits of its queues let start."""
    if isinstance(member, Execution):
        return 1
    return member.startable


def in_order(queue: Queue) -> Iterator[Place]:
    """Yield what waits in a queue."""
    for priority in sorted(queue.waiting):
        yield from (Place(priority, each, queue) for each in queue.waiting[priority])


def order_of(action: ActionState) -> Iterator[Place]:
    """Yield what could start under the limits of its queues, in the order of its total."""
    flows = (_flow_of(entry, partial(_ready, entry.member)) for entry in action.line.in_order())
    return in_turn(action.clock, coming=flows)


def _flow_of(entry: Entry[Queue], places: "Callable[[], Iterator[Place]]") -> "Flow":
    return Flow(entry.priority, entry.ticket, entry.flow, 1, entry.member.settings.weight, places)


def _ready(queue: Queue) -> Iterator[Place]:
    return islice(in_order(queue), queue.startable)


def _copied_order_of(action: ActionState, count: int) -> Generator[None, None, Iterator[Place]]:
    """Copy the first ones of each queue, in steps of some queues, and return the order of the copy."""
    clock, entries = _copy_of(action.clock), list(action.line.entries.values())
    found: list[tuple[int, int, int, int, Flow]] = []
    for start in range(0, len(entries), _STEP):
        yield
        for entry in entries[start : start + _STEP]:
            flow = _flow_of(entry, partial(_placed, entry.member, _copy(entry.member, count)))
            tag = 0 if clock is None else clock.start(flow.priority, flow.name)
            found.append((flow.priority, tag, flow.ticket, len(found), flow))
    found.sort()
    return in_turn(clock, coming=(flow for *_, flow in found))


def _copy(queue: Queue, count: int) -> list[tuple[int, Sequence[int]]]:
    """Return the first ids of those that the limit lets start, by priority."""
    found: list[tuple[int, Sequence[int]]] = []
    left = min(count, queue.startable)
    for priority in sorted(queue.waiting):
        found.append((priority, queue.waiting[priority].first_ids(left)))
        left -= len(found[-1][1])
    return found


def _placed(queue: Queue, ids: Iterable[tuple[int, Sequence[int]]]) -> Iterator[Place]:
    for priority, each in ids:
        yield from (Place(priority, execution_id, queue) for execution_id in each)


def _copy_of(clock: FairClock | None) -> FairClock | None:
    if clock is None:
        return None
    found = FairClock()
    found.virtual, found.finish = dict(clock.virtual), dict(clock.finish)
    return found


def members_at(state: State, gate: ResourceGate | PoolState) -> list[Member]:
    """Return what waits or is coming at a resource, or waits only for a worker of a pool."""
    if isinstance(gate, ResourceGate):
        return [each for lane in gate.lanes.values() for each in chain(lane.line.entries, lane.coming)]
    actions = chain.from_iterable(crew.actions for crew in gate.crews.values())
    members: Iterator[Member] = chain.from_iterable((action, *action.holding) for action in actions)
    return [each for each in members if each.reached >= 0 and stop_of(state, each).reason == "pool"]


def order_at(gate: ResourceGate | PoolState, members: Iterable[Member]) -> Iterator[Place]:
    """Yield what these members stand for, in the order of a resource or pool."""
    return in_turn(gate.clock, _flows_at(gate, members))


def copied_order_at(
    gate: ResourceGate | PoolState, members: Iterable[Member], count: int
) -> Generator[None, None, Iterator[Place]]:
    """Return this order from a copy that is made in steps: at least the first ones, so many.

    The state may change while it is copied and read: what it yields waited there at some time since then.
    """
    clock, members = _copy_of(gate.clock), list(members)
    flows = _flows_at(gate, members)
    for number, member in enumerate(members):
        if isinstance(member, ActionState):
            order = yield from _copied_order_of(member, count)
            flows[number] = flows[number]._replace(places=partial(iter, order))
    return in_turn(clock, flows)


def _flows_at(gate: ResourceGate | PoolState, members: Iterable[Member]) -> "list[Flow]":
    flows = []
    for each in members:
        action, units = each.action, 1
        if isinstance(gate, ResourceGate):
            use = action.uses[action.gates.index(gate)]
            units, weight = use.units, use.weight
        else:
            weight = gate.definition.weights.get(action.ref, 1)
        flows.append(Flow(each.priority, each.ticket, action.ref, units, weight, partial(_places, each)))
    return flows


def _places(member: Member) -> Iterator[Place]:
    if isinstance(member, ActionState):
        return order_of(member)
    return iter([Place(member.priority, member.id, member.queue)])


def _index(order: Iterable[Place], execution: Execution) -> int | None:
    first = enumerate(islice(order, POSITIONS_MAX), 1)
    return next((number for number, place in first if place.id == execution.id), None)


class Flow(NamedTuple):
    """Executions that take turns with other flows: priority and id of the first, and all of them."""

    priority: int
    ticket: int
    name: str
    units: int
    weight: int
    places: Callable[[], Iterator[Place]]


def in_turn(
    clock: FairClock | None, flows: Iterable[Flow] = (), coming: Iterable[Flow] = ()
) -> Iterator[Place]:  # fmt: skip
    """Merge flows as a `Line` with this clock would, and charge what passes.

    A flow is read when it is first. Those that are `coming`, each with a name of its own and in their order,
    are not even looked at before: what passes moves no virtual time above theirs.
    """
    ahead = _copy_of(clock)

    def tag(priority: int, name: str) -> int:
        return 0 if ahead is None else ahead.start(priority, name)

    def entry(number: int, flow: Flow) -> tuple[int, int, int, int, Flow]:
        return flow.priority, tag(flow.priority, flow.name), flow.ticket, number, flow

    heap = [entry(number, flow) for number, flow in enumerate(flows)]
    heapify(heap)
    later = (entry(number, flow) for number, flow in enumerate(coming, len(heap)))
    upcoming = next(later, None)
    rest: dict[int, Iterator[Place]] = {}
    following: dict[int, Place | None] = {}
    while heap or upcoming is not None:
        if upcoming is not None and (not heap or upcoming < heap[0]):
            heappush(heap, upcoming)
            upcoming = next(later, None)
            continue
        priority, was, ticket, number, flow = heap[0]
        start = tag(priority, flow.name)
        if start > was:
            heapreplace(heap, (priority, start, ticket, number, flow))
            continue
        if number not in rest:
            rest[number] = flow.places()
            following[number] = next(rest[number], None)
        place = following[number]
        if place is not None:
            yield place
            if ahead is not None:
                ahead.charge(priority, flow.name, flow.units, flow.weight)
            place = following[number] = next(rest[number], None)
        if place is None:
            heappop(heap)
        else:
            heapreplace(heap, (place.priority, tag(place.priority, flow.name), place.id, number, flow))
