"""What each input and the passing of time do to the state. Nothing here grants: `decide` does, afterwards.

Reports name a grant. One about a grant that is over changes nothing, however often or late it comes (P3, P6).
What returns to its queue releases all that it held, and keeps its id, so it waits at its old place (P2).
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import Final, assert_never
from zlib import crc32

from turnstile.common.domain.errors import Code
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager import inputs
from turnstile.executor.queue_manager.decisions import (
    Admitted,
    Asked,
    AttemptOver,
    Cancelled,
    Decisions,
    Finished,
    Moved,
    Passage,
    Refused,
    Waited,
)
from turnstile.executor.queue_manager.definitions import Rate
from turnstile.executor.queue_manager.gates import apply_changes, is_closed, rank_of, recount, unlist
from turnstile.executor.queue_manager.lines import FairClock, Line
from turnstile.executor.queue_manager.pools import (
    assign_crew,
    crew_of,
    leave,
    pool_of,
    put_in,
    reassign_crews,
    take_out,
)
from turnstile.executor.queue_manager.rates import RateWindow
from turnstile.executor.queue_manager.retries import retry_delay_seconds
from turnstile.executor.queue_manager.runs import (
    learn,
    note_return,
    recall_stalled,
    set_pace,
    tell,
)
from turnstile.executor.queue_manager.state import (
    PLAIN,
    ActionState,
    Execution,
    Queue,
    ResourceGate,
    State,
    Worker,
)
from turnstile.executor.queue_manager.waiting import Waiting, WaitingList

STEPS_MAX: Final = 5000
"""Most timers, expiries or queues of a changed definition that one turn looks at; the next turn goes on."""


def apply(each: inputs.Input, state: State, out: Decisions) -> None:  # noqa: PLR0912
    """Apply one input."""
    match each:
        case inputs.Admit():
            _admit(each, state, out)
        case inputs.Ended():
            _ended(each, state, out)
        case inputs.Started():
            _started(each, state, out)
        case inputs.Returned():
            _returned(each, state, out)
        case inputs.Overdue():
            _overdue(each, state, out)
        case inputs.Cancel():
            _cancel(each, state, out)
        case inputs.WorkerChanged():
            _worker_changed(each, state, out)
        case inputs.WorkerGone():
            _worker_gone(each, state, out)
        case inputs.DefineAction():
            _define_action(each, state, out)
        case inputs.DeleteAction():
            _delete_action(each, state, out)
        case inputs.SetKey():
            _set_key(each, state)
        case inputs.DefineResource():
            _define_resource(each, state, out)
        case inputs.DeleteResource():
            _delete_resource(each, state, out)
        case inputs.DefinePool():
            _define_pool(each, state, out)
        case inputs.DeletePool():
            _delete_pool(each, state, out)
        case _:
            assert_never(each)


# Admission.


def _admit(each: inputs.Admit, state: State, out: Decisions) -> None:
    action = state.actions.get(each.action_ref)
    if action is None:
        out.refused.append(Refused(Code.UNKNOWN_ACTION, each.action_ref, each.source))
        return
    queue = queue_for(action, each.key)
    is_delayed = each.run_at is not None and each.run_at > state.now
    refusal = _too_heavy(action) if action.uses else None
    if refusal is None and not is_delayed:
        refusal = _queue_full(queue)
    if refusal is not None:
        out.refused.append(Refused(*refusal, each.source))
        state.changed_queues[queue] = None
        return
    execution_id, state.next_id = state.next_id, state.next_id + 1
    action.enqueued += 1
    ttl_seconds = action.definition.ttl_seconds if each.ttl_seconds is None else each.ttl_seconds
    expires_at = inf if ttl_seconds is None or is_delayed else state.after(ttl_seconds)
    if is_delayed or each.timeout_seconds is not None:
        execution = Execution(execution_id, queue, each.priority, state.now, expires_at)
        execution.timeout_seconds, execution.ttl_seconds = each.timeout_seconds, ttl_seconds
        state.executions[execution_id] = execution
        if is_delayed and each.run_at is not None:
            _delay(state, execution, round(each.run_at, 6), out)
        else:
            record(execution, out)
    if not is_delayed:
        enqueue(state, queue, each.priority, Waiting(execution_id, state.now, expires_at))
    out.admitted.append(
        Admitted(
            execution_id, queue, each.priority, state.now, each.run_at if is_delayed else None, expires_at,
            None if is_delayed else queue.ahead_of(each.priority) + queue.waiting[each.priority].length,
            each.source,
        )
    )  # fmt: skip


def _too_heavy(action: ActionState) -> tuple[Code, str] | None:
    for use, gate in zip(action.uses, action.gates, strict=True):
        # A capacity of 0 is like a pause.
        if use.units > gate.definition.capacity > 0:
            name, units, capacity = use.resource, use.units, gate.definition.capacity
            return Code.INVALID_PARAMETERS, (
                f"uses: the action '{action.ref}' takes {units} units of the resource '{name}', whose"
                f" capacity is {capacity}; raise it: executor resources put {name} --capacity {units}, or let"
                " the action take fewer units"
            )
    return None


def _queue_full(queue: Queue) -> tuple[Code, str] | None:
    """Refuse what would wait behind more than the bound: beyond those that can start at once."""
    definition = queue.action.definition
    bound = definition.max_queued
    if bound is None and definition.when_full == "reject":
        bound = 0
    if bound is None or (queue.limit is None and not definition.paused):
        return None
    free = 0 if definition.paused else max((queue.limit or 0) - queue.held, 0)
    length = queue.length + queue.holding + queue.surplus
    if length + 1 - free <= bound:
        return None
    of_limit = "without a limit" if queue.limit is None else f"of at most {queue.limit}"
    return Code.QUEUE_FULL, (
        f"action_ref: the queue of {definition.ref!r} is full: {max(length - free, 0)} waiting of at most"
        f" {bound}, {queue.active} running {of_limit}; try again later"
    )


def queue_for(action: ActionState, key: str) -> Queue:
    """Return the queue of a key, created when it is needed."""
    queue = action.queues.get(key)
    if queue is None:
        queue = action.queues[key] = Queue(action, key)
    return queue


def enqueue(state: State, queue: Queue, priority: int, entry: Waiting) -> None:
    """Put an execution into its queue at the place of its id."""
    waiting = queue.waiting.get(priority)
    if waiting is None:
        waiting = queue.waiting[priority] = WaitingList()
    if entry.expires_at < waiting.soonest:
        if waiting.soonest < inf:
            state.void_timer()
        state.set_timer(entry.expires_at, (queue, priority))
    waiting.add(entry)
    queue.length += 1
    state.changed_queues[queue] = None


def take_out_of_queue(state: State, queue: Queue, priority: int, execution_id: int) -> Waiting | None:
    """Remove and return what waits in a queue; a list that has nothing any more goes, with its timer."""
    waiting = queue.waiting[priority]
    taken = waiting.remove(execution_id)
    queue.length -= 1
    if not waiting.length:
        del queue.waiting[priority]
        if waiting.soonest < inf:
            state.void_timer()
    return taken


# Reports of workers.


def _reported(state: State, execution_id: int, grant: Grant) -> Execution | None:
    execution = state.executions.get(execution_id)
    return execution if execution is not None and execution.grant == grant else None


def _started(each: inputs.Started, state: State, out: Decisions) -> None:
    execution = _reported(state, each.execution_id, each.grant)
    if execution is None or execution.started_at is not None:
        return
    _move(execution, Status.RUNNING, each.at, out)
    execution.status, execution.started_at = Status.RUNNING, each.at
    assert execution.worker is not None
    execution.worker.recalled.pop(execution, None)
    state.changed_workers[execution.worker] = None
    record(execution, out)


def _ended(each: inputs.Ended, state: State, out: Decisions) -> None:
    execution = _reported(state, each.execution_id, each.grant)
    if execution is None:
        out.stale.append(each.source)
        return
    if each.started_at is not None:
        execution.started_at = min(each.started_at, state.now)
        if each.completed_at is not None:
            learn(state, execution.action, each.completed_at - each.started_at)
    execution.failures += each.status is Status.FAILED
    is_retryable = each.is_retryable and each.status is Status.FAILED
    due_at = _retried_at(state, execution, each) if is_retryable else None
    if due_at is None:
        error = None
        if each.status is Status.CANCELLED and execution.cancel_reason is not None:
            # The operator's reason wins: the worker knows only that the execution was cancelled.
            error = "Cancelled", execution.cancel_reason
        finish(state, execution, each.status, out, error=error, report=each)
    else:
        if execution.started_at is not None:
            # A short attempt was not reported as started.
            _move(execution, Status.RUNNING, execution.started_at, out)
            execution.status = Status.RUNNING
        _attempt_over(state, execution, "retried", out, each)
        execution.is_suspect = False
        release(state, execution)
        _delay(state, execution, due_at, out)


def _retried_at(state: State, execution: Execution, each: inputs.Ended) -> float | None:
    """Return when a failed attempt is tried again; None: never. A cancel wins, and a ttl that ends before."""
    if execution.cancel_reason is not None:
        return None
    delay = retry_delay_seconds(
        execution.queue.action.definition.retry,
        failures=execution.failures,
        spread=_spread(execution),
    )
    if delay is None:
        return None
    due_at = state.after(delay if each.delay_seconds is None else max(each.delay_seconds, 0.0))
    return due_at if due_at < execution.expires_at else None


def _spread(execution: Execution) -> float:
    """Return a number from -1 to 1 that differs between attempts, and is the same each time."""
    return crc32(f"{execution.id}.{execution.attempt}".encode()) / 0x7FFFFFFF - 1


def _returned(each: inputs.Returned, state: State, out: Decisions) -> None:
    execution = _reported(state, each.execution_id, each.grant)
    if execution is None:
        return
    has_started = each.had_started or execution.started_at is not None
    if not has_started:
        note_return(execution, state, out)
    if execution.cancel_reason is not None:
        finish(state, execution, Status.CANCELLED, out, error=("Cancelled", execution.cancel_reason))
    elif has_started and execution.action.definition.on_worker_lost == "abandon":
        assert execution.worker is not None
        message = f"worker {execution.worker.id} returned it after its start, and it may not run again"
        finish(state, execution, Status.ABANDONED, out, error=("Returned", message))
    else:
        _attempt_over(state, execution, "returned", out)
        _begin_again(state, execution, out)


def _overdue(each: inputs.Overdue, state: State, out: Decisions) -> None:
    execution = _reported(state, each.execution_id, each.grant)
    if execution is None or execution.worker is None:
        return
    reason = execution.cancel_reason
    out.asked.append(Asked(execution.worker.id, execution.id, each.grant, reason or "overdue"))
    if reason is not None:
        finish(state, execution, Status.CANCELLED, out, error=("Cancelled", reason))
    else:
        message = f"ran longer than its timeout, and its worker {execution.worker.id} did not stop it"
        finish(state, execution, Status.TIMEOUT, out, error=("Timeout", message))


def _attempt_over(
    state: State, execution: Execution, outcome: str, out: Decisions, report: inputs.Ended | None = None
) -> None:
    assert execution.worker is not None
    assert execution.scheduled_at is not None
    out.attempts.append(
        AttemptOver(
            execution.id, execution.attempt, outcome, execution.worker.id, execution.scheduled_at,
            execution.started_at, _completed_at(state, report), report,
        )
    )  # fmt: skip


def _completed_at(state: State, report: inputs.Ended | None) -> float:
    """Return when an attempt ended: not after what is granted in its place, however its worker's clock is."""
    if report is None or report.completed_at is None:
        return state.now
    return min(report.completed_at, state.now)


