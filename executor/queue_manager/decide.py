"""Which execution starts next, and on which worker: the only place that grants.

A turn first applies what happened (`transitions`), then grants to the fixed point, or to its bound:

1. A pool with a free worker slot takes the first of what stands in the lines of its crews, by its order. That
   is an execution that could start now: the first of its queue, with a free slot under all limits of its
   action; the first at each of its resources, whose units are free; with a start of every rate (`gates`).
2. It passes an earlier execution at a resource only if no worker can take that one now. What was passed over
   for longer than the patience of the resource is not passed any more, and may hold units before it has a
   worker.
3. It acquires everything together with the worker slot. Where a later resource keeps the first execution of
   an earlier one waiting, that acquires the earlier ones and waits on, as long as a free worker slot is left
   for it and for all others that wait so; else they give everything back, the last one first.

Pools that share a worker take turns at its slots. `decide` changes the state, and nothing else: the same
state, inputs and instant lead to the same decisions.
"""

from collections.abc import Iterable
from typing import Final

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager import transitions
from turnstile.executor.queue_manager.decisions import Decisions, Granted, Passage
from turnstile.executor.queue_manager.gates import apply_changes, enlist, note_passed_over, unlist
from turnstile.executor.queue_manager.inputs import Input
from turnstile.executor.queue_manager.pools import served, worker_for
from turnstile.executor.queue_manager.state import (
    ActionState,
    Execution,
    Member,
    PoolState,
    State,
    Worker,
)

GRANTS_MAX: Final = 2000
"""Bound of one turn. More than that is decided in the next turn, at once."""


def decide(state: State, inputs: Iterable[Input], now: float, *, grants_max: int = GRANTS_MAX) -> Decisions:
    """Apply the inputs in their order, then grant what can start. `now` never goes back."""
    state.now = max(state.now, round(now, 6))
    out = Decisions(now=state.now)
    transitions.pass_time(state, out)
    for each in inputs:
        transitions.apply(each, state, out)
    transitions.look_at_changed_queues(state, out)
    if not _grant_all(state, out, grants_max):
        out.is_unfinished = True
    if state.timers:
        out.next_at = state.timers[0].at
    return out


def _grant_all(state: State, out: Decisions, grants_max: int) -> bool:
    """Grant until nothing more can start, one from each pool in turn; False: the bound came first."""
    while True:
        apply_changes(state)
        if not state.dirty_pools:
            return True
        if len(out.granted) >= grants_max:
            return False
        pool = min(state.dirty_pools, key=_turn)
        member = _next_at(pool)
        if member is not None:
            worker = worker_for(member.action.crew)
            if len(worker.pools) > 1:
                member = _in_turn(state, member, worker)
                worker = worker_for(member.action.crew)
            _grant(state, member, worker, out)
        elif not _hold_units(state, pool, out):
            del state.dirty_pools[pool]


def _turn(pool: PoolState) -> tuple[int, str]:
    return pool.served, pool.definition.name


def _next_at(pool: PoolState, worker: Worker | None = None) -> Member | None:
    """Return what is next in the order of a pool, of all crews with room, or with room at a worker."""
    crews = [
        crew
        for crew in pool.crews.values()
        if crew.line.entries and crew.has_room and (worker is None or crew in worker.crews)
    ]
    first = [crew.line.head() for crew in crews]
    if len(first) > 1:
        return min(first, key=crews[0].line.rank).member
    return first[0].member if first else None


def _in_turn(state: State, member: Member, worker: Worker) -> Member:
    """Return what starts now: this one, or the next of a pool whose turn it is at the worker."""
    for name in worker.pools:
        pool = state.pools.get(name)
        if pool is member.action.crew.pool:
            break
        if pool is not None and _next_at(pool, worker) is not None:
            return _next_at(pool) or member
    return member


