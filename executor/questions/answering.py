"""The one handler of questions: whatever carries them, the answers come from the state that decides (P10).

In: what the leader knows after a committed turn, and a question whose bounds were checked. Out: a generator
that yields between steps of a few milliseconds, so that the turns go on meanwhile, and returns the answer.
Between two steps the state may have changed: an answer of several steps is true item by item.
"""

from collections.abc import Generator, Iterable, Iterator
from functools import singledispatch
from heapq import merge, nsmallest
from itertools import chain, islice
from math import inf
from typing import Final, Protocol, TypeAlias, TypeVar

from turnstile.common.domain.states import Status
from turnstile.executor.questions import protocol
from turnstile.executor.questions.changes import ChangeLog, QueueName
from turnstile.executor.questions.estimate import Durations, estimated_start
from turnstile.executor.questions.explain import (
    HOLDERS_MAX,
    Place,
    explain,
    with_slots,
)
from turnstile.executor.questions.protocol import (
    PAGE_MAX,
    ActionRow,
    ActionStats,
    ChangesPage,
    Explained,
    GateGauges,
    LeaderState,
    LiveExecution,
    PoolGauge,
    QueueRow,
    ResourceGauge,
    SlotHolder,
    StatsPage,
    WaitingPlace,
    WorkerDetail,
    WorkersPage,
    WorkerState,
)
from turnstile.executor.questions.queue_stats import (
    GateCounts,
    places_at,
    pool_counts,
    pool_holders,
    queue_stats,
    resource_counts,
    waiting_queues,
)
from turnstile.executor.queue_manager.state import (
    ActionState,
    Execution,
    PoolState,
    Queue,
    ResourceGate,
    State,
    Worker,
)

A = TypeVar("A")

_STEP: Final = 250
"""Executions or queues that one step looks at."""
Steps: TypeAlias = Generator[None, None, A]
"""Yields between steps, and returns the answer."""


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

    def workers(self) -> Iterable[WorkerState]:
        """Return all workers."""

    def leader(self) -> LeaderState:
        """Return the state of the leader itself."""

    def monotonic(self) -> float:
        """Return the present instant of the leader's clock."""


@singledispatch
def answer(question: object, known: Known) -> Steps[object]:
    """Answer a question in steps."""
    raise AssertionError(f"unknown question {question!r}")


# Executions.


@answer.register
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


@answer.register
def _live(question: protocol.Live, known: Known) -> Steps[tuple[LiveExecution | None, ...]]:
    found: list[LiveExecution | None] = []
    for start in range(0, len(question.executions), _STEP):
        part = question.executions[start : start + _STEP]
        found += [live_execution(known.state, each) for each in part]
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
        due_at=execution.due_at, worker_id=_worker_id(execution), granted_at=execution.scheduled_at,
        started_at=execution.started_at, cancel_reason=execution.cancel_reason,
        cancel_requested_at=execution.cancel_requested_at,
        timeout_seconds=execution.timeout_seconds,
        gates=tuple((p.gate, p.units, p.arrived_at, p.passed_at) for p in execution.passages),
        is_gated=queue.action.has_gates,
    )  # fmt: skip


def _finite(instant: float) -> float | None:
    return None if instant == inf else instant


def _worker_id(execution: Execution) -> str | None:
    return None if execution.worker is None else execution.worker.id


# Queues.


@answer.register
def _stats(question: protocol.Stats, known: Known) -> Steps[StatsPage]:
    state, next_ref, refs = known.state, None, question.action_refs
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


@answer.register
def _queue_of(question: protocol.QueueOf, known: Known) -> Steps[protocol.QueuePage | None]:
    state, key, count = known.state, question.key, question.limit + 1
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
        items=items, holders=_holders(holders), next=None if last is None else (last.priority, last.id)
    )


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


def _holders(executions: Iterable[Execution], gate: ResourceGate | None = None) -> tuple[SlotHolder, ...]:
    """Return the first of these executions, by id."""
    return tuple(
        SlotHolder(
            id=each.id, action_ref=each.queue.action.ref, key=each.queue.key, status=each.status,
            attempt=each.attempt, units=1 if gate is None else gate.holders[each], worker_id=_worker_id(each),
            granted_at=each.scheduled_at, started_at=each.started_at,
            passed_at=_passed_at(each, "queue" if gate is None else f"resource {gate.definition.name}"),
            is_stopping=each.cancel_reason is not None,
        )
        for each in nsmallest(HOLDERS_MAX, executions, key=lambda each: each.id)
    )  # fmt: skip


def _passed_at(execution: Execution, gate: str) -> float | None:
    return next((each.passed_at for each in execution.passages if each.gate == gate), None)


# Resources and pools.


@answer.register
def _resource_queue(question: protocol.ResourceQueue, known: Known) -> Steps[protocol.GatePage | None]:
    gate = known.state.resources.get(question.name)
    if gate is None:
        return None
    counts = resource_counts(known.state, gate)
    places = yield from places_at(known.state, gate, question.offset, question.limit)
    return _gate_page(known.state, gate, counts, (question.offset, places), gate.holders)


