"""The state of the scheduler: everything that a decision depends on. `decide` and `transitions` change it.

What waits plainly is an entry in a `WaitingList`, and nothing else. An `Execution` exists for what was
granted, is delayed, holds units, or has a past: attempts, a cancel, settings of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, NamedTuple, TypeAlias

from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager.decisions import Passage
from turnstile.executor.queue_manager.definitions import Action, KeySettings, Pool, Resource, Use
from turnstile.executor.queue_manager.lines import Entry, FairClock, Line
from turnstile.executor.queue_manager.rates import RateWindow
from turnstile.executor.queue_manager.waiting import WaitingList

PLAIN: Final = KeySettings()


@dataclass(slots=True, eq=False, repr=False)
class Execution:
    """An execution of which more is known than that it waits. Instants in seconds since 1970."""

    id: int
    queue: "Queue"
    priority: int
    queued_at: float
    """Its first enqueue."""
    expires_at: float
    action: "ActionState" = field(init=False)
    status: Status = Status.QUEUED
    attempt: int = 0
    failures: int = 0
    reclaims: int = 0
    due_at: float | None = None
    cancel_reason: str | None = None
    cancel_requested_at: float | None = None
    timeout_seconds: float | None = None
    grant: Grant | None = None
    worker: "Worker | None" = None
    scheduled_at: float | None = None
    started_at: float | None = None
    ttl_seconds: float | None = None
    """Of a request that is delayed before its first enqueue: replaces the action's."""
    held_at: tuple["ResourceGate", ...] = ()
    """The resources whose units it holds."""
    base: int = 0
    """The line where it waits while it holds units, as in `ActionState.reached`."""
    reached: int = -1
    is_recorded: bool = False
    """The ledger has a row about it beside its record and its grant."""
    is_impatient: bool = False
    """It holds units although no worker can take it: it was passed over for too long."""
    is_short: bool = False
    """Its action had runs when it was granted: it is expected to end within a horizon."""
    is_suspect: bool = False
    """It was short and at a worker that was lost, and has not ended since: it is granted only a free slot."""
    passages: tuple[Passage, ...] = ()

    def __post_init__(self) -> None:
        self.action = self.queue.action

    @property
    def ticket(self) -> int:
        """Its id: the place in all orders."""
        return self.id

    @property
    def is_plain(self) -> bool:
        """Whether an entry in a waiting list says all about it, once it waits."""
        return not self.attempt and self.timeout_seconds is None and not self.is_recorded


@dataclass(slots=True, eq=False, repr=False)
class Worker:
    """A live worker process. `gates.recount` keeps `free` equal to what `held` and the settings say."""

    id: str
    pools: tuple[str, ...] = ()
    """The pool that was served last stands last, so that pools take turns at its worker slots."""
    actions: frozenset[str] | None = None
    concurrency: int = 0
    is_taking: bool = False
    held: dict[int, Execution] = field(default_factory=dict)
    """What is at this worker: offered or running."""
    surplus: int = 0
    """How many of these are beyond the limits of their queues, in runs: they need no worker slot."""
    lasting: int = 0
    """How many of these are not short."""
    free: int = 0
    """Worker slots that take an offer now; below 0: so many wait for a worker slot there."""
    is_watched: bool = False
    """A timer looks for runs that stalled there."""
    recalled: dict[Execution, None] = field(default_factory=dict)
    """What it was asked to return if it has not started it, until it does, or says that it has. Nothing that
    is granted later may start before that, so until then it gets nothing."""
    crews: dict["Crew", None] = field(default_factory=dict)
    burden: tuple[int, float] = 0, 0.0
    """How many crews it serves, and the share of its slots in use: the smallest takes what is next."""

    @property
    def takes(self) -> bool:
        """Whether it may get something now."""
        return self.is_taking and not self.recalled

    @property
    def used(self) -> int:
        """Worker slots that what is here needs: more than there are while some of it waits for them."""
        return len(self.held) - self.surplus

    def serves(self, action: Action) -> bool:
        """Return whether it has the action's pool and code."""
        return action.pool in self.pools and (
            not action.needs_code or self.actions is None or action.ref in self.actions
        )