# Cancels.


def _cancel(each: inputs.Cancel, state: State, out: Decisions) -> None:
    execution = state.executions.get(each.execution_id)
    if execution is None:
        execution = _plainly_waiting(state, each)
    if execution is None:
        out.cancelled.append(Cancelled(None, True, each))
        return
    if execution.worker is None:
        _leave_waiting(state, execution)
        finish(state, execution, Status.CANCELLED, out, error=("Cancelled", each.reason))
        out.cancelled.append(Cancelled(Status.CANCELLED, False, each))
        return
    if execution.cancel_reason is None:
        execution.cancel_reason = each.reason
        execution.cancel_requested_at = state.now
        record(execution, out)
    assert execution.grant is not None
    out.asked.append(Asked(execution.worker.id, execution.id, execution.grant, execution.cancel_reason))
    out.cancelled.append(Cancelled(execution.status, False, each))


def _plainly_waiting(state: State, each: inputs.Cancel) -> Execution | None:
    """Return an execution that is nothing but an entry in its waiting list."""
    queue = state.queue(each.action_ref, each.key)
    waiting = queue.waiting.get(each.priority) if queue is not None else None
    entry = waiting.find(each.execution_id) if waiting is not None else None
    if queue is None or entry is None:
        return None
    return Execution(entry.id, queue, each.priority, entry.queued_at, entry.expires_at)


