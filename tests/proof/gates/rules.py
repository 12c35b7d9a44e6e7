"""What must hold after every operation, checked without the code that decides.

`Checker.after` replays one step. It derives from the operation alone who waits where before the decision,
then follows the reported passages one by one and checks each (P11 units, P12 order, P13 rate, P14 fairness),
and compares the end with the state that the model returned. `Checker.at_rest` checks a state: nothing that
could pass still waits (P7), and waiting work leads to a grant.

What the checker must remember of the past is its `Memory`: the explorer keeps it beside the state.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from tests.proof.gates.definitions import GRANTED, QueueKey, Stop, System
from tests.proof.gates.model import Execution, Gates, State, Step

Pair: TypeAlias = tuple[int, int, str, str]
"""A gate, a priority, and two flows there, in order of their names."""


class Event(NamedTuple):
    """An operation of `Gates` by its name, and its arguments after the state."""

    name: str
    arguments: tuple[int | str | None, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.arguments))})"

    @property
    def numbers(self) -> list[int]:
        """Tickets or gates among the arguments."""
        return [argument for argument in self.arguments if isinstance(argument, int)]


class Violation(AssertionError):
    """A rule does not hold."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class Memory(NamedTuple):
    """What a state does not show: the last starts of each rate, and what the flows of fair gates have got.

    For a pair of flows that both wait: how far the difference of their shares is above its minimum and below
    its maximum since both began to wait. Pairs with (0, 0) are left out.
    """

    starts: tuple[tuple[int, ...], ...]
    shares: tuple[tuple[Pair, tuple[int, int]], ...]


class Checker:
    """The rules for one system; `earlier` is what it was before its weights changed: tags are of then."""

    def __init__(self, system: System, earlier: Sequence[System] = ()) -> None:
        self.system = system
        self.earlier = earlier

    def empty_memory(self) -> Memory:
        return Memory(starts=((),) * len(self.system.rates), shares=())

    def after(self, before: State, memory: Memory, event: Event, step: Step) -> Memory:
        """Check one step; return what to remember. Raises Violation."""
        self._check_settings(before, event, step.state)
        executions = self._before_decision(before, event, step.state)
        replay = Replay(self.system, executions, step.state, memory, self.earlier)
        replay.forget_shares()
        for gate, ticket, units in step.passages:
            replay.follow(gate, ticket, units)
        replay.forget_shares()
        if sorted(replay.executions.values()) != list(step.state.executions):
            raise Violation("conservation", f"expected {replay.executions}, found {step.state.executions}")
        if tuple(replay.grants) != step.grants:
            raise Violation("conservation", f"grants {step.grants}, expected {replay.grants}")
        return replay.memory()

    def _check_settings(self, before: State, event: Event, after: State) -> None:
        capacities, paused, workers = list(before.capacities), set(before.paused), set(before.workers)
        now, next_ticket = before.now, before.next_ticket
        match event:
            case Event("change_capacity", (int(gate), int() | None as capacity)):
                capacities[gate] = capacity
            case Event("pause"):
                paused.update(event.numbers)
            case Event("resume"):
                paused.difference_update(event.numbers)
            case Event("join", (str(worker),)):
                workers.add(worker)
            case Event("leave", (str(worker), *_)):
                workers.discard(worker)
            case Event("tick"):
                now += 1
            case Event("admit"):
                next_ticket += 1
            case _:
                pass
        expected = (tuple(capacities), frozenset(paused), frozenset(workers), now, next_ticket)
        found = (after.capacities, after.paused, after.workers, after.now, after.next_ticket)
        if expected != found:
            raise Violation("settings", f"{event} made {found}, expected {expected}")

    def _before_decision(self, before: State, event: Event, after: State) -> dict[int, Execution]:
        """Return the executions after the operation itself, with those returned whose route is closed."""
        executions = {execution.ticket: execution for execution in before.executions}
        match event:
            case Event("admit", (str(action), str(key), int(priority))):
                ticket = before.next_ticket
                executions[ticket] = self._at_first_gate(Execution(ticket, action, key, priority, GRANTED))
            case Event("settle" | "cancel"):
                for ticket in event.numbers:
                    del executions[ticket]
            case Event("reclaim"):
                for ticket in event.numbers:
                    executions[ticket] = self._at_first_gate(executions[ticket])
            case Event("leave"):
                for ticket in event.numbers:
                    executions[ticket] = executions[ticket]._replace(held=executions[ticket].held[:-1])
            case _:
                pass
        for execution in list(executions.values()):
            if (
                execution.gate != GRANTED
                and execution.held
                and is_closed(self.system, after, execution.queue_key)
            ):
                executions[execution.ticket] = self._at_first_gate(execution)
        return executions

    def _at_first_gate(self, execution: Execution) -> Execution:
        return execution._replace(gate=self.system.routes[execution.queue_key][0].gate, held=())

    def at_rest(self, model: Gates, state: State, memory: Memory) -> None:
        """Check a state between two operations. Raises Violation."""
        waiting = [e for e in state.executions if e.gate != GRANTED]
        can_start = [e for e in waiting if not is_closed(self.system, state, e.queue_key)]
        if not can_start:
            return
        replay = Replay(self.system, {e.ticket: e for e in state.executions}, state, memory)
        for gate in {execution.gate for execution in can_start}:
            if idle := replay.idle_units(gate, [e for e in can_start if e.gate == gate]):
                raise Violation("P7", f"{idle} could pass {self.system.gates[gate].name}")
        if len(waiting) == len(state.executions) and not self._starts_later(model, state):
            raise Violation("progress", f"no execution is granted, and {can_start} starve")

    def _starts_later(self, model: Gates, state: State) -> bool:
        """Return whether time alone leads to a grant."""
        for _ in range(max((rate.per for rate in self.system.rates.values()), default=0)):
            step = model.tick(state)
            if step.grants:
                return True
            state = step.state
        return False


