"""Builds the state of the scheduler from what a load found: the same that the last commit left.

Read in this order: definitions, what gates remember, workers, what waits, what is at workers, what has a
past.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.executor.leader.commands import input_of
from turnstile.executor.leader.records import (
    Checkpoint,
    ClockChange,
    DefinitionRow,
    GrantRow,
    Journal,
    LiveRow,
    Loaded,
    PackedWaiting,
    WaitingRow,
)
from turnstile.executor.queue_manager.decide import decide
from turnstile.executor.queue_manager.decisions import Passage
from turnstile.executor.queue_manager.gates import apply_changes, enlist
from turnstile.executor.queue_manager.inputs import (
    WorkerChanged,
)
from turnstile.executor.queue_manager.lines import FairClock
from turnstile.executor.queue_manager.rates import RateWindow
from turnstile.executor.queue_manager.runs import resume
from turnstile.executor.queue_manager.state import Execution, State
from turnstile.executor.queue_manager.transitions import enqueue, queue_for
from turnstile.executor.queue_manager.waiting import Waiting, WaitingList

_KINDS: Final = ("resource", "pool", "action", "key")
"""An action names its resources, and a key its action."""


@dataclass(slots=True)
class Memory:
    """What the leader must know beside the state to write the next turn."""

    grant_of: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The key of the grant row that has an execution's current grant."""
    left_of: dict[tuple[int, int], int] = field(default_factory=dict)
    """How many executions of a grant row are still current."""
    recent: list[WaitingRow] = field(default_factory=list)
    """Executions that have no row of their own yet, in the order of ids."""
    low_id: int = 1
    reserved_id: int = 1
    journals: int = 0
    """Turns with a journal since the last checkpoint."""
    unpublished: tuple[int, ...] = ()
    """Ended executions whose events may not have been published."""


def state_of(loaded: Loaded) -> tuple[State, Memory]:
    """Return the state that a load found, and the memory of the ledger beside it."""
    state = State(epoch=loaded.epoch, next_id=loaded.reserved_id)
    state.now = loaded.instant_max
    _define(state, loaded.definitions)
    _recall_gates(state, loaded.checkpoint, loaded.journals)
    for worker in loaded.workers:
        changed = WorkerChanged(
            worker_id=worker.worker_id, pools=frozenset(worker.pools), concurrency=worker.concurrency,
            actions=None if worker.actions is None else frozenset(worker.actions), is_taking=False,
        )  # fmt: skip
        decide(state, [changed], state.now)
    memory = Memory(low_id=loaded.low_id, reserved_id=loaded.reserved_id, journals=len(loaded.journals))
    if loaded.journals:
        memory.unpublished = loaded.journals[-1].ended
    elif loaded.checkpoint is not None:
        memory.unpublished = loaded.checkpoint.ended
    for packed in loaded.packed:
        _enqueue_all(state, packed)
    live = {row.id: row for row in loaded.live}
    granted = _current_grants(loaded.grants, live, {row.id for row in loaded.waiting} | live.keys(), memory)
    for waiting in loaded.waiting:
        if waiting.id >= loaded.low_id:
            memory.recent.append(waiting)
        if waiting.id in live:
            continue
        if waiting.id in granted:
            _grant(state, waiting, *granted[waiting.id])
        else:
            queue = queue_for(state.actions[waiting.action_ref], waiting.key)
            entry = Waiting(
                waiting.id, waiting.queued_at, inf if waiting.expires_at is None else waiting.expires_at
            )
            enqueue(state, queue, waiting.priority, entry)
    for row in loaded.live:
        _revive(state, row)
    resume(state)
    apply_changes(state)
    return state, memory


def _current_grants(
    rows: Iterable[GrantRow], live: Mapping[int, LiveRow], known: set[int], memory: Memory
) -> dict[int, tuple[GrantRow, int]]:
    """Return for each execution at a worker the grant row that counts, and its counter."""
    found: dict[int, tuple[GrantRow, int]] = {}
    for row in sorted(rows, key=lambda each: (each.epoch, each.counter)):
        left = 0
        for execution_id, counter in zip(row.execution_ids, row.counters, strict=True):
            now = live.get(execution_id)
            is_current = execution_id in known and (now is None or now.grant == Grant(row.epoch, counter))
            if is_current:
                found[execution_id] = row, counter
                memory.grant_of[execution_id] = row.epoch, row.counter
                left += 1
        memory.left_of[row.epoch, row.counter] = left
    return found


def _define(state: State, rows: Iterable[DefinitionRow]) -> None:
    inputs = [
        input_of(row)
        for kind in _KINDS
        for row in sorted(rows, key=lambda each: each.name)
        if row.kind == kind and row.body is not None
    ]
    decide(state, inputs, state.now)


def _recall_gates(state: State, checkpoint: Checkpoint | None, journals: Iterable[Journal]) -> None:
    """Restore totals, tags and starts: those of the checkpoint, then each journal after it."""
    if checkpoint is not None:
        for ref, (enqueued, completed) in checkpoint.totals.items():
            if ref in state.actions:
                state.actions[ref].enqueued, state.actions[ref].completed = enqueued, completed
            else:
                state.retired[ref] = enqueued, completed
        _recall_clocks(state, checkpoint.clocks)
        _recall_starts(state, checkpoint.starts)
    for journal in journals:
        for ref, (enqueued, completed) in journal.totals.items():
            if ref in state.actions:
                state.actions[ref].enqueued += enqueued
                state.actions[ref].completed += completed
            else:
                before = state.retired.get(ref, (0, 0))
                state.retired[ref] = before[0] + enqueued, before[1] + completed
        _recall_clocks(state, journal.clocks)
        _recall_starts(state, journal.starts)