def _leave_waiting(state: State, execution: Execution) -> None:
    """Take an execution without a worker out of where it waits; what it holds is released by `finish`."""
    queue = execution.queue
    if execution.status is Status.DELAYED:
        queue.delayed -= 1
        execution.due_at = None
        state.void_timer()
    elif execution not in queue.action.holding:
        take_out_of_queue(state, queue, execution.priority, execution.id)


# The end of an attempt, and what follows it.


def finish(
    state: State,
    execution: Execution,
    status: Status,
    out: Decisions,
    *,
    error: tuple[str, str] | None = None,
    report: inputs.Ended | None = None,
) -> None:
    """End an execution: it releases everything."""
    worker_id = None if execution.worker is None else execution.worker.id
    out.finished.append(
        Finished(
            execution.id, status, execution.queue, execution.attempt, error, worker_id,
            execution.scheduled_at, execution.started_at, _completed_at(state, report),
            _passages_of(execution), report, execution.failures, execution.reclaims, execution.queued_at,
            execution.status,
        )
    )  # fmt: skip
    execution.queue.action.completed += 1
    if execution.is_recorded:
        out.changed[execution.id] = None
    state.executions.pop(execution.id, None)
    state.patience.pop(execution.id, None)
    execution.grant = None
    release(state, execution)