@dataclass(slots=True, eq=False, repr=False)
class Queue:
    """The executions of one action and key, and what is held of its limit."""

    action: "ActionState"
    key: str
    settings: KeySettings = PLAIN
    waiting: dict[int, WaitingList] = field(default_factory=dict)
    """By priority; no list is empty."""
    length: int = 0
    """How many wait in it, without those that hold units."""
    startable: int = 0
    """How many of these its limit lets start, as `gates.look_at` saw it."""
    holders: dict[Execution, None] = field(default_factory=dict)
    """What has a slot: what was granted, and what waits at a later resource."""
    holding: int = 0
    """How many of these still wait."""
    delayed: int = 0
    at: dict[Worker, int] = field(default_factory=dict)
    """How many of its executions are at each worker."""
    surplus: int = 0
    """How many of them are in a run beyond what may run at once; all are at `home` then."""
    home: Worker | None = None
    """The worker of the last run."""
    last: tuple[int, int] = 0, 0
    """Priority and id of what starts last, of all that was granted to the run."""

    @property
    def limit(self) -> int | None:
        """The key's own limit, or the action's."""
        settings = self.settings
        return settings.max_concurrent if settings.has_limit else self.action.definition.max_concurrent

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        limit = self.limit
        return limit is None or len(self.holders) < limit

    @property
    def held(self) -> int:
        """How many have a slot, or wait in a run for one."""
        return len(self.holders)

    @property
    def active(self) -> int:
        """How many are at workers with a slot: those that run, or could."""
        return len(self.holders) - self.surplus - self.holding

    def head(self) -> tuple[int, int]:
        """Return priority and id of the first one. It must not be empty."""
        priority = min(self.waiting) if len(self.waiting) > 1 else next(iter(self.waiting))
        return priority, self.waiting[priority].first()

    def ahead_of(self, priority: int) -> int:
        """Return how many wait before all of a priority."""
        if len(self.waiting) == 1 and priority in self.waiting:
            return 0
        return sum(waiting.length for other, waiting in self.waiting.items() if other < priority)

    def position(self, priority: int, execution_id: int) -> int | None:
        """Return the position of an execution, from 1; None: it does not wait here."""
        waiting = self.waiting.get(priority)
        position = None if waiting is None else waiting.position(execution_id)
        return None if position is None else self.ahead_of(priority) + position

    @property
    def is_idle(self) -> bool:
        """Whether nothing needs it: it can be forgotten."""
        return not (self.waiting or self.holders or self.delayed) and self.settings == PLAIN


