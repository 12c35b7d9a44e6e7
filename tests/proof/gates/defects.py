"""Planted bugs: variants of the model, each of which the explorer must detect.

One class is one bug, with its name in the words of a bug report and the configuration that shows it.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from tests.proof.gates import configurations
from tests.proof.gates.definitions import GRANTED, Stop, System
from tests.proof.gates.explorer import Configuration
from tests.proof.gates.model import Execution, Flow, Gates, Passage, State, Step, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A wrong model, and where its fault appears."""

    name: str
    model: type[Gates]
    configuration: Configuration


DEFECTS: list[Defect] = []


def planted(
    name: str, configuration: Callable[[int], Configuration], alive_max: int = 3
) -> Callable[[type[Gates]], type[Gates]]:
    """Register a model as a defect."""

    def register(model: type[Gates]) -> type[Gates]:
        DEFECTS.append(Defect(name=name, model=model, configuration=configuration(alive_max)))
        return model

    return register


# Units and capacities (P11).


@planted("units are counted per execution, not by what it needs", configurations.resources)
class CountsExecutions(Gates):
    def units(self, execution: Execution, gate: int) -> int:
        return 1


@planted("one execution more than the capacity passes", configurations.plain)
class OneTooMany(Gates):
    def fits(self, table: Table, gate: int, execution: Execution) -> bool:
        capacity = self.capacity(table, gate)
        return capacity is None or table.held[gate] < capacity + 1


@planted("units fit if any unit is free", configurations.resources)
class FitsIfAnyIsFree(Gates):
    def fits(self, table: Table, gate: int, execution: Execution) -> bool:
        capacity = self.capacity(table, gate)
        return capacity is None or table.held[gate] < capacity


@planted("a changed capacity is not noticed", configurations.totals)
class FirstCapacity(Gates):
    def capacity(self, table: Table, gate: int) -> int | None:
        return self.system.gates[gate].capacity


@planted("the limit of a key is ignored", configurations.totals)
class IgnoresKeyLimit(Gates):
    def capacity(self, table: Table, gate: int) -> int | None:
        is_key = self.system.gates[gate].name == "a/8"
        return None if is_key else super().capacity(table, gate)


@planted("a lower capacity takes units away from running executions", configurations.resources)
class LoweringTakesAway(Gates):
    def change_capacity(self, state: State, gate: int, capacity: int | None) -> Step:
        table = Table(self.system, state)
        if capacity is not None and table.held[gate] > capacity:
            holders = [e.ticket for e in table.granted if any(g == gate for g, _ in e.held)]
            state = self._changed(state, holders, self._restarted)
        return super().change_capacity(state, gate, capacity)


@planted("a cancelled execution keeps the units that it holds", configurations.resources)
class CancelKeepsUnits(Gates):
    def cancel(self, state: State, ticket: int) -> Step:
        ended = next(e for e in state.executions if e.ticket == ticket)
        if not ended.held:
            return super().cancel(state, ticket)
        return self.decide(self._changed(state, (ticket,), lambda e: e._replace(gate=GRANTED)))


@planted("a reclaim releases the pool and the queue, but no resource", configurations.resources)
class ReclaimKeepsResources(Gates):
    def _restarted(self, execution: Execution) -> Execution:
        kept = tuple(h for h in execution.held if self.system.gates[h[0]].kind == "resource")
        return super()._restarted(execution)._replace(held=kept)


@planted("a worker that has left still counts", configurations.pool)
class CountsTheLeft(Gates):
    def has_worker_slot(self, table: Table, gate: int, workers: frozenset[str]) -> bool:
        return super().has_worker_slot(table, gate, workers and frozenset(self.system.workers))


@planted("what a leaving worker runs takes a worker slot of those that stay", configurations.plain)
class LeavesItsWork(Gates):
    def _without_worker_slot(self, execution: Execution) -> Execution:
        return execution


@planted("the lead counts twice", configurations.plain)
class LeadTwice(Gates):
    def has_worker_slot(self, table: Table, gate: int, workers: frozenset[str]) -> bool:
        if super().has_worker_slot(table, gate, workers):
            return True
        pool = self.system.pools["default"]
        capacity = sum(self.system.workers[w].concurrency for w in workers)
        return bool(capacity) and len(table.granted) < capacity + 2 * pool.lead


# Order (P12).


@planted("the first is skipped while it is too heavy for the free units", configurations.resources)
class SkipsTheHeavy(Gates):
    def next_to_pass(self, table: Table, gate: int) -> Execution | None:
        if self.system.gates[gate].kind == "pool" or not table.waiting[gate][:1]:
            return super().next_to_pass(table, gate)
        first = table.waiting[gate][0]
        if not first.held and self.obstacle(table, first) is not None:
            return None
        in_order = sorted(table.waiting[gate], key=lambda e: self.position(table, gate, e))
        return next((e for e in in_order if self.fits(table, gate, e)), None)