def _passages_of(execution: Execution) -> tuple[Passage | Waited, ...]:
    """Return the gates that an execution has passed, and where it waits behind or before them."""
    action, passages = execution.action, execution.passages
    if execution.status is not Status.QUEUED or not action.has_gates:
        return passages
    if not passages:
        return (Waited("queue", 1, execution.queued_at),)
    if execution.base < len(action.gates):
        gate, use = action.gates[execution.base], action.uses[execution.base]
        return (*passages, Waited(gate.name, use.units, passages[-1].passed_at))
    return passages


def release(state: State, execution: Execution) -> None:
    """Release worker slot, units, total and slot."""
    queue, action = execution.queue, execution.action
    worker, execution.worker = execution.worker, None
    is_holding = execution in action.holding
    if worker is not None:
        del worker.held[execution.id]
        worker.lasting -= not execution.is_short
        execution.is_short = False
        left = queue.at[worker] - 1
        if left:
            queue.at[worker] = left
        else:
            del queue.at[worker]
        worker.recalled.pop(execution, None)
        state.changed_workers[worker] = None
    elif is_holding:
        unlist(state, execution)
        del action.holding[execution]
        action.crew.holding.pop(execution, None)
        state.dirty_pools[action.crew.pool] = None
        queue.holding -= 1
        if action.window is not None:
            action.window.kept -= 1
        if execution.expires_at < inf:
            state.void_timer()
    if worker is not None or is_holding:
        del queue.holders[execution]
        action.held -= 1
    for gate in execution.held_at:
        gate.held -= gate.holders.pop(execution)
        if is_holding and gate.window is not None:
            gate.window.kept -= 1
        state.changed_gates[gate] = None
    execution.held_at, execution.base, execution.is_impatient = (), 0, False
    state.changed_queues[queue] = None


