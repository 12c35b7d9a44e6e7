"""Runs: what a worker gets beyond what may run at once, so that it starts the next execution itself.

A plain action has runs while its executions are short: a slot ends several within a *horizon*.

- A queue with a limit, all of which is at one worker, may have a horizon's worth there beyond its limit, its
  *surplus*. The worker starts as many at once as the limit says, so limit and order hold (P1, P2). It needs
  no worker slot, and is given only where nothing waits for a slot of that worker (P12). Before the queue
  moves to another worker, everything beyond its limit has ended or was returned.
- A worker without a free slot may have a horizon's worth beyond its slots, in the order of its pools.

The surplus is `scheduled`: it neither waits in its queue nor is active, so `queue_length` stays a sum.
"""

from math import ceil
from typing import Final

from turnstile.common.domain.identifiers import Grant
from turnstile.executor.queue_manager.decisions import Decisions, Limited, Recalled
from turnstile.executor.queue_manager.definitions import Action
from turnstile.executor.queue_manager.state import (
    ActionState,
    Execution,
    Member,
    Queue,
    State,
    Worker,
)

HORIZON_SECONDS: Final = 0.1
STALLED_SECONDS: Final = 3 * HORIZON_SECONDS
"""What waits at a worker for longer is recalled."""
AHEAD_MAX: Final = 256
"""Most of a queue beyond its limit; with more urgent ones: twice that."""
AHEAD_OF_SLOTS_MAX: Final = 1024
"""Most at a worker beyond its slots, of all queues: with many slots it ends as many between two turns."""
AHEAD_BYTES_MAX: Final = 1024 * 1024
"""Most of what the submitters gave to these; more of the first ones, whose size is not known yet."""
_REFILL: Final = 0.85
"""A run is extended when at most this share of it is left: messages with few executions cost too much."""
_SHORTEST_SECONDS: Final = 0.001
_LEARNING: Final = 0.1
_FORGETTING: Final = 0.99


# Which actions have runs.


def learn(state: State, action: ActionState, seconds: float) -> None:
    """Note how long an attempt ran: the mean of an action decides whether it has runs."""
    if may_have_runs(action.definition):
        seconds = max(seconds, 0.0)
        before = seconds if action.seconds is None else action.seconds
        action.seconds = before + _LEARNING * (seconds - before)
        if not action.pace:
            state.dirty_pools[action.crew.pool] = None
        set_pace(action)


def note_size(action: ActionState, size_bytes: int) -> None:
    """Note the size of an offer: runs are bounded in bytes too."""
    action.offer_bytes = max(float(size_bytes), _FORGETTING * action.offer_bytes)


def may_have_runs(action: Action) -> bool:
    """Return whether its executions pass no gate but queue and pool, and may begin again if a worker is lost.

    What waits at a lost worker may have started, so an action that forbids a second start has no runs.
    """
    is_plain = action.max_concurrent_total is None and not action.uses and action.rate is None
    return action.runs and is_plain and action.on_worker_lost == "requeue" and action.max_reclaims > 0


def set_pace(action: ActionState) -> None:
    """Find out again whether an action has runs."""
    seconds = action.seconds
    is_short = seconds is not None and seconds < HORIZON_SECONDS and may_have_runs(action.definition)
    action.pace = HORIZON_SECONDS / max(seconds or 0.0, _SHORTEST_SECONDS) if is_short else 0.0


def _ahead(action: ActionState, slots: int, count_max: int) -> int:
    """Return a horizon's worth of an action for this many slots."""
    most = min(count_max, ceil(slots * action.pace))
    if most * action.offer_bytes > AHEAD_BYTES_MAX:
        return int(AHEAD_BYTES_MAX / action.offer_bytes)
    return most


# Runs of queues with a limit.


def gathering_at(member: Member) -> Worker | None:
    """Return the worker that has most of the queue of a member, of those where it could have a run."""
    action, queue = member.action, member.queue
    assert queue is not None
    if not action.pace or not queue.at or (limit := queue.limit) is None:
        return None
    large = [worker for worker in queue.at if worker.concurrency >= limit and action.crew in worker.crews]
    return max(large, key=queue.at.__getitem__, default=None)


def missing(queue: Queue) -> int:
    """Return how many more the run of a queue with a limit may have now, if nothing waits for its worker."""
    action, limit = queue.action, queue.limit
    if limit is None or not queue.length or len(queue.at) != 1 or action.is_closed:
        return 0
    home, most = next(iter(queue.at)), _ahead(action, limit, AHEAD_MAX)
    pending = len(queue.holders) - limit
    is_possible = home.takes and home.concurrency >= limit and action.crew in home.crews
    if pending < 0 or not is_possible or action.crew.pool.definition.paused:
        return 0
    if pending <= _REFILL * most:
        return min(most - pending, queue.length)
    # What starts before some of the run joins it at its place. The last of it may have been returned.
    head = queue.head()
    is_urgent = (
        pending < 2 * most and head < queue.last and any(_place(each) > head for each in queue.holders)
    )
    return int(is_urgent)