@planted("the priority counts only at the queue", configurations.priorities)
class PriorityAtTheQueueOnly(Gates):
    def position(self, table: Table, gate: int, execution: Execution) -> tuple[int, int, int]:
        priority, tag, ticket = super().position(table, gate, execution)
        return (priority if self.system.gates[gate].kind == "queue" else 3), tag, ticket


@planted("the priority does not count at the queue", configurations.totals)
class NoPriorityAtTheQueue(Gates):
    def position(self, table: Table, gate: int, execution: Execution) -> tuple[int, int, int]:
        priority, tag, ticket = super().position(table, gate, execution)
        return (3 if self.system.gates[gate].kind == "queue" else priority), tag, ticket


@planted("the last who came to a gate passes first", configurations.resources)
class LastComesFirst(Gates):
    def position(self, table: Table, gate: int, execution: Execution) -> tuple[int, int, int]:
        priority, tag, ticket = super().position(table, gate, execution)
        return priority, tag, -ticket


@planted("an execution that returns draws a new ticket", configurations.plain)
class NewTicket(Gates):
    def reclaim(self, state: State, *tickets: int) -> Step:
        (ticket,) = tickets
        back = self._restarted(next(e for e in state.executions if e.ticket == ticket))
        state = self._without(state, tickets)
        return self.decide(
            state._replace(
                executions=(*state.executions, back._replace(ticket=state.next_ticket)),
                next_ticket=state.next_ticket + 1,
            )
        )


# Units that stay free, and starvation (P7, progress).


@planted("after a settle only the first gate is decided", configurations.resources)
class DecidesTheFirstGateOnly(Gates):
    def settle(self, state: State, *tickets: int) -> Step:
        class FirstGate(Gates):
            def gates_in_order(self, table: Table) -> Iterator[int]:
                return (
                    gate for gate in super().gates_in_order(table) if self.system.gates[gate].kind == "queue"
                )

        return FirstGate(self.system).decide(self._without(state, tickets))


@planted("after a settle only the gates of the settled executions are decided", configurations.totals)
class DecidesOwnGatesOnly(Gates):
    def settle(self, state: State, *tickets: int) -> Step:
        own = {gate for e in state.executions if e.ticket in tickets for gate, _ in e.held}

        class OwnGates(Gates):
            def gates_in_order(self, table: Table) -> Iterator[int]:
                return (gate for gate in super().gates_in_order(table) if gate in own - {max(own)})

        return OwnGates(self.system).decide(self._without(state, tickets))


@planted("gates are decided from the last to the first", configurations.resources)
class DecidesBackwards(Gates):
    def gates_in_order(self, table: Table) -> Iterator[int]:
        return iter(range(len(table.waiting))[::-1])


@planted("one execution passes each gate per decision", configurations.resources)
class OneAtATime(Gates):
    def next_to_pass(self, table: Table, gate: int) -> Execution | None:
        if any(passage.gate == gate for passage in table.passages):
            return None
        return super().next_to_pass(table, gate)


@planted("each settle of a batch is decided alone", configurations.resources, 4)
class DecidesEachSettle(Gates):
    def settle(self, state: State, *tickets: int) -> Step:
        passages: list[Passage] = []
        grants: list[int] = []
        for ticket in tickets:
            step = super().settle(state, ticket)
            state = step.state
            passages += step.passages
            grants += step.grants
        return Step(state, tuple(passages), tuple(grants))


class _AsWritten(System):
    """Resources are acquired as the action's definition lists them, not in the global order."""

    def __init__(self, system: System) -> None:
        super().__init__(
            actions=tuple(system.actions.values()), resources=tuple(system.resources.values()),
            pools=tuple(system.pools.values()), workers=tuple(system.workers.values()),
        )  # fmt: skip

    def _route(self, action_name: str, key: str) -> tuple[Stop, ...]:
        action = self.actions[action_name]
        queue, *_, pool = super()._route(action_name, key)
        uses = (Stop(gate=self.number[name], units=units) for name, units in action.uses.items())
        return queue, *uses, pool


@planted("resources are acquired in the order in which each action lists them", configurations.resources)
class AcquiresAsWritten(Gates):
    def __init__(self, system: System) -> None:
        super().__init__(_AsWritten(system))


def _crossed_as_written(alive_max: int) -> Configuration:
    right = configurations.crossed(alive_max)
    return replace(right, system=_AsWritten(right.system))


@planted("two executions each hold the resource that the other one waits for", _crossed_as_written)
class HoldAndWait(Gates):
    """The definitions have the wrong order, and the decision follows them until nothing moves."""

    def decide(self, state: State) -> Step:
        step = super().decide(state)
        while (again := super().decide(step.state)).passages:
            step = Step(again.state, step.passages + again.passages, step.grants + again.grants)
        return step