def give_back(state: State, execution: Execution, out: Decisions) -> None:
    """Return an execution that waits between two gates to its queue, with everything that it held."""
    release(state, execution)
    _back_to_queue(state, execution, out)


def _give_back_all(state: State, action: ActionState, out: Decisions) -> None:
    for execution in list(action.holding):
        give_back(state, execution, out)


def _begin_again(state: State, execution: Execution, out: Decisions) -> None:
    """Return a granted execution to its queue: the next grant has a new number."""
    release(state, execution)
    execution.grant = execution.scheduled_at = execution.started_at = None
    _back_to_queue(state, execution, out)


def _back_to_queue(state: State, execution: Execution, out: Decisions) -> None:
    if execution.expires_at <= state.now:
        _end_expired(state, execution, out)
        return
    _move(execution, Status.QUEUED, state.now, out)
    execution.status = Status.QUEUED
    execution.passages = ()
    if execution.is_plain:
        state.executions.pop(execution.id, None)
    else:
        record(execution, out)
    entry = Waiting(execution.id, execution.queued_at, execution.expires_at)
    enqueue(state, execution.queue, execution.priority, entry)


def _delay(state: State, execution: Execution, due_at: float, out: Decisions) -> None:
    if execution.attempt:
        _move(execution, Status.DELAYED, state.now, out)
    execution.status = Status.DELAYED
    execution.due_at = due_at
    execution.grant = execution.scheduled_at = execution.started_at = None
    execution.passages = ()
    execution.queue.delayed += 1
    state.set_timer(due_at, execution)
    record(execution, out)


def _move(execution: Execution, status: Status, at: float, out: Decisions) -> None:
    """Note a change of status that nothing else shows."""
    if execution.status is not status:
        moved = Moved(execution.id, execution.queue, execution.status, status, execution.attempt, at)
        out.moved.append(moved)


def record(execution: Execution, out: Decisions) -> None:
    """Tell the ledger to keep more about it than that it waits or was granted."""
    execution.is_recorded = True
    out.changed[execution.id] = execution


# Time.


def pass_time(state: State, out: Decisions) -> None:
    """Do what is due: delays, expiries, starts of rates, patience."""
    steps = 0
    for timer in state.due_timers(state.now):
        steps += 1
        match timer.about:
            case Execution() as execution if execution.status is Status.DELAYED:
                _wake(state, execution, out)
            case Execution() as execution:
                _end_expired(state, execution, out)
            case Worker() as worker:
                recall_stalled(state, worker, out)
            case ResourceGate() as gate:
                if gate.window is not None:
                    gate.window.timer_at = inf
                state.changed_gates[gate] = None
            case ActionState() as action:
                if action.window is not None:
                    action.window.timer_at = inf
                if action.ticket in state.patience:
                    unlist(state, action)
                state.changed_actions[action] = None
            case (queue, priority):
                steps += _expire(state, queue, priority, out)
        if steps >= STEPS_MAX:
            out.is_unfinished = True
            return