class Replay:
    """The executions while the passages of one step are followed."""

    def __init__(
        self,
        system: System,
        executions: dict[int, Execution],
        after: State,
        memory: Memory,
        earlier: Sequence[System] = (),
    ) -> None:
        self.system = system
        self.earlier = earlier
        self.executions = executions
        self.after = after
        self.starts = [list(instants) for instants in memory.starts]
        self.shares = dict(memory.shares)
        self.grants: list[int] = []

    def memory(self) -> Memory:
        shares = tuple(sorted((pair, share) for pair, share in self.shares.items() if share != (0, 0)))
        return Memory(tuple(map(tuple, self.starts)), shares)

    def follow(self, gate: int, ticket: int, units: int) -> None:
        """Check one passage and make it."""
        execution = self.executions[ticket]
        route = self.system.routes[execution.queue_key]
        passed = len(execution.held)
        if execution.gate != gate or passed >= len(route) or route[passed] != Stop(gate=gate, units=units):
            raise Violation("P11", f"{execution} acquired {units} units of gate {gate}, its route is {route}")
        if is_closed(self.system, self.after, execution.queue_key):
            raise Violation("P12", f"{execution} passed a gate although its route is closed")
        following = route[passed + 1].gate if passed + 1 < len(route) else GRANTED
        if following == GRANTED:
            self._check_rates(execution)
        waiting = [e for e in self.executions.values() if e.gate == gate]
        self._check_order(gate, execution, waiting)
        self._check_units(gate, execution, units)
        if self.system.gates[gate].fair:
            self._share(gate, execution, waiting, units)
        self.executions[ticket] = execution._replace(gate=following, held=(*execution.held, (gate, units)))
        if following == GRANTED:
            self._count_start(execution)
        if self.system.gates[gate].fair:
            self.forget_shares(gate)

    def _check_units(self, gate: int, execution: Execution, units: int) -> None:
        """P11: the units fit the capacity that is in force."""
        if self.system.gates[gate].kind == "pool":
            if not (
                self.has_worker_slot(gate, self.after.workers)
                and self.has_worker_slot(gate, self.able(execution))
            ):
                raise Violation(
                    "P11", f"{execution} passed the pool, whose workers have no worker slot for it"
                )
            return
        capacity = self.after.capacities[gate]
        if capacity is not None and self.held(gate) + units > capacity:
            raise Violation("P11", f"{execution} exceeds the capacity {capacity} of gate {gate}")

    def held(self, gate: int) -> int:
        return sum(units for e in self.executions.values() for passed, units in e.held if passed == gate)

    def _check_order(self, gate: int, execution: Execution, waiting: list[Execution]) -> None:
        """P12: no execution that precedes it waits here and could pass."""
        is_pool = self.system.gates[gate].kind == "pool"
        for other in waiting:
            if self._precedes(gate, other, execution) and not (
                is_pool and self._is_excused(gate, other, waiting)
            ):
                raise Violation("P12", f"{execution} passed {other} at {self.system.gates[gate].name}")
        if is_pool:
            self._check_kept_starts(gate, execution, waiting)

    def _precedes(self, gate: int, one: Execution, other: Execution) -> bool:
        """Return whether one certainly precedes the other: between flows of one priority only P14 decides."""
        if one.priority != other.priority:
            return one.priority < other.priority
        if self.system.gates[gate].fair and self.flow(gate, one) != self.flow(gate, other):
            return False
        return one.ticket < other.ticket

    def flow(self, gate: int, execution: Execution) -> str:
        return execution.key if self.system.gates[gate].kind == "total" else execution.action

    # Pools and rates.

    def able(self, execution: Execution) -> frozenset[str]:
        """Return the live workers that could run this execution."""
        action = self.system.actions[execution.action]
        return frozenset(name for name in self.after.workers if self.system.workers[name].serves(action))

    def has_worker_slot(self, gate: int, workers: frozenset[str]) -> bool:
        pool = self.system.pools[self.system.gates[gate].name.removeprefix("pool ")]
        capacity = sum(
            self.system.workers[name].concurrency
            for name in workers
            if pool.name in self.system.workers[name].pools
        )
        taken = 0
        for execution in self.executions.values():
            if execution.gate == GRANTED and any(passed == gate for passed, _ in execution.held):
                able = self.able(execution)
                taken += bool(able) and able <= workers
        return capacity > 0 and taken < capacity + pool.lead

    def _is_excused(self, gate: int, execution: Execution, waiting: list[Execution]) -> bool:
        """Return whether this execution may be passed: its workers are full, or a rate has no start for it.

        While all workers of the pool are full, it waits for its turn.
        """
        is_free = self.has_worker_slot(gate, self.after.workers)
        if is_free and not self.has_worker_slot(gate, self.able(execution)):
            return True
        return any(
            self.left(rate) <= len(self._rivals(gate, rate, execution, waiting))
            for rate in self.system.rate_names[execution.action]
        )

    def _rivals(self, gate: int, rate: str, execution: Execution, waiting: list[Execution]) -> set[str]:
        """Return the other actions that wait here for this rate and do not certainly come later."""
        return {
            e.action for e in waiting
            if e.action != execution.action and rate in self.system.rate_names[e.action]
            and not self._precedes(gate, execution, e)
        }  # fmt: skip

    def left(self, rate: str) -> int:
        limit = self.system.rates[rate]
        instants = self.starts[self.system.rate_number[rate]]
        return limit.starts - sum(self.after.now - at < limit.per for at in instants)

    def _check_kept_starts(self, gate: int, execution: Execution, waiting: list[Execution]) -> None:
        """P12 at the rates: it takes no start that is kept for one that precedes it."""
        for rate in self.system.rate_names[execution.action]:
            keepers = {
                other.action for other in waiting
                if other.action != execution.action and self._precedes(gate, other, execution)
                and self.has_worker_slot(gate, self.able(other)) and self._reaches(gate, other, rate, waiting)
            }  # fmt: skip
            if keepers and self.left(rate) <= len(keepers):
                raise Violation("P12", f"{execution} took a start of {rate} that is kept for {keepers}")

    def _reaches(self, gate: int, execution: Execution, rate: str, waiting: list[Execution]) -> bool:
        names = self.system.rate_names[execution.action]
        if rate not in names:
            return False
        return all(
            self.left(name) > len(self._rivals(gate, name, execution, waiting))
            for name in names[: names.index(rate) + 1]
        )

    def _check_rates(self, execution: Execution) -> None:
        """P13: any starts + 1 consecutive grants span at least `per`."""
        for name in self.system.rate_names[execution.action]:
            limit, instants = self.system.rates[name], self.starts[self.system.rate_number[name]]
            if len(instants) == limit.starts and self.after.now - instants[0] < limit.per:
                raise Violation(
                    "P13", f"{execution} is start {limit.starts + 1} of {name} within {limit.per}"
                )

    def _count_start(self, execution: Execution) -> None:
        self.grants.append(execution.ticket)
        for name in self.system.rate_names[execution.action]:
            instants = self.starts[self.system.rate_number[name]]
            instants.append(self.after.now)
            del instants[: -self.system.rates[name].starts]

    # Fairness.

    def _share(self, gate: int, execution: Execution, waiting: list[Execution], units: int) -> None:
        """P14: add what this flow gets to its differences with all flows that wait too; check the bound."""
        flow, weights = self.flow(gate, execution), self.system.gates[gate].weights
        for other in self._flows(gate, execution.priority, waiting) - {flow}:
            first, second = min(flow, other), max(flow, other)
            growth = units * self.system.tag_scale // weights.get(flow, 1) * (1 if flow == first else -1)
            pair = gate, execution.priority, first, second
            above, below = self.shares.get(pair, (0, 0))
            above, below = max(above + growth, 0), max(below - growth, 0)
            bound = self._largest(gate, first) + self._largest(gate, second)
            if max(above, below) > bound:
                raise Violation(
                    "P14", f"{flow} is {max(above, below)} ahead of {other} or behind, bound {bound}"
                )
            self.shares[pair] = above, below

    def _flows(self, gate: int, priority: int, waiting: list[Execution]) -> set[str]:
        """Return the flows that wait at this gate and lack nothing but their turn."""
        flows: dict[str, Execution] = {}
        for execution in waiting:
            if execution.priority == priority:
                flows.setdefault(self.flow(gate, execution), execution)
        if self.system.gates[gate].kind != "pool":
            return set(flows)
        return {flow for flow, e in flows.items() if not self._is_excused(gate, e, waiting)}

    def _largest(self, gate: int, flow: str) -> int:
        """Return the most that one execution of this flow can cost."""
        costs = [
            stop.units * system.tag_scale // system.gates[gate].weights.get(flow, 1)
            for system in (self.system, *self.earlier)
            for (action, key), route in system.routes.items() for stop in route
            if stop.gate == gate and flow in (action, key)
        ]  # fmt: skip
        return max(costs)

    def forget_shares(self, gate: int | None = None) -> None:
        """Drop the pairs of which one flow does not wait any more."""
        flows: dict[tuple[int, int], set[str]] = {}
        for pair in list(self.shares):
            at, priority, first, second = pair
            if gate is not None and at != gate:
                continue
            if (at, priority) not in flows:
                waiting = [e for e in self.executions.values() if e.gate == at]
                flows[at, priority] = self._flows(at, priority, waiting)
            if not {first, second} <= flows[at, priority]:
                del self.shares[pair]

    # P7.

    def idle_units(self, gate: int, waiting: list[Execution]) -> list[Execution]:
        """Return executions of which one could pass: the units suffice for each that may be first.

        Without the tags the first execution of a fair gate is unknown, but it is the first one of some flow.
        """
        if self.system.gates[gate].kind == "pool":
            free = self.has_worker_slot(gate, self.after.workers)
            return [e for e in waiting if free and not self._is_excused(gate, e, waiting)]
        capacity = self.after.capacities[gate]
        firsts = [e for e in waiting if not any(self._precedes(gate, other, e) for other in waiting)]
        held = self.held(gate)
        is_idle = all(capacity is None or held + self._units(gate, e) <= capacity for e in firsts)
        return firsts if is_idle else []

    def _units(self, gate: int, execution: Execution) -> int:
        return next(stop.units for stop in self.system.routes[execution.queue_key] if stop.gate == gate)


def is_closed(system: System, state: State, queue_key: QueueKey) -> bool:
    """Return whether a gate of this route lets no execution pass, whatever is released."""
    for stop in system.routes[queue_key]:
        capacity = state.capacities[stop.gate]
        if stop.gate in state.paused or (capacity is not None and stop.units > capacity):
            return True
    action = system.actions[queue_key[0]]
    return not any(system.workers[name].serves(action) for name in state.workers)
