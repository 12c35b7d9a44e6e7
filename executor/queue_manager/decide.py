"""Which execution starts next, and on which worker: the only place that grants.

A turn first applies what happened (`transitions`), then grants to the fixed point, or to its bound:

1. A pool with a free worker slot takes the first of what stands in the lines of its crews, by its order. That
   is an execution that could start now: the first of its queue, with a free slot under all limits of its action;
   the first at each of its resources, whose units are free; with a start of every rate (`gates`).
2. It passes an earlier execution at a resource only if no worker can take that one now. What is passed over
   for longer than the patience of the resource is not passed any more, and may hold units before it has a worker.
3. It acquires everything together with the worker slot. Where a later resource keeps the first execution of an
   earlier one waiting, it acquires the earlier ones and waits on, as long as a free worker slot is left for it.

`decide` changes the state, and nothing else: the same state, inputs and instant lead to the same decisions.
"""

from collections.abc import Iterable
from typing import Final

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager import transitions
from turnstile.executor.queue_manager.decisions import Decisions, Granted, Passage
from turnstile.executor.queue_manager.gates import (
    enlist,
    is_blocked,
    look_at,
    note_passed_over,
    refresh_all,
    unlist,
)
from turnstile.executor.queue_manager.inputs import Input
from turnstile.executor.queue_manager.lines import Entry, Rank
from turnstile.executor.queue_manager.pools import served, worker_for
from turnstile.executor.queue_manager.state import (
    ActionState,
    Crew,
    Execution,
    Member,
    PoolState,
    State,
    action_of,
)

GRANTS_MAX: Final = 2000
"""Bound of one turn. More than that is decided in the next turn, at once."""


def decide(state: State, inputs: Iterable[Input], now: float, *, grants_max: int = GRANTS_MAX) -> Decisions:
    """Apply the inputs in their order, then grant what can start. `now` never goes back."""
    state.now = max(state.now, now)
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
    """Grant until nothing more can start, one at a time from each pool in turn; False: the bound came first."""
    if state.dirty_pools:
        state.dirty_pools |= state.blocked_pools
    granted_then = 0
    while state.dirty_pools:
        if len(out.granted) >= grants_max:
            return False
        pool = next(iter(state.dirty_pools))
        del state.dirty_pools[pool]
        state.blocked_pools.pop(pool, None)
        found = _next_at(state, pool)
        if found is not None:
            _grant(state, found, out)
            state.dirty_pools[pool] = None
        elif _hold_units(state, pool, out):
            state.dirty_pools[pool] = None
        if not state.dirty_pools and len(out.granted) > granted_then:
            granted_then = len(out.granted)
            state.dirty_pools |= state.blocked_pools
    return True


def _next_at(state: State, pool: PoolState) -> Member | None:
    """Return what starts next in a pool: the first member, in its order, of all crews that have a free slot."""
    best: tuple[Rank, Member] | None = None
    for crew in pool.crews.values():
        if crew.line.entries and crew.has_room:
            entry = _first_not_blocked(state, crew)
            if entry is not None and (best is None or crew.line.rank(entry) < best[0]):
                best = crew.line.rank(entry), entry.member
    return None if best is None else best[1]


def _first_not_blocked(state: State, crew: Crew) -> Entry[Member] | None:
    """Return the first member of a crew's line that no member of another crew precedes at a resource."""
    blocked: list[Entry[Member]] = []
    entry = crew.line.first()
    while entry is not None and is_blocked(state, entry.member):
        blocked.append(entry)
        crew.line.discard(entry.member)
        entry = crew.line.first()
    for each in blocked:
        crew.line.put(each.member, each.flow, each.priority, each.ticket)
        state.blocked_pools[crew.pool] = None
    return entry


def _grant(state: State, member: Member, out: Decisions) -> None:
    """Acquire everything that is missing, and give the execution to a worker."""
    action = action_of(member)
    crew, pool = action.crew, action.crew.pool
    execution = _acquire(state, member, len(action.gates), out)
    if pool.clock is not None:
        weight = pool.definition.weights.get(action.ref, 1)
        pool.clock.charge(execution.priority, action.ref, 1, weight)
    for gate in execution.held_at:
        if gate.window is not None:
            gate.window.kept -= 1
            gate.window.count(state.now)
            if not gate.window.has_start(state.now):
                state.set_timer(gate.window.next_start_at(state.now), gate)
    if action.window is not None:
        action.window.kept -= 1
        action.window.count(state.now)
        if not action.window.has_start(state.now):
            state.set_timer(action.window.next_start_at(state.now), action)
    if action.holding.pop(execution, 0) is None:
        crew.holding.pop(execution, None)
        execution.queue.holding -= 1
    worker = worker_for(crew)
    served(worker, pool)
    worker.held[execution.id] = execution
    state.grant_counter += 1
    execution.worker = worker
    execution.grant = Grant(state.epoch, state.grant_counter)
    execution.attempt += 1
    execution.status = Status.SCHEDULED
    execution.scheduled_at = state.now
    state.executions[execution.id] = execution
    if execution.is_recorded or execution.held_at:
        transitions.record(execution, out)
    out.granted.append(
        Granted(
            execution.id, execution.grant, execution.attempt, execution.queue, worker, execution.expires_at,
            action.definition.timeout_seconds if execution.timeout_seconds is None else execution.timeout_seconds,
        )
    )  # fmt: skip
    for gate in execution.held_at:
        refresh_all(state, gate)
    look_at(state, execution.queue)


