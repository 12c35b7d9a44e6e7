"""When the workers of a pool could start nothing more, by the events alone.

In: the event log. Out: for each queue, the periods in which a free slot of it is no fault (P7): its pool was
paused, no live worker served its action, or the whole capacity of its pool, or of the workers that serve it,
was in use. The capacity is counted from the registrations of the workers and from the slots, not read from
what the product has counted.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tests.proof.history.recording import (
    ActionEvent,
    Event,
    PoolEvent,
    QueueEvent,
    SlotEvent,
    Step,
    WorkerChange,
    WorkerEvent,
    nanoseconds,
)

Period: TypeAlias = tuple[int, int]
"""Beginning and end, in nanoseconds."""
FAR: Final = 2**63 - 1
"""The end of a period that has not ended."""


@dataclass(slots=True)
class _Pool:
    """The actions and workers of a pool, and the slots that take its worker slots."""

    actions: dict[int, ActionEvent] = field(default_factory=dict)
    workers: dict[str, WorkerEvent] = field(default_factory=dict)
    """The live ones that do not drain."""
    offered: Counter[int] = field(default_factory=Counter)
    """Slots that no worker has claimed, by action."""
    claimed: Counter[str] = field(default_factory=Counter)
    """Slots by worker."""
    paused: bool = False

    def able(self, action: ActionEvent) -> frozenset[str]:
        """Return the live workers that serve this action."""
        return frozenset(
            worker_id
            for worker_id, worker in self.workers.items()
            if not action.is_listed or worker.served_refs is None or action.ref in worker.served_refs
        )

    def busy(self) -> frozenset[int]:
        """Return the actions whose live workers are all busy."""
        return frozenset(number for number in self.without_capacity() if self.able(self.actions[number]))

    def closed(self) -> frozenset[int]:
        """Return the actions of which nothing can start: all if the pool is paused."""
        return frozenset(self.actions) if self.paused else self.without_capacity()

    def without_capacity(self) -> frozenset[int]:
        """Return the actions that have no live worker, or whose workers are all busy."""
        able = {number: self.able(action) for number, action in self.actions.items()}
        full = {
            workers for workers in {*able.values(), frozenset(self.workers)} if self._are_busy(workers, able)
        }
        if frozenset(self.workers) in full:
            return frozenset(self.actions)
        return frozenset(number for number, workers in able.items() if workers in full)

    def _are_busy(self, workers: frozenset[str], able: Mapping[int, frozenset[str]]) -> bool:
        """Return whether these workers run, or are bound to run, as much as they can.

        Neither a worker that leaves nor an action that has lost its workers takes capacity of the others.
        """
        taken = sum(
            count for number, count in self.offered.items() if able.get(number) and able[number] <= workers
        )
        taken += sum(self.claimed[worker] for worker in workers)
        return taken >= sum(self.workers[worker].concurrency for worker in workers)


class _Pools:
    """The pools after each event, as far as the log names their actions."""

    def __init__(self) -> None:
        self.pools: dict[str, _Pool] = defaultdict(_Pool)
        self.pool_of: dict[int, str] = {}
        """By action."""
        self.action_of: dict[int, int] = {}
        """By queue."""
        self.slots: dict[int, tuple[str, int, str | None]] = {}
        """By execution: pool, action and worker of its slot."""

    def apply(self, event: Event) -> set[str]:
        """Return the pools that the event changes."""
        match event:
            case ActionEvent():
                return self._define(event)
            case QueueEvent(action_id=int(action_id)):
                self.action_of[event.queue_id] = action_id
            case WorkerEvent():
                for name in event.pools:
                    self.pools[name].workers.pop(event.worker_id, None)
                    if event.change is WorkerChange.REGISTERED:
                        self.pools[name].workers[event.worker_id] = event
                return set(event.pools)
            case PoolEvent():
                self.pools[event.name].paused = event.paused
                return {event.name}
            case SlotEvent():
                return self._hold(event)
            case _:
                pass
        return set()

    def _define(self, action: ActionEvent) -> set[str]:
        before = self.pool_of.get(action.action_id)
        if before is not None:
            del self.pools[before].actions[action.action_id]
        self.pool_of[action.action_id] = action.pool
        self.pools[action.pool].actions[action.action_id] = action
        return {action.pool} if before is None else {before, action.pool}

    def _hold(self, slot: SlotEvent) -> set[str]:
        held = self.slots.pop(slot.execution_id, None)
        if held is None:
            action_id = self.action_of.get(slot.queue_id)
            if slot.step is not Step.INSERT or action_id not in self.pool_of:
                return set()
            name = self.pool_of[action_id]
        else:
            name, action_id, worker_id = held
            self._count(name, action_id, worker_id, -1)
        if slot.step is not Step.DELETE:
            self.slots[slot.execution_id] = name, action_id, slot.worker_id
            self._count(name, action_id, slot.worker_id, 1)
        return {name}

    def _count(self, name: str, action_id: int, worker_id: str | None, count: int) -> None:
        pool = self.pools[name]
        if worker_id is None:
            pool.offered[action_id] += count
        else:
            pool.claimed[worker_id] += count


def closed_periods(events: Sequence[Event], *, served: bool = False) -> Mapping[int, Sequence[Period]]:
    """Return by queue when its pool could start nothing of it, the first period first.

    `served`: only while it has live workers, so that all of them are busy.
    """
    pools = _Pools()
    since: dict[int, int] = {}
    closed: dict[int, list[Period]] = defaultdict(list)
    for at, together in _transactions(events):
        for name in {name for event in together for name in pools.apply(event)}:
            pool = pools.pools[name]
            now = pool.busy() if served else pool.closed()
            for action_id in pool.actions:
                if action_id in now:
                    since.setdefault(action_id, at)
                elif action_id in since:
                    closed[action_id].append((since.pop(action_id), at))
    for action_id, began in since.items():
        closed[action_id].append((began, FAR))
    return {queue_id: closed[action_id] for queue_id, action_id in pools.action_of.items()}


def _transactions(events: Sequence[Event]) -> Iterator[tuple[int, Sequence[Event]]]:
    """Yield the events of each transaction, with the instant of its last one, the first commit first."""
    by_transaction: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if isinstance(event, ActionEvent | PoolEvent | QueueEvent | WorkerEvent | SlotEvent):
            by_transaction[event.stamp.txid].append(event)
    ended = [(nanoseconds(own[-1].stamp.at), own) for own in by_transaction.values()]
    yield from sorted(ended, key=lambda each: each[0])
