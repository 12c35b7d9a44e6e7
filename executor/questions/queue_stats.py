"""What waits in the queues of an action and at each gate, by reason: counts, and pages of lists.

Counts are the reasons of `explain`, summed: one for all that an action has ready, and the limit for the rest.
Those of an action with many keys take several steps, between which turns go on.
"""

from collections.abc import Generator
from heapq import nsmallest
from itertools import chain, islice
from typing import Final, NamedTuple, get_args

from turnstile.executor.questions.explain import (
    Counted,
    Place,
    copied_order_at,
    is_closed,
    members_at,
    order_at,
    startable,
    stop_of,
    with_worker_slots,
)
from turnstile.executor.queue_manager.state import (
    ActionState,
    Execution,
    PoolState,
    Queue,
    ResourceGate,
    State,
)

COUNTED: Final[tuple[Counted, ...]] = get_args(Counted)
KEYS_MAX: Final = 100
_STEP: Final = 250
"""Queues that one step counts."""
_WALKED: Final = 1000
"""Executions that one step passes on the way to a page."""


class KeyStats(NamedTuple):
    """The queue of one key."""

    key: str
    queue_length: int
    active_count: int
    held_waiting: int


class QueueStats(NamedTuple):
    """The queues of an action. `queue_length` has what waits at later gates, and is the sum of `waiting`.

    `active_count` has at most the limit of each queue: what waits in a run is in neither (`runs`).
    """

    queue_length: int
    active_count: int
    held_waiting: int
    delayed: int
    max_concurrent: int | None
    oldest_enqueued_at: float | None
    """Of the smallest id that waits."""
    total_enqueued: int
    total_completed: int
    paused: bool
    waiting: dict[Counted, int]
    by_key: tuple[KeyStats, ...]
    """The longest queues of keys."""


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


def queue_stats(state: State, ref: str) -> Generator[None, None, QueueStats | None]:
    """Count what waits and runs of an action, in steps of some queues; None: it is unknown."""
    action = state.actions.get(ref)
    if action is None:
        return None
    queues = list(action.queues.values())
    length = ready = delayed = active = 0
    longest: list[tuple[int, int, str, Queue]] = []
    oldest = min(((each.id, each.queued_at) for each in action.holding), default=None)
    for start in range(0, len(queues), _STEP):
        if start:
            yield
        part = queues[start : start + _STEP]
        length += sum(queue.length for queue in part)
        ready += sum(queue.startable for queue in part)
        delayed += sum(queue.delayed for queue in part)
        active += sum(queue.active for queue in part)
        keys = (
            (-queue.length - queue.holding, -queue.active, queue.key, queue) for queue in part if queue.key
        )
        longest = nsmallest(KEYS_MAX, chain(longest, keys))
        lists = chain.from_iterable(queue.waiting.values() for queue in part)
        heads = ((waiting.first(), waiting.first_queued_at()) for waiting in lists)
        oldest = min(chain(heads, () if oldest is None else (oldest,)), default=None)
    holding = len(action.holding)
    return QueueStats(
        queue_length=length + holding, active_count=active, held_waiting=holding,
        delayed=delayed, max_concurrent=action.definition.max_concurrent,
        oldest_enqueued_at=None if oldest is None else oldest[1], total_enqueued=action.enqueued,
        total_completed=action.completed, paused=action.definition.paused,
        waiting=_by_reason(state, action, length, ready),
        by_key=tuple(_of_key(queue) for *_, queue in longest),
    )  # fmt: skip


def _by_reason(state: State, action: ActionState, length: int, ready: int) -> dict[Counted, int]:
    stop, counts = stop_of(state, action), dict.fromkeys(COUNTED, 0)
    counts["limit"] = 0 if is_closed(stop) else length - ready
    counts[stop.reason] += length - counts["limit"]
    for execution in action.holding:
        counts[stop_of(state, execution).reason] += 1
    return counts


def _of_key(queue: Queue) -> KeyStats:
    return KeyStats(queue.key, queue.length + queue.holding, queue.active, queue.holding)


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