@planted("a resumed gate is not decided", configurations.resources)
class ResumesWithoutDecision(Gates):
    def resume(self, state: State, *gates: int) -> Step:
        return Step(state._replace(paused=state.paused - set(gates)), (), ())


@planted("a worker that joins causes no decision", configurations.plain)
class JoinsWithoutDecision(Gates):
    def join(self, state: State, worker: str) -> Step:
        return Step(state._replace(workers=state.workers | {worker}), (), ())


@planted("time alone grants nothing", configurations.rates)
class TimeGrantsNothing(Gates):
    def tick(self, state: State) -> Step:
        return Step(state._replace(now=state.now + 1), (), ())


# Neighbours (P9).


@planted("an action without a live worker blocks the pool", configurations.pool)
class NoWorkerBlocks(Gates):
    def is_closed(self, table: Table, execution: Execution, stop: Stop) -> bool:
        is_pool = self.system.gates[stop.gate].kind == "pool"
        return not is_pool and super().is_closed(table, execution, stop)

    def next_at_pool(self, table: Table, gate: int) -> Execution | None:
        first = min(table.waiting[gate], key=lambda e: self.position(table, gate, e))
        found = super().next_at_pool(table, gate)
        return found if table.workers_for(first.action) else None


@planted("an action whose workers are full blocks the pool", configurations.pool)
class FullWorkersBlock(Gates):
    def next_at_pool(self, table: Table, gate: int) -> Execution | None:
        first = min(table.waiting[gate], key=lambda e: self.position(table, gate, e))
        has_worker_slot = self.has_worker_slot(table, gate, table.workers_for(first.action))
        return super().next_at_pool(table, gate) if has_worker_slot else None


@planted("an action without a start left blocks the pool", configurations.pool)
class RateBlocks(Gates):
    def next_at_pool(self, table: Table, gate: int) -> Execution | None:
        first = min(table.waiting[gate], key=lambda e: self.position(table, gate, e))
        found = super().next_at_pool(table, gate)
        return found if found == first else None


@planted("executions keep their units while their route is closed", configurations.resources)
class KeepsWhileClosed(Gates):
    def return_to_first_gate(self, table: Table) -> None:
        pass


# Rates (P13).


@planted("the window of a rate resets", configurations.rates)
class WindowResets(Gates):
    def starts_left(self, table: Table, rate: str) -> int:
        limit = self.system.rates[rate]
        instants = table.starts[self.system.rate_number[rate]]
        is_over = bool(instants) and table.state.now - instants[0] >= limit.per
        return limit.starts if is_over else super().starts_left(table, rate)


@planted("the window of a rate is one instant too short", configurations.rates)
class ShortWindow(Gates):
    def starts_left(self, table: Table, rate: str) -> int:
        limit = self.system.rates[rate]
        instants = table.starts[self.system.rate_number[rate]]
        return limit.starts - sum(table.state.now - at < limit.per - 1 for at in instants)


@planted("an execution counts against the first of its rates only", configurations.rates)
class CountsFirstRate(Gates):
    def count_start(self, table: Table, execution: Execution) -> None:
        names = self.system.rate_names[execution.action]
        if names:
            table.starts[self.system.rate_number[names[0]]].append(table.state.now)


@planted("a decision counts as one start, however many it grants", configurations.rates)
class CountsDecisions(Gates):
    def count_start(self, table: Table, execution: Execution) -> None:
        if len(table.grants) == 1:
            super().count_start(table, execution)


@planted("a reclaim gives the start back", configurations.rates)
class ReclaimRefunds(Gates):
    def reclaim(self, state: State, *tickets: int) -> Step:
        return super().reclaim(state._replace(starts=tuple(s[:-1] for s in state.starts)), *tickets)


@planted("a start is not kept for an execution that lacks another rate", configurations.rates)
class KeepsNoStart(Gates):
    def take_starts(self, starts_left: list[int], action: str, /) -> bool:
        numbers = [self.system.rate_number[rate] for rate in self.system.rate_names[action]]
        if any(starts_left[number] <= 0 for number in numbers):
            return False
        return super().take_starts(starts_left, action)


# Fairness (P14).


@planted("the tag of a flow is not advanced", configurations.fair)
class TagStays(Gates):
    def cost(self, gate: int, flow: Flow, units: int) -> int:
        return 0


@planted("weights are ignored", configurations.fair, 5)
class IgnoresWeights(Gates):
    def cost(self, gate: int, flow: Flow, units: int) -> int:
        return units * self.system.tag_scale