def _wake(state: State, execution: Execution, out: Decisions) -> None:
    execution.queue.delayed -= 1
    execution.due_at = None
    if not execution.attempt:
        execution.queued_at = state.now
        execution.expires_at = inf if execution.ttl_seconds is None else state.after(execution.ttl_seconds)
    _back_to_queue(state, execution, out)


def _expire(state: State, queue: Queue, priority: int, out: Decisions) -> int:
    waiting = queue.waiting[priority]
    over = waiting.expired(state.now, STEPS_MAX)
    state.set_timer(waiting.soonest, (queue, priority))
    for execution_id in over:
        entry = take_out_of_queue(state, queue, priority, execution_id)
        assert entry is not None
        execution = state.executions.get(execution_id)
        if execution is None:
            execution = Execution(entry.id, queue, priority, entry.queued_at, entry.expires_at)
        _end_expired(state, execution, out)
    return len(over)


def _end_expired(state: State, execution: Execution, out: Decisions) -> None:
    ended_at = datetime.fromtimestamp(execution.expires_at, UTC).isoformat(timespec="milliseconds")
    message = f"did not start within its time to live, which ended at {ended_at.replace('+00:00', 'Z')}"
    error = "Expired", message
    finish(state, execution, Status.EXPIRED, out, error=error)


# Workers.


def _worker_changed(each: inputs.WorkerChanged, state: State, out: Decisions) -> None:
    worker = state.workers.get(each.worker_id)
    if worker is None:
        worker = state.workers[each.worker_id] = Worker(each.worker_id)
    pools = frozenset(worker.pools) | each.pools
    has_moved = frozenset(worker.pools) != each.pools or worker.actions != each.actions
    if has_moved:
        worker.pools, worker.actions = tuple(sorted(each.pools)), each.actions
    if each.is_answer:
        for queue in dict.fromkeys(execution.queue for execution in worker.held.values()):
            tell(queue, worker, state, out)
    worker.concurrency, worker.is_taking = each.concurrency, each.is_taking
    recount(state, worker)
    if has_moved:
        reassign_crews(state, pools)
    _rest(state, out)


def _rest(state: State, out: Decisions) -> None:
    """Let what no worker takes any more, whatever ends, hold nothing, and be passed by all."""
    apply_changes(state)
    for action in state.actions.values():
        if not action.crew.is_live:
            state.patience.pop(action.ticket, None)
            if action.holding or action in state.impatient:
                _give_back_all(state, action, out)
                unlist(state, action)
                state.changed_actions[action] = None


def _worker_gone(each: inputs.WorkerGone, state: State, out: Decisions) -> None:
    worker = state.workers.pop(each.worker_id, None)
    if worker is None:
        return
    worker.is_taking = False
    recount(state, worker)
    pending = _pending_at(worker)
    for execution in sorted(worker.held.values(), key=lambda held: held.id):
        execution.is_suspect |= each.is_counted and execution.is_short
        _reclaim(state, execution, each.is_counted and execution not in pending, out)
    reassign_crews(state, worker.pools)
    _rest(state, out)


def _pending_at(worker: Worker) -> set[Execution]:
    """Return what waits in runs at a worker as far as is known: what starts last of each queue."""
    found: set[Execution] = set()
    running: dict[Queue, int] = {}
    for execution in sorted(worker.held.values(), key=lambda held: (held.priority, held.id)):
        queue = execution.queue
        count = running[queue] = running.get(queue, 0) + 1
        most = queue.at[worker] - queue.surplus
        if execution.is_short:
            most = min(most, worker.concurrency)
        if count > most and execution.started_at is None:
            found.add(execution)
    return found