@dataclass(slots=True, eq=False, repr=False)
class ResourceGate:
    """A resource: its units, and who waits for them."""

    definition: Resource
    clock: FairClock | None = field(init=False)
    window: RateWindow | None = None
    held: int = 0
    holders: dict[Execution, int] = field(default_factory=dict)
    lanes: dict["Crew", "Lane"] = field(default_factory=dict)
    users: dict["ActionState", None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = FairClock(self.name) if self.definition.order == "fair" else None

    @property
    def name(self) -> str:
        """As in passages, and as its clock and rate are called."""
        return f"resource {self.definition.name}"


@dataclass(slots=True, eq=False, repr=False)
class Lane:
    """Where the executions of one crew wait at one resource."""

    gate: ResourceGate
    crew: "Crew"
    line: "Line[Member]" = field(init=False)
    """Who waits here."""
    urgent: dict["Member", None] = field(default_factory=dict)
    """Those of them that are not passed: they hold units, or were passed over for too long."""
    coming: dict["Member", "Entry[Member]"] = field(default_factory=dict)
    """Who waits at an earlier resource, and could pass that now."""
    front: "Member | None" = None
    """The first of both, if it could pass now."""

    def __post_init__(self) -> None:
        self.line = Line(self.gate.clock)

    def first(self) -> Entry["Member"] | None:
        """Return the first of those who wait here or are coming."""
        first = self.line.first()
        if self.coming:
            best = min(self.coming.values(), key=self.line.rank)
            if first is None or self.line.rank(best) < self.line.rank(first):
                return best
        return first


@dataclass(slots=True, eq=False, repr=False)
class Crew:
    """The workers that can run an action of a pool: actions with the same workers wait in one line."""

    pool: "PoolState"
    workers: tuple[Worker, ...]
    actions: dict["ActionState", None] = field(default_factory=dict)
    free: int = field(init=False)
    """Worker slots that take an offer now."""
    line: "Line[Member]" = field(init=False)
    """What waits for nothing but a worker slot."""
    lanes: dict[Lane, None] = field(default_factory=dict)
    offers: list[tuple[int, float, str, Worker]] = field(default_factory=list)
    """A heap of workers by their burden, in which each worker with a free slot has its present one."""
    stuck: dict["Member", None] = field(default_factory=dict)
    """What could pass the resource where it waits, and not a later one."""
    holding: dict[Execution, None] = field(default_factory=dict)
    """What holds units, waits, and gives them back when no worker can take it."""

    def __post_init__(self) -> None:
        self.free, self.line = sum(max(worker.free, 0) for worker in self.workers), Line(self.pool.clock)

    @property
    def has_room(self) -> bool:
        """Whether a worker can take one more now."""
        return self.free > 0 and not self.pool.definition.paused

    @property
    def is_served(self) -> bool:
        """Whether one of its workers takes what is offered, as soon as it has a free slot."""
        return any(worker.is_taking and worker.concurrency for worker in self.workers)

    @property
    def is_live(self) -> bool:
        """Whether it is served, and its pool is not paused."""
        return not self.pool.definition.paused and self.is_served

    def spare(self) -> int:
        """Return how many more may hold units: the free worker slots that no holder counts on."""
        return (0 if self.pool.definition.paused else self.free) - len(self.holding)


@dataclass(slots=True, eq=False, repr=False)
class PoolState:
    """A pool: the crews of its actions, and the order between the actions."""

    definition: Pool
    clock: FairClock | None = field(init=False)
    crews: dict[tuple[str, ...], Crew] = field(default_factory=dict)
    served: int = 0
    """The number of its last grant."""

    def __post_init__(self) -> None:
        name = self.definition.name
        self.clock = FairClock(f"pool {name}") if self.definition.order == "fair" else None


@dataclass(slots=True, eq=False, repr=False)
class ActionState:
    """An action, its queues, and where its next execution waits."""

    definition: Action
    crew: Crew
    action: "ActionState" = field(init=False)
    """Itself: what stands in a line has an action."""
    ref: str = field(init=False)
    queues: dict[str, Queue] = field(default_factory=dict)
    held: int = 0
    """Slots of all its queues."""
    surplus: int = 0
    """How many of these are in runs beyond what may run at once."""
    startable: int = 0
    """How many the limits of its queues let start."""
    clock: FairClock | None = None
    """Of its total, where that has a fair order."""
    line: Line[Queue] = field(default_factory=lambda: Line(None))
    """Its queues that have something to start and a free slot."""
    gates: tuple[ResourceGate, ...] = ()
    """The resources that it uses, in the order in which they are acquired."""
    uses: tuple[Use, ...] = ()
    """Parallel to `gates`."""
    window: RateWindow | None = None
    is_closed: bool = False
    """None of its executions can start, whatever others release."""
    holding: dict[Execution, None] = field(default_factory=dict)
    """What holds units and waits at a later gate."""
    queue: Queue | None = None
    priority: int = 0
    ticket: int = 0
    """Of its next execution, while that is in a line."""
    base: int = 0
    reached: int = -1
    """The last line where its next execution is: an index in `gates`, their number for the pool, or -1 for
    none. It waits at `base`, and could pass the gates from there to this one."""
    enqueued: int = 0
    completed: int = 0
    seconds: float | None = None
    """Mean duration of its attempts, lately; None: none has ended since the load."""
    offer_bytes: float = 0.0
    """Size of the largest offers, lately."""
    pace: float = 0.0
    """How many of them one slot ends within a horizon; 0: it has no runs (`runs`)."""

    def __post_init__(self) -> None:
        self.action, self.ref = self, self.definition.ref

    @property
    def slots_used(self) -> int:
        """How many slots are in use, those of executions that wait at later gates included."""
        return self.held - self.surplus

    @property
    def has_gates(self) -> bool:
        """Whether its executions pass more gates than its queues and its pool: their passages are kept."""
        return bool(self.gates) or self.definition.max_concurrent_total is not None


Member: TypeAlias = ActionState | Execution
"""What stands in a line: an action for its next execution, or an execution that holds units already."""


class Timer(NamedTuple):
    """Something to look at when its time has come. What it is about may have changed meanwhile."""

    at: float
    number: int
    about: "About"


About: TypeAlias = Execution | ResourceGate | ActionState | Worker | tuple[Queue, int]
"""A delayed execution or one that holds units and expires, the rate of a resource or an action, an action
whose execution is passed over, a worker whose runs may have stalled, a waiting list that expires."""


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
        self.changed_workers: dict[Worker, None] = {}
        """What changed since `gates.apply_changes`: slots of workers, what waits in queues and is held of
        them, which execution an action stands for, who waits for units of resources and how many are held."""
        self.changed_queues: dict[Queue, None] = {}
        self.changed_actions: dict[ActionState, None] = {}
        self.changed_gates: dict[ResourceGate, None] = {}
        self.runs: dict[Queue, None] = {}
        """Queues of which more wait than may run at once, and whose actions have runs."""
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
