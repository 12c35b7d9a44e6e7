"""How gates decide: a pure model of the scheduler with several limits at once.

Read `Gates.decide` first; it is the whole scheduler. Everything else changes something (an execution arrives
or ends, a limit moves, a worker joins, time passes) and then calls `decide`. docs/gates.md explains the idea
and answers the questions that the code below decides.

- An execution passes the gates of its route one after another, in one global order. It acquires its units at
  each gate and holds all of them until it ends or returns to its first gate.
- A state is an immutable value. Each operation returns a `Step`: the new state, and every passage of a gate
  that it caused, in the order of decision. A passage of the last gate is a grant.
- Numbers are exact: integers, and tags in units of 1 / `System.tag_scale`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from tests.proof.gates.definitions import GRANTED, QueueKey, Stop, System


class Execution(NamedTuple):
    """One execution that has not ended."""

    ticket: int
    """Its position in the order of arrival. It never changes."""
    action: str
    key: str
    priority: int
    """1 is first, 5 is last."""
    gate: int
    """Where it waits, or GRANTED."""
    held: tuple[tuple[int, int], ...] = ()
    """The gates that it has passed, with the units that it acquired there."""

    @property
    def queue_key(self) -> QueueKey:
        return self.action, self.key


Flow: TypeAlias = tuple[int, int, str]
"""A gate, a priority, and a key (at a total) or an action (at a resource or pool)."""


class State(NamedTuple):
    """Everything that a decision depends on, except the definitions."""

    executions: tuple[Execution, ...]
    """In order of their tickets."""
    next_ticket: int
    capacities: tuple[int | None, ...]
    """By gate. None is no limit; a pool's capacity follows from `workers`."""
    paused: frozenset[int]
    workers: frozenset[str]
    """The live workers."""
    tags: tuple[tuple[Flow, int], ...]
    """The finish tag of each flow: where its next execution begins in virtual time."""
    virtual_times: tuple[tuple[tuple[int, int], int], ...]
    """By gate and priority: the start tag of the last execution that passed."""
    now: int
    starts: tuple[tuple[int, ...], ...]
    """By rate: the instants of its latest grants, as many as the rate has starts."""


class Passage(NamedTuple):
    """An execution passed a gate and acquired units there."""

    gate: int
    ticket: int
    units: int


class Step(NamedTuple):
    """The result of an operation."""

    state: State
    passages: tuple[Passage, ...]
    grants: tuple[int, ...]


