"""The one handler of questions: whatever carries them, the answers come from the state that decides (P10).

In: what the leader knows after a committed turn, and a question whose bounds were checked. Out: a generator
that yields between steps of a few milliseconds, so that the turns go on meanwhile, and returns the answer.
Between two steps the state may have changed: an answer of several steps is true item by item.
"""

from collections.abc import Iterable, Iterator
from heapq import merge, nsmallest
from itertools import chain, islice
from math import inf
from typing import Any, Final, Protocol, get_args

from turnstile.common.domain.states import Status
from turnstile.executor.questions import protocol
from turnstile.executor.questions.changes import ChangeLog, QueueName
from turnstile.executor.questions.estimate import Durations, estimated_start
from turnstile.executor.questions.explain import (
    Bounds,
    Counted,
    Place,
    bounds_of,
    counts_by_bound,
    explain,
    is_closed,
    limited,
    stop_of,
    with_slots,
)
from turnstile.executor.questions.gates import (
    Steps,
    gates,
    holders_at,
    pool_queue,
    resource_queue,
    worker_id_of,
)
from turnstile.executor.questions.protocol import (
    PAGE_MAX,
    ActionRow,
    ActionStats,
    ChangesPage,
    Explained,
    KeyStats,
    LeaderState,
    LiveExecution,
    Question,
    QueueRow,
    QueueStats,
    StatsPage,
    WaitingPlace,
    WorkerDetail,
    WorkersPage,
    WorkerState,
)
from turnstile.executor.questions.stops import stops
from turnstile.executor.questions.use import UseHistory
from turnstile.executor.queue_manager.state import (
    ActionState,
    Execution,
    Queue,
    State,
    Worker,
)

COUNTED: Final[tuple[Counted, ...]] = get_args(Counted)
KEYS_MAX: Final = 100
_STEP: Final = 250
"""Executions or queues that one step looks at."""


class Known(Protocol):
    """What the leader knows after a committed turn."""

    @property
    def state(self) -> State:
        """The state of the scheduler."""

    @property
    def durations(self) -> Durations:
        """How long executions ran lately."""

    @property
    def changes(self) -> ChangeLog:
        """Which queues changed lately."""

    @property
    def uses(self) -> UseHistory:
        """How much of resources and pools was held lately."""

    def workers(self) -> Iterable[WorkerState]:
        """Return all workers."""

    def leader(self) -> LeaderState:
        """Return the state of the leader itself."""

    def monotonic(self) -> float:
        """Return the present instant of the leader's clock."""


def answer(question: Question[Any], known: Known) -> Steps[object]:  # noqa: PLR0912
    """Answer a question in steps."""
    state = known.state
    match question:
        case protocol.Explain():
            return _explain(question, known)
        case protocol.Live():
            return _live(question, state)
        case protocol.Stats():
            return _stats(question, state)
        case protocol.BoundsOf():
            return _bounds(question, state)
        case protocol.QueueOf():
            return _queue_of(question, state)
        case protocol.ResourceQueue():
            return resource_queue(question, state)
        case protocol.PoolQueue():
            return pool_queue(question, state)
        case protocol.Gates():
            return _gates(question, known)
        case protocol.Stops():
            return stops(question, state)
        case protocol.Workers():
            return _workers(question, known)
        case protocol.WorkerOf():
            return _worker_of(question, known)
        case protocol.Changes():
            return _changes(question, known)
        case protocol.Leading():
            return _leading(known)
        case _:
            raise AssertionError(f"unknown question {question!r}")


# Executions.


def _explain(question: protocol.Explain, known: Known) -> Steps[tuple[Explained, ...]]:
    found: list[Explained] = []
    for each in question.executions:
        found.append(_explained(known, each, with_estimate=question.with_estimate))
        yield
    return tuple(found)