def _reclaim(state: State, execution: Execution, is_counted: bool, out: Decisions) -> None:
    definition = execution.queue.action.definition
    assert execution.worker is not None
    assert execution.grant is not None
    worker_id = execution.worker.id
    out.asked.append(Asked(worker_id, execution.id, execution.grant, "its worker was lost"))
    if execution.cancel_reason is not None:
        finish(state, execution, Status.CANCELLED, out, error=("Cancelled", execution.cancel_reason))
    elif definition.on_worker_lost == "abandon" or (
        is_counted and execution.reclaims >= definition.max_reclaims
    ):
        message = f"worker {worker_id} was lost; reclaimed {execution.reclaims} times before"
        finish(state, execution, Status.ABANDONED, out, error=("WorkerLost", message))
    else:
        execution.reclaims += is_counted
        _attempt_over(state, execution, "reclaimed", out)
        _begin_again(state, execution, out)


# Definitions.


def _define_action(each: inputs.DefineAction, state: State, out: Decisions) -> None:
    definition = each.action
    action = state.actions.get(definition.ref)
    if action is None:
        crew = crew_of(pool_of(state, definition.pool), ())
        action = state.actions[definition.ref] = ActionState(definition, crew)
        crew.actions[action] = None
        action.enqueued, action.completed = state.retired.pop(definition.ref, (0, 0))
    _give_back_all(state, action, out)
    unlist(state, action)
    action.definition = definition
    set_pace(action)
    action.window = _window(action.window, f"action {definition.ref}", definition.rate, out)
    _set_line(action, out)
    _set_route(action, [state.resources[use.resource] for use in definition.uses])
    assign_crew(state, action)
    _look_at_all(state, action)


def _set_line(action: ActionState, out: Decisions) -> None:
    """Order the queues of an action as its total says; tags are kept while the order stays fair."""
    is_fair = action.definition.max_concurrent_total is not None and action.definition.order == "fair"
    if is_fair != (action.clock is not None):
        out.forget(action.clock)
        action.clock = FairClock(f"total {action.ref}") if is_fair else None
        entries, action.line = action.line.entries, Line(action.clock)
        for entry in entries.values():
            action.line.put(entry.member, entry.flow, entry.priority, entry.ticket)


def _set_route(action: ActionState, gates: Iterable[ResourceGate]) -> None:
    """Let an action acquire these resources, one for each of its uses."""
    for gate in action.gates:
        gate.users.pop(action, None)
    used = sorted(zip(gates, action.definition.uses, strict=True), key=lambda used: rank_of(used[0]))
    action.gates = tuple(gate for gate, _ in used)
    action.uses = tuple(use for _, use in used)
    for gate in action.gates:
        gate.users[action] = None
    action.is_closed = is_closed(action)


def _look_at_all(state: State, action: ActionState) -> None:
    """Look at all queues of an action again, in this turn or the next ones."""
    state.queues_to_look_at |= dict.fromkeys(action.queues.values())
    state.changed_actions[action] = None


def look_at_changed_queues(state: State, out: Decisions) -> None:
    """Look again at queues whose definition changed, as many as a turn may."""
    for queue in list(state.queues_to_look_at)[:STEPS_MAX]:
        del state.queues_to_look_at[queue]
        state.changed_queues[queue] = None
        for worker in queue.at:
            tell(queue, worker, state, out)
    if state.queues_to_look_at:
        out.is_unfinished = True


def _window(window: RateWindow | None, name: str, rate: Rate | None, out: Decisions) -> RateWindow | None:
    if window is not None and window.rate != rate:
        # What was over by the rate before may not be over by this one.
        out.forget(window)
    if rate is None:
        return None
    if window is None:
        return RateWindow(name, rate)
    window.rate = rate
    return window


