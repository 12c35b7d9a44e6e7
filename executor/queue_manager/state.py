"""The state of the scheduler: everything that a decision depends on. `decide` and `transitions` change it.

What waits plainly is an entry in a `WaitingList`, and nothing else. An `Execution` exists for what was
granted, is delayed, holds units, or has a past: attempts, a cancel, settings of its own.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, NamedTuple, TypeAlias

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager.decisions import Passage
from turnstile.executor.queue_manager.definitions import Action, KeySettings, Pool, Resource, Use
from turnstile.executor.queue_manager.lines import Entry, FairClock, Line, Rank
from turnstile.executor.queue_manager.rates import RateWindow
from turnstile.executor.queue_manager.waiting import WaitingList

PLAIN: Final = KeySettings()


class Execution:
    """An execution of which more is known than that it waits. Instants in seconds since 1970."""

    __slots__ = (
        "attempt", "base", "cancel_reason", "due_at", "expires_at", "failures", "grant", "held_at", "id",
        "is_impatient", "is_recorded", "passages", "priority", "queue", "queued_at", "reached", "reclaims",
        "scheduled_at", "started_at", "status", "timeout_seconds", "ttl_seconds", "worker",
    )  # fmt: skip

    def __init__(self, execution_id: int, queue: "Queue", priority: int, queued_at: float, expires_at: float):
        self.id = execution_id
        self.queue = queue
        self.priority = priority
        self.queued_at = queued_at
        """Its first enqueue."""
        self.expires_at = expires_at
        self.status = Status.QUEUED
        self.attempt = 0
        self.failures = 0
        self.reclaims = 0
        self.due_at: float | None = None
        self.cancel_reason: str | None = None
        self.timeout_seconds: float | None = None
        self.grant: Grant | None = None
        self.worker: Worker | None = None
        self.scheduled_at: float | None = None
        self.started_at: float | None = None
        self.ttl_seconds: float | None = None
        """Of a request that is delayed before its first enqueue: replaces the action's."""
        self.held_at: tuple[ResourceGate, ...] = ()
        """The resources whose units it holds."""
        self.base = 0
        """The line where it waits while it holds units, as in `ActionState.reached`."""
        self.reached = -1
        self.is_recorded = False
        """The ledger has a row about it beside its record and its grant."""
        self.is_impatient = False
        """It holds units although no worker can take it: it was passed over for too long."""
        self.passages: tuple[Passage, ...] = ()

    @property
    def ticket(self) -> int:
        """Its id: the place in all orders."""
        return self.id

    @property
    def is_plain(self) -> bool:
        """Whether an entry in a waiting list says all about it, once it waits."""
        return not self.attempt and self.timeout_seconds is None and not self.is_recorded


class Worker:
    """A live worker process. `gates.recount` keeps `free` equal to what `held` and the settings say."""

    __slots__ = ("actions", "burden", "concurrency", "crews", "free", "held", "id", "is_taking", "pools")

    def __init__(self, worker_id: str) -> None:
        self.id = worker_id
        self.pools: tuple[str, ...] = ()
        """The pool that was served last stands last, so that pools take turns at its worker slots."""
        self.actions: frozenset[str] | None = None
        self.concurrency = 0
        self.is_taking = False
        self.held: dict[int, Execution] = {}
        """What is at this worker: offered or running."""
        self.free = 0
        """Worker slots that take an offer now."""
        self.crews: dict[Crew, None] = {}
        self.burden = 0, 0.0
        """How many crews it serves, and the share of its slots in use: the smallest takes what is next."""

    def serves(self, action: Action) -> bool:
        """Return whether it has the action's pool and code."""
        return action.pool in self.pools and (
            not action.needs_code or self.actions is None or action.ref in self.actions
        )


class Queue:
    """The executions of one action and key, and what is held of its limit."""

    __slots__ = ("action", "delayed", "held", "holding", "key", "settings", "waiting")

    def __init__(self, action: "ActionState", key: str) -> None:
        self.action = action
        self.key = key
        self.settings = PLAIN
        self.waiting: dict[int, WaitingList] = {}
        """By priority; no list is empty."""
        self.held = 0
        """Slots: of what was granted, and of what waits at a later resource."""
        self.holding = 0
        """Of these, the slots of what still waits."""
        self.delayed = 0

    @property
    def limit(self) -> int | None:
        """The key's own limit, or the action's."""
        settings = self.settings
        return settings.max_concurrent if settings.has_limit else self.action.definition.max_concurrent

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        limit = self.limit
        return limit is None or self.held < limit

    @property
    def length(self) -> int:
        """How many wait in it, without those that hold units."""
        return sum(map(len, self.waiting.values()))

    def head(self) -> tuple[int, int]:
        """Return priority and id of the first one. It must not be empty."""
        priority = min(self.waiting)
        return priority, self.waiting[priority].first()

    @property
    def is_idle(self) -> bool:
        """Whether nothing needs it: it can be forgotten."""
        return not (self.waiting or self.held or self.delayed) and self.settings == PLAIN


