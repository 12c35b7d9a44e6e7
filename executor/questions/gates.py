"""What waits at resources and pools, and who holds them: counts, and pages of lists.

In: the state that decides. Out: answers, in steps of a few milliseconds where they may be long.
"""

from collections.abc import Callable, Generator, Iterable
from heapq import nsmallest
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

from turnstile.common.domain.states import Status
from turnstile.executor.questions import protocol
from turnstile.executor.questions.explain import (
    HOLDERS_MAX,
    Place,
    copied_order_at,
    members_at,
    order_at,
    startable,
    with_worker_slots,
)
from turnstile.executor.questions.protocol import (
    PAGE_MAX,
    GateGauges,
    PoolGauge,
    ResourceGauge,
    SlotHolder,
    WaitingPlace,
)
from turnstile.executor.queue_manager.state import ActionState, Execution, PoolState, ResourceGate, State

A = TypeVar("A")

Steps: TypeAlias = Generator[None, None, A]
"""Yields between steps, and returns the answer."""
_WALKED: Final = 1000
"""Executions that one step passes on the way to a page."""


class GateCounts(NamedTuple):
    """A resource or pool in numbers."""

    capacity: int
    """Units, or slots of the workers that take offers."""
    held: int
    held_waiting: int
    """Units of executions that wait at later gates."""
    waiting: int
    wanted: int = 0
    """Of a pool: what has worker slots, and what could start at once with more of them."""


# Pages.


def resource_queue(question: protocol.ResourceQueue, state: State) -> Steps[protocol.GatePage | None]:
    """Return a page of what waits for a resource, and who holds it; None: it is unknown."""
    gate = state.resources.get(question.name)
    if gate is None:
        return None
    counts = resource_counts(state, gate)
    places = yield from places_at(state, gate, question.offset, question.limit)
    return _gate_page(state, gate, counts, (question.offset, places), gate.holders)


def pool_queue(question: protocol.PoolQueue, state: State) -> Steps[protocol.GatePage | None]:
    """Return a page of what waits for a worker of a pool, and who has slots; None: it is unknown."""
    pool = state.pools.get(question.name)
    if pool is None:
        return None
    counts = pool_counts(state, pool)
    places = yield from places_at(state, pool, question.offset, question.limit)
    holders = pool_holders(state, question.name)
    return _gate_page(state, pool, counts, (question.offset, places), holders)


def _gate_page(
    state: State,
    gate: ResourceGate | PoolState,
    counts: GateCounts,
    behind: tuple[int, Iterable[Place]],
    holders: Iterable[Execution],
) -> protocol.GatePage:
    resource = gate if isinstance(gate, ResourceGate) else None
    offset, places = behind
    items = (_at_gate(state, place, number, resource) for number, place in enumerate(places, offset + 1))
    return protocol.GatePage(
        name=gate.definition.name, paused=gate.definition.paused, order=gate.definition.order,
        items=tuple(each for each in items if each is not None), holders=holders_at(holders, resource),
        **counts._asdict(),
    )  # fmt: skip


def _at_gate(state: State, place: Place, position: int, gate: ResourceGate | None) -> WaitingPlace | None:
    """Return what waits at a place; None: not any more, since the place was found."""
    action, execution = place.queue.action, state.executions.get(place.id)
    waiting = place.queue.waiting.get(place.priority)
    known = execution or (None if waiting is None else waiting.find(place.id))
    has_left = execution is not None and execution.status is not Status.QUEUED
    if known is None or has_left or (gate is not None and gate not in action.gates):
        return None
    passages = () if execution is None else execution.passages
    return WaitingPlace(
        id=place.id, position=position, action_ref=action.ref, key=place.queue.key, priority=place.priority,
        units=1 if gate is None else action.uses[action.gates.index(gate)].units,
        queued_at=known.queued_at,
        arrived_at=passages[-1].passed_at if passages and gate is not None else None,
    )  # fmt: skip


def gates(
    state: State, use: Callable[[Literal["resource", "pool"], str], tuple[float | None, ...]]
) -> Steps[GateGauges]:
    """Return all resources and pools in numbers, each with its `use`."""
    resources, pools = [], []
    served = _served(state.actions.values())
    for name in sorted(state.resources)[:PAGE_MAX]:
        if (gate := state.resources.get(name)) is None:
            continue
        counts = resource_counts(state, gate)
        resources.append(
            ResourceGauge(
                name=name, capacity=counts.capacity, held=counts.held, held_waiting=counts.held_waiting,
                waiting=counts.waiting, paused=gate.definition.paused, use=use("resource", name),
            )
        )  # fmt: skip
        yield
    for name in sorted(state.pools)[:PAGE_MAX]:
        if (pool := state.pools.get(name)) is None:
            continue
        counts = pool_counts(state, pool)
        pools.append(
            PoolGauge(
                name=name, capacity=counts.capacity, held=counts.held, waiting=counts.waiting,
                wanted=counts.wanted, waiting_queues=waiting_queues(state, pool),
                paused=pool.definition.paused, served=tuple(sorted(served.get(name, ()))[:PAGE_MAX]),
                use=use("pool", name),
            )
        )  # fmt: skip
        yield
    return GateGauges(resources=tuple(resources), pools=tuple(pools))