@answer.register
def _pool_queue(question: protocol.PoolQueue, known: Known) -> Steps[protocol.GatePage | None]:
    pool = known.state.pools.get(question.name)
    if pool is None:
        return None
    counts = pool_counts(known.state, pool)
    places = yield from places_at(known.state, pool, question.offset, question.limit)
    holders = pool_holders(known.state, question.name)
    return _gate_page(known.state, pool, counts, (question.offset, places), holders)


def _gate_page(
    state: State,
    gate: ResourceGate | PoolState,
    counts: GateCounts,
    behind: tuple[int, Iterable[Place]],
    holders: Iterable[Execution],
) -> protocol.GatePage:
    resource = gate if isinstance(gate, ResourceGate) else None
    offset, places = behind
    items = (_at_gate(state, place, number, resource) for number, place in enumerate(places, offset + 1))
    return protocol.GatePage(
        name=gate.definition.name, paused=gate.definition.paused, order=gate.definition.order,
        items=tuple(each for each in items if each is not None), holders=_holders(holders, resource),
        **counts._asdict(),
    )  # fmt: skip


def _at_gate(state: State, place: Place, position: int, gate: ResourceGate | None) -> WaitingPlace | None:
    """Return what waits at a place; None: not any more, since the place was found."""
    action, execution = place.queue.action, state.executions.get(place.id)
    waiting = place.queue.waiting.get(place.priority)
    known = execution or (None if waiting is None else waiting.find(place.id))
    has_left = execution is not None and execution.status is not Status.QUEUED
    if known is None or has_left or (gate is not None and gate not in action.gates):
        return None
    passages = () if execution is None else execution.passages
    return WaitingPlace(
        id=place.id, position=position, action_ref=action.ref, key=place.queue.key, priority=place.priority,
        units=1 if gate is None else action.uses[action.gates.index(gate)].units,
        queued_at=known.queued_at,
        arrived_at=passages[-1].passed_at if passages and gate is not None else None,
    )  # fmt: skip


@answer.register
def _gates(_: protocol.Gates, known: Known) -> Steps[GateGauges]:
    state, resources, pools = known.state, [], []
    served = _served(state.actions.values())
    for name in sorted(state.resources)[:PAGE_MAX]:
        if (gate := state.resources.get(name)) is None:
            continue
        counts = resource_counts(state, gate)
        resources.append(
            ResourceGauge(
                name=name, capacity=counts.capacity, held=counts.held, held_waiting=counts.held_waiting,
                waiting=counts.waiting, paused=gate.definition.paused,
            )
        )  # fmt: skip
        yield
    for name in sorted(state.pools)[:PAGE_MAX]:
        if (pool := state.pools.get(name)) is None:
            continue
        counts = pool_counts(state, pool)
        pools.append(
            PoolGauge(
                name=name, capacity=counts.capacity, held=counts.held, waiting=counts.waiting,
                wanted=counts.wanted, waiting_queues=waiting_queues(state, pool),
                paused=pool.definition.paused, served=tuple(sorted(served.get(name, ()))[:PAGE_MAX]),
            )
        )  # fmt: skip
        yield
    return GateGauges(resources=tuple(resources), pools=tuple(pools))


def _served(actions: Iterable[ActionState]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for action in actions:
        if any(worker.is_taking for worker in action.crew.workers):
            found.setdefault(action.definition.pool, []).append(action.ref)
    return found


# Workers.


@answer.register
def _workers(question: protocol.Workers, known: Known) -> Steps[WorkersPage]:
    yield from ()
    found = (each for each in known.workers() if each.worker_id > question.after_id)
    first = nsmallest(question.limit + 1, found, key=lambda each: each.worker_id)
    items = tuple(first[: question.limit])
    return WorkersPage(items=items, next_id=items[-1].worker_id if len(first) > len(items) else None)


@answer.register
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


@answer.register
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
    heads = min(((each.first(), each) for each in queue.waiting.values()), default=None, key=lambda h: h[0])
    return QueueRow(
        action_ref=action.ref, key=name.key, length=queue.length + queue.holding,
        active=queue.active, max_concurrent=queue.limit,
        oldest_enqueued_at=None if heads is None else heads[1].first_queued_at(),
        head_id=None if heads is None else heads[0], enqueued=enqueued, completed=completed,
    )  # fmt: skip


def _action_row(action: ActionState) -> ActionRow:
    definition = action.definition
    return ActionRow(
        action_ref=action.ref, pool=definition.pool, paused=definition.paused, enqueued=action.enqueued,
        completed=action.completed,
    )  # fmt: skip


@answer.register
def _leading(_: protocol.Leading, known: Known) -> Steps[LeaderState]:
    yield from ()
    return known.leader()