class Gates:
    """The model. It has no state of its own: operations map a state to a step."""

    def __init__(self, system: System) -> None:
        self.system = system

    # The operations. Each one changes the state, then decides once.

    def initial(self, workers: Iterable[str] | None = None) -> State:
        """Return the state without executions. All workers are live unless named."""
        system = self.system
        return State(
            executions=(),
            next_ticket=1,
            capacities=tuple(gate.capacity for gate in system.gates),
            paused=frozenset(),
            workers=frozenset(system.workers if workers is None else workers),
            tags=(),
            virtual_times=(),
            now=0,
            starts=((),) * len(system.rates),
        )

    def admit(self, state: State, action: str, key: str = "", priority: int = 3) -> Step:
        """A request arrives: it takes the next ticket and joins the list of its first gate."""
        first_gate = self.system.routes[action, key][0].gate
        execution = Execution(state.next_ticket, action, key, priority, first_gate)
        return self.decide(
            state._replace(executions=(*state.executions, execution), next_ticket=state.next_ticket + 1)
        )

    def settle(self, state: State, *tickets: int) -> Step:
        """These granted executions have ended: they release their units, all of them before the decision."""
        return self.decide(self._without(state, tickets))

    def cancel(self, state: State, ticket: int) -> Step:
        """A waiting execution ends, and releases what it holds at gates that it has passed."""
        return self.decide(self._without(state, (ticket,)))

    def expire(self, state: State, ticket: int) -> Step:
        """The time to live of a waiting execution is over: as a cancel."""
        return self.cancel(state, ticket)

    def reclaim(self, state: State, *tickets: int) -> Step:
        """The worker of these granted executions is lost: they release their units and begin again.

        They keep their tickets. A hand-back by a worker and a retry without delay are the same operation.
        """
        return self.decide(self._changed(state, tickets, self._restarted))

    def hand_back(self, state: State, ticket: int) -> Step:
        return self.reclaim(state, ticket)

    def pause(self, state: State, *gates: int) -> Step:
        """Close gates. An action is paused by pausing all its queues."""
        return self.decide(state._replace(paused=state.paused | set(gates)))

    def resume(self, state: State, *gates: int) -> Step:
        return self.decide(state._replace(paused=state.paused - set(gates)))

    def change_capacity(self, state: State, gate: int, capacity: int | None) -> Step:
        """Set the limit of a queue, key, total or resource. It takes nothing away from who has passed."""
        before, after = state.capacities[:gate], state.capacities[gate + 1 :]
        return self.decide(state._replace(capacities=(*before, capacity, *after)))

    def join(self, state: State, worker: str) -> Step:
        """A worker registers: the capacity of its pools grows by its worker slots."""
        return self.decide(state._replace(workers=state.workers | {worker}))

    def leave(self, state: State, worker: str, *running: int) -> Step:
        """A worker drains, or its lease is over.

        The executions that it runs leave their pool with it: they keep the units of all other gates, and no
        longer count against the worker slots of the workers that stay.
        """
        left = self._changed(state, running, self._without_worker_slot)
        return self.decide(left._replace(workers=state.workers - {worker}))

    def tick(self, state: State) -> Step:
        """Time passes: a rate may have a start again."""
        return self.decide(state._replace(now=state.now + 1))

    # The decision.

    def decide(self, state: State) -> Step:
        """Let everything pass that can: gate by gate in the global order, at each gate one after another.

        One pass over the gates is enough: passing a gate releases nothing, so it helps no execution at an
        earlier gate. The result is a fixed point: deciding again changes nothing.
        """
        table = Table(self.system, state)
        self.return_to_first_gate(table)
        for gate in self.gates_in_order(table):
            while (execution := self.next_to_pass(table, gate)) is not None:
                self.let_pass(table, gate, execution)
        return table.step()

    def gates_in_order(self, table: "Table") -> Iterator[int]:
        """Yield the gates at which executions wait, each read when its turn comes."""
        return (gate for gate, waiting in enumerate(table.waiting) if waiting)

    def return_to_first_gate(self, table: "Table") -> None:
        """Take all units from executions that cannot start, whatever others release.

        An execution whose route is closed somewhere releases its units and waits at its first gate.
        Otherwise a paused action could keep the units of a shared resource from its neighbours.
        """
        for gate, waiting in enumerate(table.waiting):
            for execution in [e for e in waiting if e.held and self.obstacle(table, e) is not None]:
                waiting.remove(execution)
                for passed, units in execution.held:
                    table.held[passed] -= units
                again = self._restarted(execution)
                assert again.gate < gate
                table.waiting[again.gate].append(again)

    def obstacle(self, table: "Table", execution: Execution) -> int | None:
        """Return the first gate of the route that is closed for this execution, if one is.

        Closed is a gate that is paused, whose capacity is less than the units that the execution needs there
        (0 included), or that is a pool without a live worker for the action.
        """
        queue_key = execution.queue_key
        if queue_key not in table.obstacles:
            route = self.system.routes[queue_key]
            table.obstacles[queue_key] = next(
                (s.gate for s in route if self.is_closed(table, execution, s)), None
            )
        return table.obstacles[queue_key]

    def is_closed(self, table: "Table", execution: Execution, stop: Stop) -> bool:
        if stop.gate in table.state.paused:
            return True
        if self.system.gates[stop.gate].kind == "pool":
            return not table.workers_for(execution.action)
        capacity = self.capacity(table, stop.gate)
        return capacity is not None and capacity < stop.units

    def next_to_pass(self, table: "Table", gate: int) -> Execution | None:
        """Return the execution that passes this gate now, if one does.

        Strict order: the first one in the list, or none. Only a pool looks further (`next_at_pool`).
        """
        waiting = table.waiting[gate]
        if not waiting:
            return None
        if self.system.gates[gate].kind == "pool":
            return self.next_at_pool(table, gate)
        first = min(waiting, key=lambda e: self.position(table, gate, e))
        if not first.held and self.obstacle(table, first) is not None:
            # All executions in this list have the same route.
            return None
        return first if self.fits(table, gate, first) else None

    def position(self, table: "Table", gate: int, execution: Execution) -> tuple[int, int, int]:
        """Return what orders the list of a gate: priority, then the tag of the flow (fair), then ticket."""
        tag = self.start_tag(table, gate, execution) if self.system.gates[gate].fair else 0
        return execution.priority, tag, execution.ticket

    def fits(self, table: "Table", gate: int, execution: Execution) -> bool:
        capacity = self.capacity(table, gate)
        return capacity is None or table.held[gate] + self.units(execution, gate) <= capacity

    def units(self, execution: Execution, gate: int) -> int:
        return next(stop.units for stop in self.system.routes[execution.queue_key] if stop.gate == gate)

    def capacity(self, table: "Table", gate: int) -> int | None:
        return table.state.capacities[gate]

    def let_pass(self, table: "Table", gate: int, execution: Execution) -> None:
        """The execution acquires its units, and joins the list of its next gate or is granted."""
        units = self.units(execution, gate)
        if self.system.gates[gate].fair:
            self.charge(table, gate, execution, units)
        table.waiting[gate].remove(execution)
        table.held[gate] += units
        table.passages.append(Passage(gate, execution.ticket, units))
        following = self.gate_after(execution, gate)
        passed = execution._replace(gate=following, held=(*execution.held, (gate, units)))
        if following == GRANTED:
            table.granted.append(passed)
            table.grants.append(execution.ticket)
            self.count_start(table, execution)
        else:
            table.waiting[following].append(passed)

    def gate_after(self, execution: Execution, gate: int) -> int:
        gates = [stop.gate for stop in self.system.routes[execution.queue_key]]
        following = gates.index(gate) + 1
        return gates[following] if following < len(gates) else GRANTED

    # Fairness: start-time fair queueing (Goyal, Vin, Cheng 1996), for each priority on its own.

    def flow(self, gate: int, execution: Execution) -> Flow:
        is_total = self.system.gates[gate].kind == "total"
        return gate, execution.priority, execution.key if is_total else execution.action

    def start_tag(self, table: "Table", gate: int, execution: Execution) -> int:
        """Return the start tag of the first execution of this flow: max(virtual time, finish tag).

        Nothing is stored on arrival. Virtual time never passes the tag of a flow that waits, so the maximum
        is the same number now and at the moment at which that execution became the first of its flow.
        """
        finish = table.tags.get(self.flow(gate, execution), 0)
        return max(table.virtual_times.get((gate, execution.priority), 0), finish)

    def charge(self, table: "Table", gate: int, execution: Execution, units: int) -> None:
        """Virtual time becomes the start tag of who passes; the flow continues at its finish tag."""
        tag = self.start_tag(table, gate, execution)
        flow = self.flow(gate, execution)
        table.virtual_times[gate, execution.priority] = tag
        table.tags[flow] = tag + self.cost(gate, flow, units)

    def cost(self, gate: int, flow: Flow, units: int) -> int:
        return units * self.system.tag_scale // self.system.gates[gate].weights.get(flow[2], 1)

    # The pool, and the rates behind it.

    def next_at_pool(self, table: "Table", gate: int) -> Execution | None:
        """Return the first execution that can start now.

        Two things let later executions of other actions pass, because they would otherwise wait for something
        that they do not need: the workers of its action are full while others have free slots, or a rate
        limit has no start left. Then no later execution of the same action passes either.
        """
        if not self.has_worker_slot(table, gate, frozenset(table.workers)):
            return None
        starts_left = [self.starts_left(table, rate) for rate in self.system.rates]
        passed_over: set[str] = set()
        for execution in sorted(table.waiting[gate], key=lambda e: self.position(table, gate, e)):
            action = execution.action
            if action in passed_over:
                continue
            if self.has_worker_slot(table, gate, table.workers_for(action)) and self.take_starts(
                starts_left, action
            ):
                return execution
            passed_over.add(action)
        return None

    def has_worker_slot(self, table: "Table", gate: int, workers: frozenset[str]) -> bool:
        """Return whether these workers have a worker slot, or the lead has.

        Of the granted executions those count that only these workers can run.
        """
        pool = self.system.pools[self.system.gates[gate].name.removeprefix("pool ")]
        workers = frozenset(w for w in workers if pool.name in self.system.workers[w].pools)
        capacity = sum(self.system.workers[w].concurrency for w in workers)
        bound = 0
        for execution in table.granted:
            able = table.workers_for(execution.action)
            if able and able <= workers and any(passed == gate for passed, _ in execution.held):
                bound += 1
        return bool(capacity) and bound < capacity + pool.lead

    def starts_left(self, table: "Table", rate: str) -> int:
        """Return how many grants the rate allows now: its window slides, and has no edges."""
        limit = self.system.rates[rate]
        recent = [
            at for at in table.starts[self.system.rate_number[rate]] if table.state.now - at < limit.per
        ]
        return limit.starts - len(recent)

    def take_starts(self, starts_left: list[int], action: str, /) -> bool:
        """Take one start of each rate of the action, in order; stop at the first that has none left.

        What an execution took before it stopped is kept for it in this decision: an execution that needs two
        shared rates would otherwise lose one to its neighbours each time it waits for the other, and starve.
        """
        for rate in self.system.rate_names[action]:
            number = self.system.rate_number[rate]
            if starts_left[number] <= 0:
                return False
            starts_left[number] -= 1
        return True

    def count_start(self, table: "Table", execution: Execution) -> None:
        for rate in self.system.rate_names[execution.action]:
            starts = table.starts[self.system.rate_number[rate]]
            starts.append(table.state.now)
            del starts[: -self.system.rates[rate].starts]

    # Parts of operations.

    def _restarted(self, execution: Execution) -> Execution:
        return execution._replace(gate=self.system.routes[execution.queue_key][0].gate, held=())

    def _without_worker_slot(self, execution: Execution) -> Execution:
        kinds = self.system.gates
        return execution._replace(held=tuple(h for h in execution.held if kinds[h[0]].kind != "pool"))

    def _changed(
        self, state: State, tickets: Collection[int], change: Callable[[Execution], Execution]
    ) -> State:
        executions = tuple(change(e) if e.ticket in tickets else e for e in state.executions)
        return state._replace(executions=executions)

    def _without(self, state: State, tickets: Collection[int]) -> State:
        return state._replace(executions=tuple(e for e in state.executions if e.ticket not in tickets))