def _served(actions: Iterable[ActionState]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for action in actions:
        if any(worker.is_taking for worker in action.crew.workers):
            found.setdefault(action.definition.pool, []).append(action.ref)
    return found


def holders_at(executions: Iterable[Execution], gate: ResourceGate | None = None) -> tuple[SlotHolder, ...]:
    """Return the first of these executions, by id."""
    return tuple(
        SlotHolder(
            id=each.id, action_ref=each.queue.action.ref, key=each.queue.key, status=each.status,
            attempt=each.attempt, units=1 if gate is None else gate.holders[each],
            worker_id=worker_id_of(each), granted_at=each.scheduled_at, started_at=each.started_at,
            passed_at=_passed_at(each, "queue" if gate is None else f"resource {gate.definition.name}"),
            is_stopping=each.cancel_reason is not None,
        )
        for each in nsmallest(HOLDERS_MAX, executions, key=lambda each: each.id)
    )  # fmt: skip


def _passed_at(execution: Execution, gate: str) -> float | None:
    return next((each.passed_at for each in execution.passages if each.gate == gate), None)


def worker_id_of(execution: Execution) -> str | None:
    """Return the worker that has an execution, if one has."""
    return None if execution.worker is None else execution.worker.id


# Counts.


def _could_start(state: State, action: ActionState) -> int:
    """Return how many more could start at once with enough workers."""
    if action.is_closed:
        return 0
    bounds, total = [startable(action)], action.definition.max_concurrent_total
    if total is not None:
        bounds.append(total - action.held)
    for use, gate in zip(action.uses, action.gates, strict=True):
        bounds.append((gate.definition.capacity - gate.held) // use.units)
    windows = [action.window, *(gate.window for gate in action.gates)]
    bounds += [window.left(state.now) for window in windows if window is not None]
    return max(min(bounds), 0)


def places_at(
    state: State, gate: ResourceGate | PoolState, offset: int, limit: int
) -> Generator[None, None, tuple[Place, ...]]:
    """Return what waits there from an offset on; it is reached in steps, in a copy of what waits."""
    members = members_at(state, gate)
    if offset <= _WALKED:
        return tuple(islice(order_at(gate, members), offset, offset + limit))
    order = yield from copied_order_at(gate, members, offset + limit)
    while offset:
        yield
        count = min(offset, _WALKED)
        if sum(1 for _ in islice(order, count)) < count:
            return ()
        offset -= count
    return tuple(islice(order, limit))


def resource_counts(state: State, gate: ResourceGate) -> GateCounts:
    """Count what holds a resource and waits there."""
    return GateCounts(
        capacity=gate.definition.capacity,
        held=gate.held,
        held_waiting=sum(units for each, units in gate.holders.items() if each.worker is None),
        waiting=sum(map(startable, members_at(state, gate))),
    )


def waiting_queues(state: State, pool: PoolState) -> int:
    """Return in how many queues something waits only for a worker of the pool."""
    return sum(
        sum(1 for queue in each.queues.values() if queue.startable) if isinstance(each, ActionState) else 1
        for each in members_at(state, pool)
    )


def pool_holders(state: State, name: str) -> list[Execution]:
    """Return what has worker slots of a pool."""
    workers = [worker for worker in state.workers.values() if name in worker.pools]
    return [each for worker in workers for each in with_worker_slots(worker) if _pool_of(each) == name]


def pool_counts(state: State, pool: PoolState) -> GateCounts:
    """Count what has worker slots of a pool and what waits only for its workers."""
    name = pool.definition.name
    workers = [worker for worker in state.workers.values() if name in worker.pools]
    here = [each for worker in workers for each in worker.held.values() if _pool_of(each) == name]
    holders = pool_holders(state, name)
    # What waits at a worker for a slot: without what the limits of queues keep waiting there.
    ahead = len(here) - len(holders) - sum(queue.surplus for queue in {each.queue for each in here})
    actions = [action for action in state.actions.values() if action.definition.pool == name]
    holding = sum(len(action.holding) for action in actions)
    could_start = ahead + holding + sum(_could_start(state, each) for each in actions)
    return GateCounts(
        capacity=sum(worker.concurrency for worker in workers if worker.is_taking),
        held=len(holders),
        held_waiting=holding,
        waiting=sum(map(startable, members_at(state, pool))),
        wanted=len(holders) + (0 if pool.definition.paused else could_start),
    )


def _pool_of(execution: Execution) -> str:
    return execution.queue.action.definition.pool