def _explained(known: Known, named: protocol.Execution, *, with_estimate: bool) -> Explained:
    live = live_execution(known.state, named)
    if live is None:
        return Explained(id=named.id)
    found = explain(known.state, live.id, live.action_ref, live.key, live.priority)
    estimate = None
    if with_estimate and found is not None and found.waiting_on is not None:
        estimate = estimated_start(found.waiting_on, live.action_ref, known.durations, known.state.now)
    return Explained(id=live.id, live=live, explanation=found, estimate=estimate)


def _live(question: protocol.Live, state: State) -> Steps[tuple[LiveExecution | None, ...]]:
    found: list[LiveExecution | None] = []
    for start in range(0, len(question.executions), _STEP):
        part = question.executions[start : start + _STEP]
        found += [live_execution(state, each) for each in part]
        yield
    return tuple(found)


def live_execution(state: State, named: protocol.Execution) -> LiveExecution | None:
    """Return what an execution does now; None: it has ended, or was never admitted."""
    execution = state.executions.get(named.id)
    if execution is not None:
        return _live_of(execution)
    queue = state.queue(named.action_ref, named.key)
    waiting = None if queue is None else queue.waiting.get(named.priority)
    entry = None if waiting is None else waiting.find(named.id)
    if queue is None or entry is None:
        return None
    return LiveExecution(
        id=named.id, status=Status.QUEUED, action_ref=named.action_ref, key=named.key,
        priority=named.priority, queued_at=entry.queued_at, expires_at=_finite(entry.expires_at),
        is_gated=queue.action.has_gates,
    )  # fmt: skip


def _live_of(execution: Execution) -> LiveExecution:
    queue = execution.queue
    return LiveExecution(
        id=execution.id, status=execution.status, action_ref=queue.action.ref, key=queue.key,
        priority=execution.priority, attempt=execution.attempt, failures=execution.failures,
        reclaims=execution.reclaims, queued_at=execution.queued_at, expires_at=_finite(execution.expires_at),
        due_at=execution.due_at, worker_id=worker_id_of(execution), granted_at=execution.scheduled_at,
        started_at=execution.started_at, cancel_reason=execution.cancel_reason,
        cancel_requested_at=execution.cancel_requested_at,
        timeout_seconds=execution.timeout_seconds,
        gates=tuple((p.gate, p.units, p.arrived_at, p.passed_at) for p in execution.passages),
        is_gated=queue.action.has_gates,
    )  # fmt: skip


def _finite(instant: float) -> float | None:
    return None if instant == inf else instant


# Queues.


def _stats(question: protocol.Stats, state: State) -> Steps[StatsPage]:
    next_ref, refs = None, question.action_refs
    if refs is None:
        first = nsmallest(question.limit + 1, (ref for ref in state.actions if ref > question.after_ref))
        refs = tuple(first[: question.limit])
        next_ref = refs[-1] if len(first) > question.limit else None
    found: list[ActionStats] = []
    for ref in refs:
        stats = yield from queue_stats(state, ref)
        found.append(ActionStats(action_ref=ref, stats=stats))
        yield
    return StatsPage(items=tuple(found), next_ref=next_ref)


def _queue_of(question: protocol.QueueOf, state: State) -> Steps[protocol.QueuePage | None]:
    key, count = question.key, question.limit + 1
    action = state.actions.get(question.action_ref)
    if action is None:
        return None
    queues = list(action.queues.values()) if key is None else [q for q in (action.queues.get(key),) if q]
    # What comes first is in the queues whose heads come first.
    heads: list[tuple[int, int, Queue]] = []
    for start in range(0, len(queues), _STEP):
        part = ((*head, q) for q in queues[start : start + _STEP] if (head := _head_after(q, question.after)))
        heads = nsmallest(count, chain(heads, part), key=lambda each: each[:2])
        yield
    places = (_places_after(queue, question.after) for *_, queue in heads)
    first = list(islice(merge(*places, key=lambda place: place[:2]), count))
    items = tuple(_in_queue(each) for each in first[: question.limit])
    last = first[question.limit - 1] if len(first) > question.limit else None
    at_workers = [each for each in _at_workers(state.workers.values()) if each.queue.action is action]
    held = dict.fromkeys(each.queue for each in chain(at_workers, action.holding))
    holders = chain.from_iterable(with_slots(queue) for queue in held if key in (None, queue.key))
    return protocol.QueuePage(
        items=items, holders=holders_at(holders), next=None if last is None else (last.priority, last.id)
    )