class Table:
    """The state while a decision changes it, sorted by gate."""

    def __init__(self, system: System, state: State) -> None:
        self.system = system
        self.state = state
        self.waiting: list[list[Execution]] = [[] for _ in system.gates]
        self.granted: list[Execution] = []
        self.held = [0] * len(system.gates)
        """Units that are acquired, by gate."""
        self.tags = dict(state.tags)
        self.virtual_times = dict(state.virtual_times)
        self.starts = [list(instants) for instants in state.starts]
        self.workers = state.workers
        self.obstacles: dict[QueueKey, int | None] = {}
        self.passages: list[Passage] = []
        self.grants: list[int] = []
        for execution in state.executions:
            (self.granted if execution.gate == GRANTED else self.waiting[execution.gate]).append(execution)
            for gate, units in execution.held:
                self.held[gate] += units

    def workers_for(self, action: str) -> frozenset[str]:
        """Return the live workers that serve this action."""
        workers = self.system.workers
        return frozenset(w for w in self.workers if workers[w].serves(self.system.actions[action]))

    def step(self) -> Step:
        executions = self.granted + [execution for waiting in self.waiting for execution in waiting]
        state = self.state._replace(
            executions=tuple(sorted(executions)),
            tags=tuple(sorted(self.tags.items())),
            virtual_times=tuple(sorted(self.virtual_times.items())),
            starts=tuple(map(tuple, self.starts)),
        )
        return Step(state, tuple(self.passages), tuple(self.grants))