def _delete_action(each: inputs.DeleteAction, state: State, out: Decisions) -> None:
    action = state.actions.get(each.ref)
    if action is None:
        out.deleted.append((False, 0, 0, each.source))
        return
    delayed = sum(queue.delayed for queue in action.queues.values())
    waiting = sum(queue.length + queue.holding for queue in action.queues.values()) + delayed
    running = action.held - len(action.holding)
    is_deleted = not running and waiting <= each.cancel_max
    out.deleted.append((is_deleted, waiting, running, each.source))
    if not is_deleted:
        return
    for execution in _all_waiting(state, action):
        _leave_waiting(state, execution)
        finish(state, execution, Status.CANCELLED, out, error=("Cancelled", each.reason))
    unlist(state, action)
    action.definition = replace(action.definition, uses=(), paused=True)
    _set_route(action, ())
    leave(action.crew, action)
    out.forget(action.clock)
    out.forget(action.window)
    if action.enqueued:
        state.retired[each.ref] = action.enqueued, action.completed
    del state.actions[each.ref]


def _all_waiting(state: State, action: ActionState) -> list[Execution]:
    found = {e.id: e for e in state.executions.values() if e.queue.action is action}
    for queue in action.queues.values():
        for priority, waiting in queue.waiting.items():
            for entry in waiting.entries():
                if entry.id not in found:
                    found[entry.id] = Execution(entry.id, queue, priority, entry.queued_at, entry.expires_at)
    return [found[execution_id] for execution_id in sorted(found)]


def _set_key(each: inputs.SetKey, state: State) -> None:
    action = state.actions.get(each.action_ref)
    if action is None:
        return
    queue = queue_for(action, each.key)
    queue.settings = PLAIN if each.settings is None else each.settings
    state.changed_queues[queue] = None


def _define_resource(each: inputs.DefineResource, state: State, out: Decisions) -> None:
    definition = each.resource
    gate = state.resources.get(definition.name)
    if gate is None:
        gate = state.resources[definition.name] = ResourceGate(definition)
    is_reordered = (gate.definition.order, gate.definition.rank) != (definition.order, definition.rank)
    users = list(gate.users)
    for action in users:
        closes = definition.paused or any(
            use.units > definition.capacity for use in action.uses if use.resource == definition.name
        )
        if is_reordered or closes:
            _give_back_all(state, action, out)
        take_out(state, action)
    gate.definition = definition
    gate.window = _window(gate.window, f"resource {definition.name}", definition.rate, out)
    if gate.window is not None:
        gate.window.kept = sum(execution.worker is None for execution in gate.holders)
    if (definition.order == "fair") != (gate.clock is not None):
        out.forget(gate.clock)
        gate.clock = FairClock(gate.name) if definition.order == "fair" else None
        for lane in gate.lanes.values():
            lane.line = Line(gate.clock)
    for action in users:
        _set_route(action, [state.resources[use.resource] for use in action.definition.uses])
        put_in(state, action)


def _delete_resource(each: inputs.DeleteResource, state: State, out: Decisions) -> None:
    gate = state.resources.get(each.name)
    if gate is not None and not gate.users:
        out.forget(gate.clock)
        out.forget(gate.window)
        del state.resources[each.name]


def _define_pool(each: inputs.DefinePool, state: State, out: Decisions) -> None:
    pool = pool_of(state, each.pool.name)
    actions = [action for action in state.actions.values() if action.crew.pool is pool]
    is_reordered = (each.pool.order == "fair") != (pool.clock is not None)
    for action in actions:
        if is_reordered:
            _give_back_all(state, action, out)
        take_out(state, action)
    has_stopped = each.pool.paused and not pool.definition.paused
    pool.definition = each.pool
    if has_stopped:
        for action in actions:
            _look_at_all(state, action)
    if is_reordered:
        out.forget(pool.clock)
        pool.clock = FairClock(f"pool {each.pool.name}") if each.pool.order == "fair" else None
        for crew in pool.crews.values():
            crew.line = Line(pool.clock)
    _rest(state, out)
    for action in actions:
        put_in(state, action)


def _delete_pool(each: inputs.DeletePool, state: State, out: Decisions) -> None:
    pool = state.pools.get(each.name)
    if pool is not None and not pool.crews:
        out.forget(pool.clock)
        state.dirty_pools.pop(pool, None)
        del state.pools[each.name]