class ResourceGate:
    """A resource: its units, and who waits for them."""

    __slots__ = ("clock", "definition", "held", "holders", "lanes", "users", "window")

    def __init__(self, definition: Resource) -> None:
        self.definition = definition
        self.clock = FairClock() if definition.order == "fair" else None
        self.window: RateWindow | None = None
        self.held = 0
        self.holders: dict[Execution, int] = {}
        self.lanes: dict[Crew, Lane] = {}
        self.users: dict[ActionState, None] = {}


class Lane:
    """Where the executions of one crew wait at one resource."""

    __slots__ = ("coming", "crew", "front", "gate", "line", "urgent")

    def __init__(self, gate: ResourceGate, crew: "Crew") -> None:
        self.gate = gate
        self.crew = crew
        self.line: Line[Member] = Line(gate.clock)
        """Who waits here."""
        self.urgent: dict[Member, None] = {}
        """Those of them that are not passed: they hold units, or were passed over for too long."""
        self.coming: dict[Member, Entry[Member]] = {}
        """Who waits at an earlier resource, and could pass that now."""
        self.front: Member | None = None
        """The first of both, if it could pass now."""

    def rank(self, entry: Entry["Member"]) -> Rank:
        """Return what orders an entry among those of all lanes of the resource."""
        return self.line.rank(entry)

    def first(self) -> Entry["Member"] | None:
        """Return the first of those who wait here or are coming."""
        first = self.line.first()
        if self.coming:
            best = min(self.coming.values(), key=self.rank)
            if first is None or self.rank(best) < self.rank(first):
                return best
        return first

    @property
    def is_empty(self) -> bool:
        """Whether no member waits or is coming here."""
        return not (self.line.entries or self.coming)


class Crew:
    """The workers that can run an action of a pool: actions with the same workers wait in one line."""

    __slots__ = ("actions", "free", "holding", "lanes", "line", "offers", "pool", "stuck", "workers")

    def __init__(self, pool: "PoolState", workers: tuple[Worker, ...]) -> None:
        self.pool = pool
        self.workers = workers
        self.actions: dict[ActionState, None] = {}
        self.free = sum(worker.free for worker in workers)
        """Worker slots that take an offer now."""
        self.line: Line[Member] = Line(pool.clock)
        """What waits for nothing but a worker slot."""
        self.lanes: dict[Lane, None] = {}
        self.offers: list[tuple[int, float, str, Worker]] = []
        """A heap of workers by their burden, in which each worker with a free slot has its present one."""
        self.stuck: dict[Member, None] = {}
        """What could pass the resource where it waits, and not a later one."""
        self.holding: dict[Execution, None] = {}
        """What holds units, waits, and gives them back when no worker can take it."""

    @property
    def has_room(self) -> bool:
        """Whether a worker can take one more now."""
        return self.free > 0 and not self.pool.definition.paused

    @property
    def is_live(self) -> bool:
        """Whether it has a worker that takes what is offered, as soon as it has a free slot."""
        return not self.pool.definition.paused and any(w.is_taking and w.concurrency for w in self.workers)

    def spare(self) -> int:
        """Return how many more may hold units: the free worker slots that no holder counts on."""
        return (0 if self.pool.definition.paused else self.free) - len(self.holding)


class PoolState:
    """A pool: the crews of its actions, and the order between the actions."""

    __slots__ = ("clock", "crews", "definition", "served")

    def __init__(self, definition: Pool) -> None:
        self.definition = definition
        self.clock = FairClock() if definition.order == "fair" else None
        self.crews: dict[tuple[str, ...], Crew] = {}
        self.served = 0
        """The number of its last grant."""


