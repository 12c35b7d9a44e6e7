"""Pools: which workers can run an action, and which of them gets the next execution.

Actions that the same workers serve form a crew, so that a worker slot never idles beside an execution that
another worker of the pool cannot run.
"""

from turnstile.executor.queue_manager.definitions import Pool
from turnstile.executor.queue_manager.gates import enlist, relist, unlist
from turnstile.executor.queue_manager.state import ActionState, Crew, PoolState, State, Worker


def pool_of(state: State, name: str) -> PoolState:
    """Return a pool, which exists as soon as an action or a worker names it."""
    pool = state.pools.get(name)
    if pool is None:
        pool = state.pools[name] = PoolState(Pool(name=name))
    return pool


def crew_of(state: State, pool: PoolState, workers: tuple[Worker, ...]) -> Crew:
    """Return the crew of these workers in a pool."""
    key = tuple(worker.id for worker in workers)
    crew = pool.crews.get(key)
    if crew is None:
        crew = pool.crews[key] = Crew(pool, workers)
        for worker in workers:
            worker.breadth += 1
    return crew


def assign_crew(state: State, action: ActionState) -> None:
    """Find the workers that serve an action now; it waits in the line of their crew from then on."""
    pool = pool_of(state, action.definition.pool)
    workers = tuple(worker for worker in state.workers.values() if worker.serves(action.definition))
    crew = crew_of(state, pool, workers)
    if crew is not action.crew:
        unlist(state, action)
        for execution in action.holding:
            unlist(state, execution)
            if action.crew.holding.pop(execution, 0) is None:
                crew.holding[execution] = None
        action.crew = crew
        for execution in action.holding:
            enlist(state, execution, execution.priority, execution.id)
        relist(state, action)
    state.dirty_pools[pool] = None


def reassign_crews(state: State, pools: frozenset[str]) -> None:
    """The workers of these pools changed."""
    for action in state.actions.values():
        if action.definition.pool in pools:
            assign_crew(state, action)
    used = {action.crew for action in state.actions.values()}
    for name in sorted(pools):
        pool = pool_of(state, name)
        for key, crew in list(pool.crews.items()):
            if crew not in used:
                del pool.crews[key]
                for worker in crew.workers:
                    worker.breadth -= 1
        state.dirty_pools[pool] = None


def worker_for(crew: Crew) -> Worker:
    """Return the worker that gets the next execution of a crew with room.

    The one that serves the fewest actions first, so that what only others can run finds their slots free; among
    equals the one with the smallest share of its slots in use.
    """
    free = [worker for worker in crew.workers if worker.free > 0]
    if len(free) == 1:
        return free[0]
    return min(free, key=lambda worker: (worker.breadth, len(worker.held) / worker.concurrency))


def slot_freed(state: State, worker: Worker) -> None:
    """A worker slot is free: its pools take turns at it."""
    for name in worker.pools:
        pool = state.pools.get(name)
        if pool is not None:
            state.dirty_pools[pool] = None


def served(worker: Worker, pool: PoolState) -> None:
    """A worker slot went to this pool: the other pools of the worker come before it from now on."""
    if len(worker.pools) > 1:
        name = pool.definition.name
        worker.pools = (*(other for other in worker.pools if other != name), name)