@planted("units are ignored", configurations.fair, 5)
class IgnoresUnits(Gates):
    def cost(self, gate: int, flow: Flow, units: int) -> int:
        return super().cost(gate, flow, 1)


@planted("virtual time does not move", configurations.fair)
class VirtualTimeStays(Gates):
    def charge(self, table: Table, gate: int, execution: Execution, units: int) -> None:
        super().charge(table, gate, execution, units)
        table.virtual_times.clear()


@planted("an idle flow keeps its old tag and catches up", configurations.idle_flows, 4)
class CatchesUp(Gates):
    def start_tag(self, table: Table, gate: int, execution: Execution) -> int:
        return table.tags.get(self.flow(gate, execution), 0)


@planted("virtual time is the finish tag of who passes", configurations.fair)
class VirtualTimeAhead(Gates):
    def charge(self, table: Table, gate: int, execution: Execution, units: int) -> None:
        super().charge(table, gate, execution, units)
        flow = self.flow(gate, execution)
        table.virtual_times[flow[:2]] = table.tags[flow]


@planted("a fair gate serves in order of arrival", configurations.fair)
class Unfair(Gates):
    def position(self, table: Table, gate: int, execution: Execution) -> tuple[int, int, int]:
        return execution.priority, 0, execution.ticket


@planted("what a flow got at one priority counts at every priority", configurations.urgent_share, 4)
class SharedTags(Gates):
    def flow(self, gate: int, execution: Execution) -> Flow:
        return gate, 3, super().flow(gate, execution)[2]

    def start_tag(self, table: Table, gate: int, execution: Execution) -> int:
        return super().start_tag(table, gate, execution._replace(priority=3))

    def charge(self, table: Table, gate: int, execution: Execution, units: int) -> None:
        super().charge(table, gate, execution._replace(priority=3), units)


@planted("the units of settled executions are not released", configurations.plain)
class SettleReleasesNothing(Gates):
    def _without(self, state: State, tickets: Collection[int]) -> State:
        return state


# Pools that are managed: weights, order, pause.


@planted("the weights of a pool are ignored", configurations.weighted_pool, 5)
class IgnoresWeightsOfPools(Gates):
    def cost(self, gate: int, flow: Flow, units: int) -> int:
        is_pool = self.system.gates[gate].kind == "pool"
        return units * self.system.tag_scale if is_pool else super().cost(gate, flow, units)


@planted("an action with a larger weight gets less of the pool", configurations.weighted_pool, 5)
class WeightsInverted(Gates):
    def cost(self, gate: int, flow: Flow, units: int) -> int:
        return units * self.system.tag_scale * self.system.gates[gate].weights.get(flow[2], 1)


@planted("actions take turns in a pool by arrival", configurations.paused_pools)
class TurnsByArrival(Gates):
    def position(self, table: Table, gate: int, execution: Execution) -> tuple[int, int, int]:
        priority, tag, ticket = super().position(table, gate, execution)
        is_pool = self.system.gates[gate].kind == "pool"
        started = sum(e.action == execution.action for e in table.granted) if is_pool else 0
        return priority, tag + started, ticket


@planted("a paused pool starts what waits", configurations.weighted_pool)
class PausedPoolStarts(Gates):
    def is_closed(self, table: Table, execution: Execution, stop: Stop) -> bool:
        if self.system.gates[stop.gate].kind == "pool":
            return not table.workers_for(execution.action)
        return super().is_closed(table, execution, stop)


@planted("a worker that joins resumes a paused pool", configurations.paused_pools)
class JoinResumes(Gates):
    def join(self, state: State, worker: str) -> Step:
        pools = {self.system.number[f"pool {name}"] for name in self.system.workers[worker].pools}
        return super().join(state._replace(paused=state.paused - pools), worker)


@planted("a resumed pool starts nothing until something ends", configurations.weighted_pool)
class ResumedPoolSleeps(Gates):
    def resume(self, state: State, *gates: int) -> Step:
        if self.system.gates[gates[0]].kind == "pool":
            return Step(state._replace(paused=state.paused - set(gates)), (), ())
        return super().resume(state, *gates)


@planted("what waits for a paused pool keeps its units from another pool", configurations.paused_pools)
class PausedPoolKeepsUnits(Gates):
    def obstacle(self, table: Table, execution: Execution) -> int | None:
        obstacle = super().obstacle(table, execution)
        is_pool = obstacle is not None and self.system.gates[obstacle].kind == "pool"
        return None if is_pool and execution.held else obstacle


@planted("a pool forgets what runs when it is resumed", configurations.weighted_pool)
class ResumedPoolForgets(Gates):
    def resume(self, state: State, *gates: int) -> Step:
        running = [e.ticket for e in state.executions if e.gate == GRANTED]
        return super().resume(self._changed(state, running, self._without_worker_slot), *gates)