class ActionState:
    """An action, its queues, and where its next execution waits."""

    __slots__ = (
        "base", "clock", "completed", "crew", "definition", "enqueued", "gates", "held", "holding",
        "is_deleted", "line", "obstacle", "priority", "queues", "reached", "ticket", "uses", "window",
    )  # fmt: skip

    def __init__(self, definition: Action, crew: Crew) -> None:
        self.definition = definition
        self.crew = crew
        self.queues: dict[str, Queue] = {}
        self.held = 0
        """Slots of all its queues."""
        self.clock: FairClock | None = None
        """Of its total, where that has a fair order."""
        self.line: Line[Queue] = Line(None)
        """Its queues that have something to start and a free slot."""
        self.gates: tuple[ResourceGate, ...] = ()
        """The resources that it uses, in the order in which they are acquired."""
        self.uses: tuple[Use, ...] = ()
        """Parallel to `gates`."""
        self.window: RateWindow | None = None
        self.obstacle: str | None = None
        """Why none of its executions can start, whatever others release: the closed gate."""
        self.is_deleted = False
        self.holding: dict[Execution, None] = {}
        """What holds units and waits at a later gate."""
        self.priority = self.ticket = 0
        """Of its next execution, while that is in a line."""
        self.base = 0
        self.reached = -1
        """The last line where its next execution is: an index in `gates`, their number for the pool, or -1
        for none. It waits at `base`, and could pass the gates from there to this one."""
        self.enqueued = 0
        self.completed = 0

    @property
    def ref(self) -> str:
        """The name of the action."""
        return self.definition.ref


Member: TypeAlias = ActionState | Execution
"""What stands in a line: an action for its next execution, or an execution that holds units already."""


def action_of(member: Member) -> ActionState:
    """Return the action of a member."""
    return member if isinstance(member, ActionState) else member.queue.action


class Timer(NamedTuple):
    """Something to look at when its time has come. What it is about may have changed meanwhile."""

    at: float
    number: int
    about: "About"


About: TypeAlias = Execution | ResourceGate | ActionState | tuple[Queue, int]
"""A delayed execution or one that holds units and expires, the rate of a resource or an action, an action
whose execution is passed over, a waiting list that expires."""


def has_meaning(timer: Timer) -> bool:
    """Return whether what a timer is about still waits for this instant."""
    match timer.about:
        case Execution() as execution:
            if execution.status is Status.DELAYED:
                return timer.at == execution.due_at
            return execution.base > 0 and execution.worker is None and timer.at == execution.expires_at
        case (queue, priority):
            waiting = queue.waiting.get(priority)
            return waiting is not None and waiting.soonest == timer.at
        case _:
            return True


class State:
    """Everything. `epoch` and `next_id` come from the ledger."""

    def __init__(self, *, epoch: int = 1, next_id: int = 1) -> None:
        self.epoch = epoch
        self.next_id = next_id
        self.grant_counter = 0
        self.actions: dict[str, ActionState] = {}
        self.retired: dict[str, tuple[int, int]] = {}
        """Totals of actions that were deleted, enqueued and completed: a new definition goes on."""
        self.resources: dict[str, ResourceGate] = {}
        self.pools: dict[str, PoolState] = {}
        self.workers: dict[str, Worker] = {}
        self.executions: dict[int, Execution] = {}
        self.now = 0.0
        self.dirty_pools: dict[PoolState, None] = {}
        """Pools where something may be granted."""
        self.queues_to_look_at: dict[Queue, None] = {}
        """Queues of a changed definition."""
        self.patience: dict[int, float] = {}
        """Executions that others pass at a resource because no worker can take them: until when."""
        self.impatient: dict[ActionState, None] = {}
        """Actions whose next execution has been passed over for too long."""
        self.timers: list[Timer] = []
        self.timers_set = 0
        self.timers_void = 0

    def after(self, seconds: float) -> float:
        """Return an instant from now on, in whole microseconds: the ledger stores no others."""
        return round(self.now + seconds, 6)

    def set_timer(self, at: float, about: About) -> None:
        """Look at something at an instant; inf: never."""
        if at != inf:
            self.timers_set += 1
            heappush(self.timers, Timer(at, self.timers_set, about))

    def void_timer(self) -> None:
        """Count a timer that has no meaning any more; when most have none, they are removed."""
        self.timers_void += 1
        if self.timers_void > 1000 and self.timers_void * 2 > len(self.timers):
            self.timers = [timer for timer in self.timers if has_meaning(timer)]
            heapify(self.timers)
            self.timers_void = 0

    def due_timers(self, now: float) -> Iterator[Timer]:
        """Remove and yield the timers whose time has come."""
        while self.timers and self.timers[0].at <= now:
            timer = heappop(self.timers)
            if has_meaning(timer):
                yield timer
            else:
                self.timers_void -= self.timers_void > 0

    def queue(self, ref: str, key: str) -> Queue | None:
        """Return the queue of an action and key, if it has or had something to do."""
        action = self.actions.get(ref)
        return None if action is None else action.queues.get(key)