def _acquire(state: State, member: Member, last: int, out: Decisions) -> Execution:
    """Pass all gates before stage `last`: the slot, the total, and the resources with one start of each rate."""
    action = action_of(member)
    if action.gates:
        out.passed_over += note_passed_over(state, member, last)
    unlist(state, member)
    execution = member if isinstance(member, Execution) else _take_next(state, member)
    for stage in range(execution.base, last):
        gate, use = action.gates[stage], action.uses[stage]
        gate.held += use.units
        gate.holders[execution] = use.units
        if gate.clock is not None:
            gate.clock.charge(execution.priority, action.ref, use.units, use.weight)
        if gate.window is not None:
            gate.window.kept += 1
        execution.held_at = (*execution.held_at, gate)
        _note_passage(execution, f"resource {use.resource}", use.units, state.now)
    execution.base = last
    return execution


def _take_next(state: State, action: ActionState) -> Execution:
    """Take the next execution of an action out of its queue, with its slot."""
    entry = action.line.first()
    assert entry is not None, "a listed action has something that waits"
    queue, priority = entry.member, entry.priority
    waiting = queue.waiting[priority]
    taken = waiting.take_first()
    if not waiting:
        del queue.waiting[priority]
    execution = state.executions.get(taken.id)
    if execution is None:
        execution = Execution(taken.id, queue, priority, taken.queued_at, taken.expires_at)
    queue.held += 1
    action.held += 1
    action.line.discard(queue)
    if action.window is not None:
        action.window.kept += 1
    if action.clock is not None:
        action.clock.charge(priority, queue.key, 1, queue.settings.weight)
    action.passed_over = None
    state.impatient.pop(action, None)
    if action.gates or action.definition.max_concurrent_total is not None:
        _note_passage(execution, "queue", 1, state.now)
        if action.definition.max_concurrent_total is not None:
            _note_passage(execution, "total", 1, state.now)
    return execution


def _note_passage(execution: Execution, gate: str, units: int, now: float) -> None:
    arrived_at = execution.passages[-1].passed_at if execution.passages else execution.queued_at
    execution.passages = (*execution.passages, Passage(gate, units, arrived_at, now))


def _hold_units(state: State, pool: PoolState, out: Decisions) -> bool:
    """Nothing more can start in a pool: let executions wait between two resources; True: something changed."""
    has_changed = False
    for crew in pool.crews.values():
        while crew.holding and crew.spare() < 0:
            transitions.give_back(state, next(reversed(crew.holding)), out)
            has_changed = True
        if crew.stuck and crew.spare() > 0:
            for member in sorted(crew.stuck, key=_ticket):
                if crew.spare() > 0 and member in crew.stuck and not is_blocked(state, member):
                    _hold(state, member, out)
                    has_changed = True
    for action in list(state.impatient):
        if action.crew.pool is pool and action.reached > 0 and not is_blocked(state, action):
            _hold(state, action, out).is_impatient = True
            has_changed = True
    return has_changed


def _ticket(member: Member) -> tuple[int, int]:
    if isinstance(member, Execution):
        return member.priority, member.id
    entry = member.line.first()
    assert entry is not None
    return entry.priority, entry.ticket


def _hold(state: State, member: Member, out: Decisions) -> Execution:
    """Acquire the gates up to the one that keeps a member waiting, and wait there."""
    action = action_of(member)
    is_impatient = member in state.impatient
    execution = _acquire(state, member, member.reached, out)
    state.executions[execution.id] = execution
    if execution not in action.holding:
        action.holding[execution] = None
        execution.queue.holding += 1
        if not is_impatient:
            action.crew.holding[execution] = None
        state.set_timer(execution.expires_at, execution)
    transitions.record(execution, out)
    enlist(state, execution, execution.priority, execution.id)
    for gate in execution.held_at:
        refresh_all(state, gate)
    look_at(state, execution.queue)
    return execution
