"""Pools: which workers can run an action, and which of them gets the next execution.

Actions that the same workers serve form a crew, so that a worker slot never idles beside an execution that
another worker of the pool cannot run.
"""

from collections.abc import Iterable
from heapq import heappop

from turnstile.executor.queue_manager.definitions import Pool
from turnstile.executor.queue_manager.gates import enlist, offer, unlist
from turnstile.executor.queue_manager.state import ActionState, Crew, PoolState, State, Worker


def pool_of(state: State, name: str) -> PoolState:
    """Return a pool, which exists as soon as an action or a worker names it."""
    pool = state.pools.get(name)
    if pool is None:
        pool = state.pools[name] = PoolState(Pool(name=name))
    return pool


def crew_of(pool: PoolState, workers: tuple[Worker, ...]) -> Crew:
    """Return the crew of these workers in a pool."""
    key = tuple(worker.id for worker in workers)
    crew = pool.crews.get(key)
    if crew is None:
        crew = pool.crews[key] = Crew(pool, workers)
        for worker in workers:
            worker.crews[crew] = None
            offer(worker)
    return crew


def take_out(state: State, action: ActionState) -> None:
    """Remove an action and what holds units of it from all lines, until `put_in`."""
    unlist(state, action)
    for execution in action.holding:
        unlist(state, execution)


def put_in(state: State, action: ActionState) -> None:
    """Let an action and what holds units of it wait again where they belong now."""
    for execution in action.holding:
        enlist(state, execution)
    state.changed_actions[action] = None


def assign_crew(state: State, action: ActionState) -> None:
    """Find the workers that serve an action now; it waits in the line of their crew from then on."""
    pool = pool_of(state, action.definition.pool)
    workers = tuple(worker for worker in state.workers.values() if worker.serves(action.definition))
    before, after = action.crew, crew_of(pool, workers)
    if after is before:
        return
    take_out(state, action)
    for execution in action.holding:
        if before.holding.pop(execution, 0) is None:
            after.holding[execution] = None
    action.crew = after
    after.actions[action] = None
    leave(before, action)
    put_in(state, action)
    state.dirty_pools[pool] = None


def leave(crew: Crew, action: ActionState) -> None:
    """Remove an action from its crew, which ends with its last action."""
    del crew.actions[action]
    if not crew.actions:
        del crew.pool.crews[tuple(worker.id for worker in crew.workers)]
        for worker in crew.workers:
            del worker.crews[crew]
            offer(worker)


def reassign_crews(state: State, pools: Iterable[str]) -> None:
    """Note that the workers of these pools changed."""
    for action in state.actions.values():
        if action.definition.pool in pools:
            assign_crew(state, action)


def worker_for(crew: Crew) -> Worker:
    """Return the worker that gets the next execution of a crew with room.

    The one that serves the fewest crews first, so that what only others can run finds their slots free; among
    equals the one with the smallest share of its slots in use.
    """
    while True:
        breadth, share, _, worker = crew.offers[0]
        if worker.free > 0 and worker.burden == (breadth, share):
            return worker
        heappop(crew.offers)


def served(worker: Worker, pool: PoolState, grant: int) -> None:
    """Note that a worker slot went to this pool: other pools of the worker come before it from now on."""
    pool.served = grant
    if len(worker.pools) > 1:
        name = pool.definition.name
        worker.pools = (*(other for other in worker.pools if other != name), name)
