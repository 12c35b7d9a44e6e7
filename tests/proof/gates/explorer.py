"""Explores every interleaving of a small configuration, breadth first, and checks each step and each state.

Executions come and go without end, and yet the number of states is finite: only so many are alive at once,
and states that differ only in the numbers of tickets, in the time of day or in the origin of virtual time
are one state (`canonical`). So an exploration that is complete covers runs of any length.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.proof.gates.definitions import GRANTED, System
from tests.proof.gates.model import Execution, Gates, State, Step
from tests.proof.gates.rules import Checker, Event, Memory, Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A system, and what may happen to it at any moment."""

    name: str
    system: System
    alive_max: int
    """Nothing is admitted while so many executions have not ended."""
    requests: tuple[tuple[str, str, int], ...]
    """Action, concurrency key and priority of each request that may arrive."""
    pausable: tuple[tuple[str, ...], ...] = ()
    """Names of gates that are paused and resumed together."""
    capacities: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    """Capacities that a gate may get."""
    restless: tuple[str, ...] = ()
    """Workers that join and leave. They are absent at first."""
    tag_memory: int = 0
    """How far behind virtual time the finish tags of flows are told apart."""
    has_cancels: bool = True
    has_reclaims: bool = True
    has_batches: bool = True

    def events(self, state: State) -> Iterator[Event]:
        """Yield everything that may happen in this state."""
        if len(state.executions) < self.alive_max:
            yield from (Event("admit", request) for request in self.requests)
        granted = [execution for execution in state.executions if execution.gate == GRANTED]
        for number, execution in enumerate(granted):
            yield Event("settle", (execution.ticket,))
            if self.has_reclaims:
                yield Event("reclaim", (execution.ticket,))
            if self.has_batches:
                later = (e.ticket for e in granted[number + 1 :])
                yield from (Event("settle", (execution.ticket, other)) for other in later)
        if self.has_cancels:
            yield from (Event("cancel", (e.ticket,)) for e in state.executions if e.gate != GRANTED)
        yield from self._changes(state, granted)
        if any(state.starts):
            yield Event("tick")

    def _changes(self, state: State, granted: list[Execution]) -> Iterator[Event]:
        number = self.system.number
        for names in self.pausable:
            gates = tuple(number[name] for name in names)
            yield Event("resume" if gates[0] in state.paused else "pause", gates)
        for name, capacities in self.capacities.items():
            current = state.capacities[number[name]]
            yield from (Event("change_capacity", (number[name], c)) for c in capacities if c != current)
        for name in self.restless:
            if name not in state.workers:
                yield Event("join", (name,))
                continue
            worker = self.system.workers[name]
            running = [
                e.ticket for e in granted
                if worker.serves(self.system.actions[e.action])
                and any(self.system.gates[passed].kind == "pool" for passed, _ in e.held)
            ]  # fmt: skip
            yield from dict.fromkeys(
                [Event("leave", (name,)), Event("leave", (name, *running[: worker.concurrency]))]
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of an exploration."""

    configuration: str
    states: int
    """Different states of the model, each with everything that the checker remembers about its past."""
    transitions: int
    depth: int
    """The number of events on the longest shortest path."""
    seconds: float
    is_complete: bool
    """False if there were more states than allowed, or a violation."""
    violation: Violation | None = None
    trace: tuple[Event, ...] = ()
    """A shortest sequence of events that leads to the violation."""

    def __str__(self) -> str:
        verdict = "no violation" if self.violation is None else str(self.violation)
        return (
            f"{self.configuration:24} {self.states:9,} states {self.transitions:10,} transitions  "
            f"depth {self.depth:3}  {self.seconds:6.1f} s  "
            f"{'all' if self.is_complete else 'not all'}, {verdict}"
        )


@dataclass(frozen=True, slots=True)
class _Node:
    """A state that was reached, and how."""

    state: State
    memory: Memory
    depth: int
    parent: "_Node | None" = None
    event: Event | None = None

    def trace(self, event: Event) -> tuple[Event, ...]:
        events, node = [event], self
        while node.parent is not None and node.event is not None:
            events.append(node.event)
            node = node.parent
        return tuple(reversed(events))


def explore(configuration: Configuration, model: Gates | None = None, *, states_max: int = 10**9) -> Report:
    """Explore until nothing new appears, a rule is violated, or there are more than `states_max` states."""
    model = model or Gates(configuration.system)
    checker = Checker(configuration.system)
    began = time.monotonic()
    workers = set(configuration.system.workers) - set(configuration.restless)
    first = _Node(*canonical(configuration, model.initial(workers), checker.empty_memory()), 0)
    seen = {(first.state, first.memory)}
    frontier = deque([first])
    transitions, node = 0, first

    def report(violation: Violation | None = None, trace: tuple[Event, ...] = ()) -> Report:
        return Report(
            configuration=configuration.name, states=len(seen), transitions=transitions, depth=node.depth,
            seconds=time.monotonic() - began, is_complete=not frontier and violation is None,
            violation=violation, trace=trace,
        )  # fmt: skip

    while frontier and len(seen) <= states_max:
        node = frontier.popleft()
        for event in configuration.events(node.state):
            transitions += 1
            try:
                step = apply(model, node.state, event)
                memory = checker.after(node.state, node.memory, event, step)
                found = canonical(configuration, step.state, memory)
                if found not in seen:
                    seen.add(found)
                    checker.at_rest(model, *found)
                    frontier.append(_Node(*found, node.depth + 1, node, event))
                if event.name == "settle" and len(event.arguments) == 2:
                    _check_batch(model, node.state, event, step)
            except Violation as violation:
                return report(violation, node.trace(event))
    return report()


def apply(model: Gates, state: State, event: Event) -> Step:
    """Call the operation that the event names."""
    step = getattr(model, event.name)(state, *event.arguments)
    assert isinstance(step, Step)
    return step


def _check_batch(model: Gates, state: State, event: Event, step: Step) -> None:
    """The grants of a batch of settles do not depend on their order in the batch."""
    reverse = apply(model, state, Event("settle", event.arguments[::-1]))
    if (reverse.state, set(reverse.grants)) != (step.state, set(step.grants)):
        raise Violation("batch", f"{event} grants {step.grants}, in reverse order {reverse.grants}")


def canonical(configuration: Configuration, state: State, memory: Memory) -> tuple[State, Memory]:
    """Return the representative of all states that behave in the same way.

    Tickets are numbered from 1. The time is 0, and starts that no window contains are forgotten. Virtual
    times are 0, and flows whose finish tag is not above it are forgotten.
    """
    executions = tuple(
        e if e.ticket == number else e._replace(ticket=number) for number, e in enumerate(state.executions, 1)
    )
    system, lowest = configuration.system, -configuration.tag_memory
    origins = dict(state.virtual_times)
    ahead = ((flow, max(tag - origins.get(flow[:2], 0), lowest)) for flow, tag in state.tags)
    tags = tuple((flow, tag) for flow, tag in ahead if tag > 0 or lowest)
    return (
        state._replace(
            executions=executions, next_ticket=len(executions) + 1, tags=tags, virtual_times=(), now=0,
            starts=_ages(system, state.starts, state.now),
        ),
        memory._replace(starts=_ages(system, memory.starts, state.now)),
    )  # fmt: skip


def _ages(system: System, starts: tuple[tuple[int, ...], ...], now: int) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(at - now for at in instants if now - at < rate.per)
        for rate, instants in zip(system.rates.values(), starts, strict=True)
    )