def _grant(state: State, member: Member, worker: Worker, out: Decisions) -> None:
    """Acquire everything that is missing, and give the execution to a worker."""
    action = member.action
    pool = action.crew.pool
    execution = _acquire(state, member, len(action.gates), out)
    if pool.clock is not None:
        weight = pool.definition.weights.get(action.ref, 1)
        out.charge(pool.clock, execution.priority, action.ref, 1, weight)
    if action.window is not None:
        out.start(action.window)
        state.changed_actions[action] = None
    for gate in action.gates:
        if gate.window is not None:
            out.start(gate.window)
            state.changed_gates[gate] = None
    if execution is member:
        # It held units before.
        del action.holding[execution]
        action.crew.holding.pop(execution, None)
        execution.queue.holding -= 1
    state.grant_counter += 1
    execution.worker = worker
    execution.grant = Grant(state.epoch, state.grant_counter)
    execution.attempt += 1
    execution.status = Status.SCHEDULED
    execution.scheduled_at = state.now
    state.executions[execution.id] = execution
    state.patience.pop(execution.id, None)
    worker.held[execution.id] = execution
    state.changed_workers[worker] = None
    served(worker, pool, state.grant_counter)
    if execution.is_recorded or execution.held_at:
        transitions.record(execution, out)
    timeout_seconds = execution.timeout_seconds
    if timeout_seconds is None:
        timeout_seconds = action.definition.timeout_seconds
    out.granted.append(
        Granted(
            execution.id, execution.grant, execution.attempt, execution.queue, worker, execution.expires_at,
            timeout_seconds,
        )
    )  # fmt: skip


def _acquire(state: State, member: Member, last: int, out: Decisions) -> Execution:
    """Pass all gates before stage `last`: slot, total, and the resources with one start of each rate."""
    action = member.action
    if action.gates:
        out.passed_over += note_passed_over(state, member, last)
    if isinstance(member, Execution):
        unlist(state, member)
        execution = member
    else:
        execution = _take_next(state, member, out)
    for stage in range(member.base, last):
        gate, use = action.gates[stage], action.uses[stage]
        gate.held += use.units
        gate.holders[execution] = use.units
        if gate.clock is not None:
            out.charge(gate.clock, execution.priority, action.ref, use.units, use.weight)
        if gate.window is not None:
            gate.window.kept += 1
        _note_passage(execution, gate.name, use.units, state.now)
    execution.base, execution.held_at = last, action.gates[:last]
    return execution


def _take_next(state: State, action: ActionState, out: Decisions) -> Execution:
    """Take the next execution of an action out of its queue, with its slot."""
    queue, priority = action.queue, action.priority
    assert queue is not None
    taken = transitions.take_out_of_queue(state, queue, priority, action.ticket)
    assert taken is not None
    execution = state.executions.get(taken.id)
    if execution is None:
        execution = Execution(taken.id, queue, priority, taken.queued_at, taken.expires_at)
    queue.holders[execution] = None
    action.held += 1
    state.changed_queues[queue] = None
    if action.window is not None:
        action.window.kept += 1
    if action.clock is not None:
        out.charge(action.clock, priority, queue.key, 1, queue.settings.weight)
    if action.has_gates:
        _note_passage(execution, "queue", 1, state.now)
        if action.definition.max_concurrent_total is not None:
            _note_passage(execution, "total", 1, state.now)
    return execution


def _note_passage(execution: Execution, gate: str, units: int, now: float) -> None:
    arrived_at = execution.passages[-1].passed_at if execution.passages else execution.queued_at
    execution.passages += (Passage(gate, units, arrived_at, now),)


def _hold_units(state: State, pool: PoolState, out: Decisions) -> bool:
    """Let an execution wait between two resources, or one not any more; False: nothing changes."""
    for crew in pool.crews.values():
        spare = crew.spare()
        if crew.holding and spare < 0:
            transitions.give_back(state, next(reversed(crew.holding)), out)
            return True
        may_hold = [member for member in crew.stuck if isinstance(member, Execution) or spare > 0]
        if may_hold:
            _hold(state, min(may_hold, key=_ticket), out)
            return True
    for action in state.impatient:
        if action.crew.pool is pool and action.reached > action.base:
            _hold(state, action, out, is_impatient=True)
            return True
    return False


def _ticket(member: Member) -> tuple[int, int]:
    return member.priority, member.ticket


def _hold(state: State, member: Member, out: Decisions, *, is_impatient: bool = False) -> None:
    """Acquire the gates up to the one that keeps a member waiting, and wait there."""
    action = member.action
    execution = _acquire(state, member, member.reached, out)
    if execution is not member:
        state.executions[execution.id] = execution
        action.holding[execution] = None
        execution.queue.holding += 1
        execution.is_impatient = is_impatient
        if not is_impatient:
            action.crew.holding[execution] = None
        state.set_timer(execution.expires_at, execution)
    transitions.record(execution, out)
    enlist(state, execution)