def _recall_clocks(state: State, changes: Iterable[ClockChange]) -> None:
    clocks = {clock.name: clock for clock in clocks_of(state)}
    for change in changes:
        clock = clocks.get(change.gate)
        if clock is None:
            continue
        clock.virtual[change.priority] = change.virtual
        for flow, finish in change.finish.items():
            if finish is None:
                clock.finish.pop((change.priority, flow), None)
            else:
                clock.finish[change.priority, flow] = finish


def clocks_of(state: State) -> Iterable[FairClock]:
    """Yield the clocks of all fair gates."""
    fair = (state.actions.values(), state.resources.values(), state.pools.values())
    yield from (gate.clock for gates in fair for gate in gates if gate.clock is not None)


def windows_of(state: State) -> Iterable[RateWindow]:
    """Yield the windows of all rates."""
    for action in state.actions.values():
        if action.window is not None:
            yield action.window
    for gate in state.resources.values():
        if gate.window is not None:
            yield gate.window


def _recall_starts(state: State, starts: Mapping[str, tuple[float, ...]]) -> None:
    windows = {window.name: window for window in windows_of(state)}
    for name, instants in starts.items():
        if name in windows:
            windows[name].instants.extend(instants)


def _enqueue_all(state: State, packed: PackedWaiting) -> None:
    """Let many executions wait in their queue."""
    queue = queue_for(state.actions[packed.action_ref], packed.key)
    waiting = queue.waiting.setdefault(packed.priority, WaitingList())
    soonest = waiting.soonest
    waiting.extend(packed.ids, packed.queued_at, packed.expires_at)
    if waiting.soonest < soonest:
        state.set_timer(waiting.soonest, (queue, packed.priority))
    queue.length += len(packed.ids)
    state.changed_queues[queue] = None


def _grant(state: State, row: WaitingRow, grants: GrantRow, counter: int) -> None:
    """Put an execution at the worker of its first grant."""
    queue = queue_for(state.actions[row.action_ref], row.key)
    expires_at = inf if row.expires_at is None else row.expires_at
    execution = Execution(row.id, queue, row.priority, row.queued_at, expires_at)
    execution.status, execution.attempt = Status.SCHEDULED, 1
    execution.grant, execution.scheduled_at = Grant(grants.epoch, counter), grants.granted_at
    if queue.action.definition.max_concurrent_total is not None:
        # Slot and total are acquired with the grant; whatever else was passed has a row of its own.
        at = grants.granted_at
        execution.passages = Passage("queue", 1, row.queued_at, at), Passage("total", 1, at, at)
    _put_at_worker(state, execution, grants.worker_id)


def _put_at_worker(state: State, execution: Execution, worker_id: str) -> None:
    worker = state.workers[worker_id]
    worker.held[execution.id] = execution
    worker.lasting += 1
    execution.queue.at[worker] = execution.queue.at.get(worker, 0) + 1
    execution.worker = worker
    state.changed_workers[worker] = None
    state.executions[execution.id] = execution
    execution.queue.holders[execution] = None
    execution.action.held += 1
    state.changed_queues[execution.queue] = None


def _revive(state: State, row: LiveRow) -> None:
    """Restore an execution with a past."""
    queue = queue_for(state.actions[row.action_ref], row.key)
    expires_at = inf if row.expires_at is None else row.expires_at
    execution = Execution(row.id, queue, row.priority, row.queued_at, expires_at)
    execution.is_recorded = True
    for name in (
        "status", "attempt", "failures", "reclaims", "due_at", "ttl_seconds", "timeout_seconds",
        "cancel_reason", "grant", "scheduled_at", "started_at", "is_impatient", "passages",
        "cancel_requested_at",
    ):  # fmt: skip
        setattr(execution, name, getattr(row, name))
    state.executions[row.id] = execution
    for name, units in row.held:
        gate = state.resources[name]
        gate.held += units
        gate.holders[execution] = units
        state.changed_gates[gate] = None
        execution.held_at = (*execution.held_at, gate)
        if row.is_holding and gate.window is not None:
            gate.window.kept += 1
    if row.worker_id is not None:
        _put_at_worker(state, execution, row.worker_id)
    elif row.is_holding:
        _hold_again(state, execution)
    elif row.due_at is not None and row.status is Status.DELAYED:
        queue.delayed += 1
        state.set_timer(row.due_at, execution)
    else:
        enqueue(state, queue, row.priority, Waiting(row.id, row.queued_at, expires_at))


def _hold_again(state: State, execution: Execution) -> None:
    """Let an execution that holds units wait again at the gate after them."""
    queue, action = execution.queue, execution.queue.action
    queue.holders[execution] = None
    queue.holding += 1
    action.held += 1
    action.holding[execution] = None
    if action.window is not None:
        action.window.kept += 1
    if not execution.is_impatient:
        action.crew.holding[execution] = None
    execution.base = len(execution.held_at)
    enlist(state, execution)
    state.set_timer(execution.expires_at, execution)
    state.changed_queues[queue] = None