def queue_stats(state: State, ref: str) -> Steps[QueueStats | None]:
    """Count what waits and runs of an action, in steps of some queues; None: it is unknown."""
    action = state.actions.get(ref)
    if action is None:
        return None
    queues = list(action.queues.values())
    length = ready = full = delayed = active = 0
    longest: list[tuple[int, int, str, Queue]] = []
    oldest = min(((each.id, each.queued_at) for each in action.holding), default=None)
    for start in range(0, len(queues), _STEP):
        if start:
            yield
        part = queues[start : start + _STEP]
        length += sum(queue.length for queue in part)
        ready += sum(queue.startable for queue in part)
        full += sum(map(limited, part))
        delayed += sum(queue.delayed for queue in part)
        active += sum(queue.active for queue in part)
        keys = (
            (-queue.length - queue.holding, -queue.active, queue.key, queue) for queue in part if queue.key
        )
        longest = nsmallest(KEYS_MAX, chain(longest, keys))
        lists = chain.from_iterable(queue.waiting.values() for queue in part)
        heads = ((waiting.first(), waiting.first_queued_at()) for waiting in lists)
        oldest = min(chain(heads, () if oldest is None else (oldest,)), default=None)
    holding, bounds = len(action.holding), bounds_of(state, action)
    return QueueStats(
        queue_length=length + holding, active_count=active, held_waiting=holding,
        delayed=delayed, max_concurrent=action.definition.max_concurrent,
        oldest_enqueued_at=None if oldest is None else oldest[1], total_enqueued=action.enqueued,
        total_completed=action.completed, paused=action.definition.paused,
        waiting=_by_reason(state, action, length, ready),
        why=counts_by_bound(bounds, length, ready, full).most_common(), gates=bounds.gates,
        by_key=tuple(_of_key(queue) for *_, queue in longest),
    )  # fmt: skip


def _by_reason(state: State, action: ActionState, length: int, ready: int) -> dict[Counted, int]:
    stop, counts = stop_of(state, action), dict.fromkeys(COUNTED, 0)
    counts["limit"] = 0 if is_closed(stop) else length - ready
    counts[stop.reason] += length - counts["limit"]
    for execution in action.holding:
        counts[stop_of(state, execution).reason] += 1
    return counts


def _bounds(question: protocol.BoundsOf, state: State) -> Steps[tuple[Bounds, ...]]:
    found: list[Bounds] = []
    for ref in question.action_refs:
        if (action := state.actions.get(ref)) is not None:
            found.append(bounds_of(state, action))
            yield
    return tuple(found)


def _of_key(queue: Queue) -> KeyStats:
    return KeyStats(queue.key, queue.length + queue.holding, queue.active, queue.holding, queue.limit)


def _head_after(queue: Queue, after: tuple[int, int]) -> tuple[int, int] | None:
    """Return priority and id of the first one that waits behind these."""
    for priority in sorted(queue.waiting):
        waiting = queue.waiting[priority]
        if priority < after[0]:
            continue
        if priority > after[0] or waiting.first() > after[1]:
            return priority, waiting.first()
        behind = next(waiting.after(after[1]), None)
        if behind is not None:
            return priority, behind
    return None


def _places_after(queue: Queue, after: tuple[int, int]) -> Iterator[Place]:
    for priority in sorted(queue.waiting):
        if priority >= after[0]:
            least = after[1] if priority == after[0] else 0
            yield from (Place(priority, each, queue) for each in queue.waiting[priority].after(least))


