"""What keeps the actions with waiting work from their next start, and whose units lie idle: for `/attention`.

In: the state that decides. Out: a value for each action whose queue limits let something start, or that
nothing can start, the one that waits longest first; and the resources that are held by executions that wait.
"""

from collections.abc import Iterator
from heapq import nsmallest
from typing import NamedTuple

from turnstile.executor.questions.explain import Stop, is_closed, stop_of
from turnstile.executor.questions.gates import Steps
from turnstile.executor.questions.protocol import (
    PAGE_MAX,
    ActionStop,
    IdleUnits,
    StarvedKey,
    Stops,
    StopsOfActions,
)
from turnstile.executor.queue_manager.definitions import UNBOUNDED
from turnstile.executor.queue_manager.state import ActionState, Execution, Queue, ResourceGate, State

_STEP = 250
"""Queues or actions that one step looks at."""


class _Waiting(NamedTuple):
    """What waits in some queues of an action."""

    number: int
    oldest_at: float


def stops(_: Stops, state: State) -> Steps[StopsOfActions]:
    """Return what stops each action, in steps, at most `PAGE_MAX` of them."""
    found: list[ActionStop] = []
    for number, action in enumerate(list(state.actions.values())):
        if number % _STEP == 0:
            yield
        stop = yield from _stop(state, action)
        if stop is not None:
            found.append(stop)
    first = nsmallest(PAGE_MAX, found, key=lambda each: each.oldest_enqueued_at)
    idle = (_idle(state, gate) for _, gate in sorted(state.resources.items()))
    return StopsOfActions(actions=tuple(first), idle=tuple(each for each in idle if each)[:PAGE_MAX])


def _stop(state: State, action: ActionState) -> Steps[ActionStop | None]:
    if not any(queue.length for queue in action.queues.values()):
        return None
    stop = stop_of(state, action)
    if action.definition.max_concurrent == 0 and not is_closed(stop):
        stop = Stop("limit", "capacity_zero")
    elif stop.reason == "pool" and action.crew.pool.definition.paused:
        stop = Stop("pool", "paused")
    queues = list(action.queues.values())
    is_whole = is_closed(stop) or stop.reason == "no_worker"
    waiting = _Waiting(0, state.now)
    starved: Queue | None = None
    for start in range(0, len(queues), _STEP):
        if start:
            yield
        for queue in queues[start : start + _STEP]:
            here = _waiting_in(queue, is_whole=is_whole)
            waiting = _Waiting(waiting.number + here.number, min(waiting.oldest_at, here.oldest_at))
            if here.number and not queue.holders and (starved is None or _head_at(queue) < _head_at(starved)):
                starved = queue
    if not waiting.number:
        return None
    capacity, held = _use(action, stop)
    return ActionStop(
        action_ref=action.ref, pool=action.definition.pool, reason=stop.reason, closed=stop.closed,
        resource="" if stop.gate is None else stop.gate.definition.name,
        units=1 if stop.gate is None or stop.window else action.uses[action.gates.index(stop.gate)].units,
        capacity=capacity, held=held, per_seconds=stop.window.rate.per_seconds if stop.window else 0.0,
        waiting=waiting.number, oldest_enqueued_at=waiting.oldest_at,
        starved=_starved(action, starved) if stop.reason == "total" and starved else None,
    )  # fmt: skip


def _waiting_in(queue: Queue, *, is_whole: bool) -> _Waiting:
    """Count what waits in a queue for more than its limit; `is_whole`: all of it, nothing can start."""
    number = queue.length if is_whole else queue.startable
    return _Waiting(number, _head_at(queue)) if number else _Waiting(0, float("inf"))


def _head_at(queue: Queue) -> float:
    return min(each.first_queued_at() for each in queue.waiting.values())


def _use(action: ActionState, stop: Stop) -> tuple[int, int]:
    """Return how much there is of what stops an action, and how much is held."""
    if stop.window is not None:
        return stop.window.rate.starts, stop.window.rate.starts
    if stop.gate is not None:
        return stop.gate.definition.capacity, stop.gate.held
    if stop.reason == "total":
        return action.definition.max_concurrent_total or 0, action.held
    taking = [worker for worker in action.crew.workers if worker.is_taking]
    return sum(each.concurrency for each in taking), sum(min(each.used, each.concurrency) for each in taking)


def _starved(action: ActionState, queue: Queue) -> StarvedKey:
    most = max(action.queues.values(), key=lambda each: each.held)
    return StarvedKey(
        key=queue.key, waiting=queue.length, oldest_enqueued_at=_head_at(queue), holder=most.key,
        holder_slots=most.held,
    )  # fmt: skip


def _idle(state: State, gate: ResourceGate) -> IdleUnits | None:
    capacity = gate.definition.capacity
    holding = dict(_holding(gate))
    if not holding or capacity == UNBOUNDED:
        return None
    first = min(holding, key=lambda each: each.id)
    stop = stop_of(state, first)
    return IdleUnits(
        resource=gate.definition.name, rank=gate.definition.rank, capacity=capacity,
        held_waiting=sum(holding.values()), reason=stop.reason,
        later="" if stop.gate is None else stop.gate.definition.name,
        since=min(_passed_at(each, gate) for each in holding),
    )  # fmt: skip


def _holding(gate: ResourceGate) -> Iterator[tuple[Execution, int]]:
    """Yield what holds units and waits at a later gate."""
    yield from ((each, units) for each, units in gate.holders.items() if each.worker is None)


def _passed_at(execution: Execution, gate: ResourceGate) -> float:
    return next(
        (each.passed_at for each in execution.passages if each.gate == gate.name), execution.queued_at
    )