def is_contended(worker: Worker) -> bool:
    """Return whether something waits for a slot of a worker; meaningful when nothing more can be granted."""
    return any(crew.line.entries and not crew.pool.definition.paused for crew in worker.crews)


def add_surplus(queue: Queue, worker: Worker, place: tuple[int, int]) -> None:
    """Note that one more with this priority and id is granted to the run of a queue."""
    queue.surplus += 1
    worker.surplus += 1
    queue.action.surplus += 1
    queue.home, queue.last = worker, max(queue.last, place)


def shrink(state: State, queue: Queue) -> None:
    """Let what is in a run have the slots that became free. A lowered limit makes nothing that runs wait."""
    limit = queue.limit
    _set_surplus(state, queue, 0 if limit is None else min(queue.surplus, max(len(queue.holders) - limit, 0)))


def _set_surplus(state: State, queue: Queue, surplus: int) -> None:
    if surplus != queue.surplus:
        assert queue.home is not None
        queue.home.surplus += surplus - queue.surplus
        queue.action.surplus += surplus - queue.surplus
        state.changed_workers[queue.home] = None
        queue.surplus = surplus
        if not surplus:
            queue.home, queue.last = None, (0, 0)


def resume(state: State) -> None:
    """Let go on what was in runs before a load: all beyond the limit of a queue, if it is at one worker."""
    for action in state.actions.values():
        if not may_have_runs(action.definition):
            continue
        for queue in action.queues.values():
            limit = queue.limit
            if limit is not None and len(queue.at) == 1 and len(queue.holders) > limit:
                (worker,) = queue.at
                for execution in sorted(queue.holders, key=_place)[limit:]:
                    add_surplus(queue, worker, _place(execution))
                state.changed_workers[worker] = None
                watch(state, worker, STALLED_SECONDS)


def _place(execution: Execution) -> tuple[int, int]:
    return execution.priority, execution.id


# Runs at workers without a free slot.


def room_ahead(worker: Worker, action: ActionState) -> int:
    """Return how many more of an action may wait for the slots of a worker, of those that short ones use."""
    if not worker.takes:
        return 0
    return _ahead(action, worker.concurrency - worker.lasting, AHEAD_OF_SLOTS_MAX) + min(worker.free, 0)


# What workers are told.


def tell(queue: Queue, worker: Worker, state: State, out: Decisions) -> None:
    """Tell a worker how many of a queue may run at once; recall what it may not start now."""
    out.limited.append(Limited(queue, worker.id))
    is_over = queue.limit is not None and queue.held - queue.surplus > queue.limit
    is_paused = queue.action.definition.paused or queue.action.crew.pool.definition.paused
    if is_over or is_paused or any(each.queue is queue for each in worker.recalled):
        recall(queue, worker, state, out)


def recall(queue: Queue, worker: Worker, state: State, out: Decisions) -> None:
    """Ask a worker to return what it has not started of a queue, of all that was granted until now."""
    out.recalled.append(Recalled(queue, worker.id, Grant(state.epoch, state.grant_counter)))
    here = (each for each in queue.holders if each.worker is worker and each.started_at is None)
    worker.recalled |= dict.fromkeys(here)
    state.changed_workers[worker] = None


def note_return(execution: Execution, state: State, out: Decisions) -> None:
    """Take an execution that had not started out of its run; recall what is behind it, if that was not done.

    The worker starts nothing of the queue until it hears that: what it returned comes first.
    """
    worker, queue = execution.worker, execution.queue
    assert worker is not None
    if execution not in worker.recalled:
        recall(queue, worker, state, out)
    _set_surplus(state, queue, max(queue.surplus - 1, 0))


# Runs that stall.


def watch(state: State, worker: Worker, seconds: float) -> None:
    """Look later whether what waits at a worker has started."""
    if not worker.is_watched:
        worker.is_watched = True
        state.set_timer(state.after(seconds), worker)


def recall_stalled(state: State, worker: Worker, out: Decisions) -> None:
    """Recall what has waited at a worker for too long: its action is not as short as it was."""
    worker.is_watched = False
    is_waiting = worker.surplus or worker.used > worker.concurrency
    if state.workers.get(worker.id) is not worker or not is_waiting:
        return
    late: dict[Queue, int] = {}
    before = state.after(-STALLED_SECONDS)
    for each in worker.held.values():
        if each.scheduled_at is not None and each.scheduled_at <= before:
            late[each.queue] = late.get(each.queue, 0) + 1
    slots = {queue: queue.at[worker] - queue.surplus for queue in late}
    is_full = sum(min(count, slots[queue]) for queue, count in late.items()) > worker.concurrency
    for queue, count in late.items():
        action = queue.action
        is_stalled = is_full or count > slots[queue]
        if is_stalled and may_have_runs(action.definition):
            recall(queue, worker, state, out)
            action.seconds = max(action.seconds or 0.0, STALLED_SECONDS)
            set_pace(action)
    watch(state, worker, HORIZON_SECONDS)