def _in_queue(place: Place) -> WaitingPlace:
    position = place.queue.position(place.priority, place.id)
    assert position is not None, "it waits in its queue"
    entry = place.queue.waiting[place.priority].find(place.id)
    assert entry is not None, "it waits in its queue"
    return WaitingPlace(
        id=place.id, position=position, action_ref=place.queue.action.ref, key=place.queue.key,
        priority=place.priority, queued_at=entry.queued_at,
    )  # fmt: skip


def _at_workers(workers: Iterable[Worker]) -> Iterator[Execution]:
    return chain.from_iterable(worker.held.values() for worker in workers)


def _gates(question: protocol.Gates, known: Known) -> Steps[protocol.GateGauges]:
    now = known.monotonic()
    return gates(known.state, lambda kind, name: known.uses.of(kind, name, now) if question.with_use else ())


# Workers.


def _workers(question: protocol.Workers, known: Known) -> Steps[WorkersPage]:
    yield from ()
    found = (each for each in known.workers() if each.worker_id > question.after_id)
    if question.action_ref is not None:
        action = known.state.actions.get(question.action_ref)
        crew = set() if action is None else {each.id for each in action.crew.workers}
        found = (each for each in found if each.worker_id in crew)
    first = nsmallest(question.limit + 1, found, key=lambda each: each.worker_id)
    items = tuple(first[: question.limit])
    return WorkersPage(items=items, next_id=items[-1].worker_id if len(first) > len(items) else None)


def _worker_of(question: protocol.WorkerOf, known: Known) -> Steps[WorkerDetail | None]:
    yield from ()
    worker = next((each for each in known.workers() if each.worker_id == question.worker_id), None)
    if worker is None:
        return None
    at_worker = known.state.workers.get(question.worker_id)
    held = () if at_worker is None else at_worker.held.values()
    first = nsmallest(PAGE_MAX, held, key=lambda each: each.id)
    return WorkerDetail(worker=worker, held=tuple(map(_live_of, first)))


# What changed, and the leader.


def _changes(question: protocol.Changes, known: Known) -> Steps[ChangesPage]:
    state, log, cursor = known.state, known.changes, question.cursor
    yield from log.begin(state, known.monotonic())
    names, following, has_more = log.page(cursor, question.limit)
    actions = {ref: state.actions.get(ref) for ref in dict.fromkeys(name.action_ref for name in names)}
    present = {ref: each for ref, each in actions.items() if each is not None}
    return ChangesPage(
        cursor=following, is_new=not log.knows(cursor), has_more=has_more,
        queues=tuple(_row(present[each[0]], each, log) for each in names if each[0] in present),
        actions=tuple(_action_row(each) for each in present.values()),
        deleted=tuple(ref for ref in actions if ref not in present),
    )  # fmt: skip


def _row(action: ActionState, name: QueueName, log: ChangeLog) -> QueueRow:
    queue, (enqueued, completed) = action.queues.get(name.key), log.counted(name)
    if queue is None:
        return QueueRow(
            action_ref=action.ref, key=name.key, max_concurrent=action.definition.max_concurrent,
            enqueued=enqueued, completed=completed,
        )  # fmt: skip
    holding = (each for each in queue.holders if each in action.holding) if queue.holding else ()
    head = min(
        chain(
            ((each.first(), each.first_queued_at()) for each in queue.waiting.values()),
            ((each.id, each.queued_at) for each in holding),
        ),
        default=None,
    )
    return QueueRow(
        action_ref=action.ref, key=name.key, length=queue.length + queue.holding,
        active=queue.active, held_waiting=queue.holding, max_concurrent=queue.limit,
        oldest_enqueued_at=None if head is None else head[1], head_id=None if head is None else head[0],
        startable=queue.startable, limited=limited(queue), enqueued=enqueued, completed=completed,
    )  # fmt: skip


def _action_row(action: ActionState) -> ActionRow:
    definition = action.definition
    return ActionRow(
        action_ref=action.ref, pool=definition.pool, paused=definition.paused, enqueued=action.enqueued,
        completed=action.completed,
    )  # fmt: skip


def _leading(known: Known) -> Steps[LeaderState]:
    yield from ()
    return known.leader()
