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

Pools that share a worker take turns at its slots. Where nothing more can start, workers get runs of short
actions: a queue beyond its limit, and what waits for a worker beyond the slots of a worker (`runs`). `decide`
changes the state, and nothing else: the same state, inputs and instant lead to the same decisions.
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
from turnstile.executor.queue_manager.runs import (
    STALLED_SECONDS,
    add_surplus,
    gathering_at,
    is_contended,
    missing,
    room_ahead,
    watch,
)
from turnstile.executor.queue_manager.state import (
    Crew,
    Execution,
    Member,
    PoolState,
    Queue,
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
        if not state.dirty_pools and not state.runs:
            return True
        if len(out.granted) >= grants_max:
            return False
        if not state.dirty_pools:
            if not _extend_runs(state, out, grants_max):
                return True
            continue
        pool = min(state.dirty_pools, key=_turn)
        member = _next_at(pool)
        if member is not None:
            worker = _worker_for(member)
            if len(worker.pools) > 1:
                member = _in_turn(state, member, worker)
                worker = _worker_for(member)
            _grant(state, member, worker, out)
        elif not _hold_units(state, pool, out) and not _grant_ahead(state, pool, out, grants_max):
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


def _worker_for(member: Member) -> Worker:
    """Return the worker that gets what is next: where its queue may have a run, else the least busy one."""
    if member.action.pace:
        home = gathering_at(member)
        if home is not None and home.free > 0:
            return home
    return worker_for(member.action.crew)


def _grant(state: State, member: Member, worker: Worker, out: Decisions) -> None:
    """Acquire everything that is missing, and give the execution to a worker."""
    action = member.action
    execution = _acquire(state, member, len(action.gates), out)
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
    _give(state, execution, worker, out)


def _give(state: State, execution: Execution, worker: Worker, out: Decisions) -> None:
    """Give an execution that has all it needs to a worker."""
    action, queue = execution.action, execution.queue
    pool = action.crew.pool
    if pool.clock is not None:
        weight = pool.definition.weights.get(action.ref, 1)
        out.charge(pool.clock, execution.priority, action.ref, 1, weight)
    state.grant_counter += 1
    execution.worker = worker
    execution.grant = Grant(state.epoch, state.grant_counter)
    execution.attempt += 1
    execution.status = Status.SCHEDULED
    execution.scheduled_at = state.now
    state.executions[execution.id] = execution
    state.patience.pop(execution.id, None)
    worker.held[execution.id] = execution
    queue.at[worker] = queue.at.get(worker, 0) + 1
    if action.pace:
        execution.is_short = True
    else:
        worker.lasting += 1
    state.changed_workers[worker] = None
    served(worker, pool, state.grant_counter)
    if len(worker.pools) > 1:
        # The next turn there is that of another pool.
        state.dirty_pools |= {crew.pool: None for crew in worker.crews if crew.line.entries}
    if execution.is_recorded or execution.held_at:
        transitions.record(execution, out)
    timeout_seconds = execution.timeout_seconds
    if timeout_seconds is None:
        timeout_seconds = action.definition.timeout_seconds
    out.granted.append(
        Granted(
            execution.id, execution.grant, execution.attempt, queue, worker, execution.expires_at,
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
        assert member.queue is not None
        execution = _take_next(state, member.queue, member.priority, member.ticket, out)
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


def _take_next(state: State, queue: Queue, priority: int, ticket: int, out: Decisions) -> Execution:
    """Take the next execution of a queue out of it, with its slot."""
    action = queue.action
    taken = transitions.take_out_of_queue(state, queue, priority, ticket)
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


def _grant_ahead(state: State, pool: PoolState, out: Decisions, grants_max: int) -> bool:
    """Give what is next in a pool to a worker beyond its slots, some at once; False: none may be.

    What needs a free slot is passed by nothing: what is at its workers ends, until it has one.
    """
    crews = [crew for crew in pool.crews.values() if crew.line.entries and not pool.definition.paused]
    if len(crews) > 1:
        crews.sort(key=lambda crew: crew.line.rank(crew.line.head()))
    passed: set[Worker] = set()
    for crew in crews:
        member = crew.line.head().member
        if _may_be_ahead(state, member):
            could = [
                worker
                for worker in crew.workers
                if room_ahead(worker, member.action) > 0
                and worker not in passed
                and (len(worker.pools) == 1 or _has_turn(state, worker, pool))
            ]
            if could:
                home = gathering_at(member)
                worker = home if home in could else max(could, key=lambda each: each.free / each.concurrency)
                is_alone = len(crews) == len(worker.pools) == 1
                most = len(out.granted) + (member.action.startable // len(could) if is_alone else 1)
                _fill(state, crew, worker, out, min(most, grants_max))
                return True
        passed.update(crew.workers)
    return False


def _fill(state: State, crew: Crew, worker: Worker, out: Decisions, grants_max: int) -> None:
    """Give a worker the next of a crew beyond its slots: one, and more while the turn may grant more."""
    watch(state, worker, STALLED_SECONDS)
    entry = crew.line.first()
    while (
        entry is not None
        and _may_be_ahead(state, entry.member)
        and room_ahead(worker, entry.member.action) > 0
    ):
        _grant(state, entry.member, worker, out)
        if len(out.granted) >= grants_max:
            return
        apply_changes(state)
        entry = crew.line.first()


def _may_be_ahead(state: State, member: Member) -> bool:
    return member.action.pace > 0 and not _is_suspect(state, member.ticket)


def _is_suspect(state: State, ticket: int) -> bool:
    execution = state.executions.get(ticket)
    return execution is not None and execution.is_suspect


def _has_turn(state: State, worker: Worker, pool: PoolState) -> bool:
    """Return whether nothing of a pool whose turn comes earlier waits for a slot of a worker."""
    waiting = {
        crew.pool
        for crew in worker.crews
        if crew.line.entries and crew.free <= 0 and not crew.pool.definition.paused
    }
    return next(name for name in worker.pools if state.pools.get(name) in waiting) == pool.definition.name


def _extend_runs(state: State, out: Decisions, grants_max: int) -> bool:
    """Extend the runs of queues with a limit where nothing waits for their worker; False: none could be."""
    before = len(out.granted)
    for queue in list(state.runs):
        if len(out.granted) >= grants_max:
            break
        count = min(missing(queue), grants_max - len(out.granted))
        if count <= 0 or _is_suspect(state, queue.head()[1]):
            del state.runs[queue]
            continue
        worker = next(iter(queue.at))
        if is_contended(worker):
            continue
        del state.runs[queue]
        for _ in range(count):
            priority, ticket = queue.head()
            if _is_suspect(state, ticket):
                break
            add_surplus(queue, worker, (priority, ticket))
            _give(state, _take_next(state, queue, priority, ticket, out), worker, out)
        watch(state, worker, STALLED_SECONDS)
    return len(out.granted) > before


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
