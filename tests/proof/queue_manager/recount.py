"""Recounts a state: everything that is kept up to date in it equals what the executions themselves say.

Nothing here uses the lines, lanes, counters or timers that it checks. `Seen` is also what the rules look at.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import inf

from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager.lines import FairClock, Rank
from turnstile.executor.queue_manager.state import (
    ActionState,
    Crew,
    Execution,
    Member,
    PoolState,
    Queue,
    ResourceGate,
    State,
    Worker,
)


class Violation(Exception):
    """A state or a step that a rule forbids."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule


def must(rule: str, is_right: bool, *what: object) -> None:
    if not is_right:
        raise Violation(rule, " ".join(map(str, what)))


def granted(state: State) -> list[Execution]:
    return sorted((e for e in state.executions.values() if e.grant is not None), key=_id)


def _id(execution: Execution) -> int:
    return execution.id


def holders(action: ActionState) -> list[Execution]:
    return sorted(action.holding, key=_id)


def all_holders(state: State) -> list[Execution]:
    return [e for action in state.actions.values() for e in holders(action)]


def serving(state: State, action: ActionState) -> list[Worker]:
    return [worker for worker in state.workers.values() if worker.serves(action.definition)]


def free_slots(worker: Worker) -> int:
    return max(free_or_short(worker), 0)


def free_or_short(worker: Worker) -> int:
    """Free worker slots, or how many too few; none while it has to return something."""
    takes = worker.is_taking and not worker.recalled
    return worker.concurrency - slots_used(worker) if takes else 0


def slots_used(worker: Worker) -> int:
    """What is at a worker, without what is beyond the limits of queues."""
    queues = {e.queue for e in worker.held.values()}
    return len(worker.held) - sum(queue.surplus for queue in queues if queue.home is worker)


def has_room(state: State, action: ActionState) -> bool:
    """Whether a worker could take an execution of the action now."""
    pool = state.pools[action.definition.pool]
    return not pool.definition.paused and any(map(free_slots, serving(state, action)))


def rank_at(clock: FairClock | None, priority: int, flow: str, ticket: int) -> Rank:
    if clock is None:
        return priority, 0, ticket
    tag = max(clock.virtual.get(priority, 0), clock.finish.get((priority, flow), 0))
    return priority, tag, ticket


def limit_of(queue: Queue) -> int | None:
    settings = queue.settings
    return settings.max_concurrent if settings.has_limit else queue.action.definition.max_concurrent


def queue_has_room(queue: Queue) -> bool:
    limit = limit_of(queue)
    return limit is None or queue.held < limit


def is_open_but_full(state: State, action: ActionState) -> bool:
    """Whether the definitions let executions of an action start, whatever is held now."""
    definition = action.definition
    resources = ((state.resources[use.resource].definition, use.units) for use in definition.uses)
    is_closed = any(resource.paused or resource.capacity < units for resource, units in resources)
    return not (definition.paused or definition.max_concurrent_total == 0 or is_closed)


def is_open(state: State, action: ActionState) -> bool:
    """Whether the definitions and limits of the action itself let one more start."""
    total = action.definition.max_concurrent_total
    has_room = total is None or action.held < total
    has_start = action.window is None or action.window.left(state.now) > 0
    return is_open_but_full(state, action) and has_room and has_start


def heads(action: ActionState) -> dict[str, tuple[int, int]]:
    """For each queue with a free slot the priority and id of its first execution."""
    found = {}
    for key, queue in action.queues.items():
        if queue_has_room(queue) and (ids := [(p, i) for p, ws in queue.waiting.items() for i in ws]):
            found[key] = min(ids)
    return found


def next_of(state: State, action: ActionState) -> tuple[int, int] | None:
    """Priority and id of what an action would start next."""
    ranked = [
        rank_at(action.clock, priority, key, ticket) for key, (priority, ticket) in heads(action).items()
    ]
    if not ranked or not is_open(state, action):
        return None
    priority, _, ticket = min(ranked)
    return priority, ticket


@dataclass(slots=True)
class Seen:
    """Who waits where, and who could pass: everything that `gates` keeps up to date, from scratch."""

    state: State
    place: dict[Member, tuple[int, int]] = field(default_factory=dict)
    """Priority and id of each member that waits somewhere."""
    base: dict[Member, int] = field(default_factory=dict)
    reached: dict[Member, int] = field(default_factory=dict)
    fronts: dict[tuple[ResourceGate, Crew], Member] = field(default_factory=dict)

    def rank(self, gate: ResourceGate | PoolState, member: Member) -> Rank:
        return rank_at(gate.clock, self.place[member][0], member.action.ref, self.place[member][1])

    def at(self, gate: ResourceGate) -> list[Member]:
        """Who really waits at a resource."""
        found = []
        for member, base in self.base.items():
            gates = member.action.gates
            if base < len(gates) and gates[base] is gate:
                found.append(member)
        return found

    def startable(self) -> list[Member]:
        return [member for member, stage in self.reached.items() if stage == len(member.action.gates)]

    def stuck(self) -> list[Member]:
        return [
            member
            for member, stage in self.reached.items()
            if self.base[member] < stage < len(member.action.gates)
        ]

    def is_urgent(self, member: Member) -> bool:
        """Whether no one may pass it at the resource where it waits."""
        return isinstance(member, Execution) or member in self.state.impatient


def see(state: State) -> Seen:
    seen = Seen(state)
    for action in state.actions.values():
        following = next_of(state, action)
        if following is not None:
            seen.place[action], seen.base[action] = following, 0
        for execution in action.holding:
            seen.place[execution], seen.base[execution] = (execution.priority, execution.id), execution.base
    seen.reached = dict(seen.base)
    order = sorted(state.resources.values(), key=lambda gate: (gate.definition.rank, gate.definition.name))
    for gate in order:
        _see_gate(seen, gate)
    return seen


def _see_gate(seen: Seen, gate: ResourceGate) -> None:
    """Let the first of each crew pass the gate, if it fits and need not wait for another crew."""
    state, real = seen.state, seen.at(gate)
    present: dict[Crew, list[Member]] = defaultdict(list)
    for member, stage in seen.reached.items():
        gates = member.action.gates
        if stage < len(gates) and gates[stage] is gate:
            present[member.action.crew].append(member)
    for crew, members in present.items():
        first = min(members, key=lambda member: seen.rank(gate, member))
        rank, action = seen.rank(gate, first), first.action
        use = action.uses[action.gates.index(gate)]
        fits = gate.held + use.units <= gate.definition.capacity and (
            gate.window is None or gate.window.left(state.now) > 0
        )
        is_obstructed = any(
            other.action.crew is not crew
            and seen.rank(gate, other) < rank
            and (has_room(state, other.action) or seen.is_urgent(other))
            for other in real
        )
        if fits and not is_obstructed:
            seen.fronts[gate, crew] = first
            seen.reached[first] += 1


def recount(state: State) -> Seen:
    """Check that a state is consistent. Raises Violation."""
    changed = (state.changed_workers, state.changed_queues, state.changed_actions, state.changed_gates)
    must("recount", not any(changed), "something changed and was not applied")
    executions = state.executions
    for execution_id, execution in executions.items():
        must("recount", execution.id == execution_id, execution_id)
        _check_execution(state, execution)
    for action in state.actions.values():
        _check_action(state, action)
    for gate in state.resources.values():
        held = {e: _units(e, gate) for e in executions.values() if gate in e.held_at}
        must("recount", gate.holders == held, gate.definition.name, "holders")
        must("recount", gate.held == sum(held.values()), gate.definition.name, "held", gate.held)
        if gate.window is not None:
            kept = sum(gate in e.held_at for e in all_holders(state))
            must("recount", gate.window.kept == kept, gate.definition.name, "kept", gate.window.kept)
    for worker in state.workers.values():
        at_it = {e.id: e for e in executions.values() if e.worker is worker}
        must("recount", worker.held == at_it, worker.id, "holds", list(worker.held))
        must("recount", worker.free == free_or_short(worker), worker.id, "free", worker.free)
        could_return = {e for e in at_it.values() if e.started_at is None}
        must("recount", worker.recalled.keys() <= could_return, worker.id, "is to return what it cannot")
        must("recount", worker.surplus == len(at_it) - slots_used(worker), worker.id, "surplus")
        lasting = sum(not e.is_short for e in at_it.values())
        must("recount", worker.lasting == lasting, worker.id, "lasting", worker.lasting)
        is_watched = any(timer.about is worker for timer in state.timers)
        must("recount", is_watched or not worker.surplus, worker.id, "is not watched")
    for pool in state.pools.values():
        _check_crews(state, pool)
    seen = see(state)
    _check_lines(seen)
    _check_timers(state)
    return seen


def _units(execution: Execution, gate: ResourceGate) -> int:
    uses = {use.resource: use.units for use in execution.queue.action.definition.uses}
    return uses.get(gate.definition.name, gate.holders.get(execution, 0))


def _check_execution(state: State, e: Execution) -> None:
    is_at_worker = e.worker is not None
    is_holder = e in e.queue.action.holding
    must("recount", e.queue is e.queue.action.queues.get(e.queue.key), e.id, "is in a forgotten queue")
    is_alive = e.worker is None or state.workers.get(e.worker.id) is e.worker
    must("recount", is_alive, e.id, "is at a worker that is gone")
    must("recount", is_at_worker == (e.grant is not None), e.id, "grant and worker")
    must("recount", is_at_worker == (e.status in {Status.SCHEDULED, Status.RUNNING}), e.id, e.status)
    must("recount", (e.status is Status.DELAYED) == (e.due_at is not None), e.id, "due")
    waits = [ws for p, ws in e.queue.waiting.items() if e.id in ws]
    where = is_at_worker + is_holder + (e.status is Status.DELAYED) + len(waits)
    must("recount", where == 1, e.id, "is at", where, "places")
    gates = e.queue.action.gates
    if is_holder:
        must("recount", e.held_at == gates[: e.base] and e.base > 0, e.id, "holds other gates than it passed")
    elif not is_at_worker:
        must("recount", not e.held_at and not e.base and not e.is_impatient, e.id, "waits and holds units")


def _check_action(state: State, action: ActionState) -> None:
    mine = [e for e in state.executions.values() if e.queue.action is action]
    for key, queue in action.queues.items():
        here = [e for e in mine if e.queue is queue]
        held_waiting = sum(e in action.holding for e in here)
        holders = {e for e in here if e.worker is not None or e in action.holding}
        must("recount", set(queue.holders) == holders, action.ref, key, "holders", len(queue.holders))
        must("recount", queue.holding == held_waiting, action.ref, key, "holding", queue.holding)
        at = Counter(e.worker for e in here if e.worker is not None)
        must("recount", queue.at == at, action.ref, key, "is at", queue.at)
        beyond = len(holders) - (len(holders) if queue.limit is None else queue.limit)
        must("recount", 0 <= queue.surplus <= max(beyond, 0), action.ref, key, "surplus", queue.surplus)
        is_one = [queue.home] == list(at) if queue.surplus else queue.home is None
        must("recount", is_one or queue in state.queues_to_look_at, action.ref, key, "has a run elsewhere")
        delayed = sum(e.status is Status.DELAYED for e in here)
        must("recount", queue.delayed == delayed, action.ref, key, "delayed", queue.delayed)
        must("recount", all(queue.waiting.values()), action.ref, key, "has an empty list")
        length = sum(map(len, queue.waiting.values()))
        must("recount", queue.length == length, action.ref, key, "length", queue.length)
        for waiting in queue.waiting.values():
            ids = list(waiting)
            must("recount", ids == sorted(set(ids)) and len(ids) == len(waiting), action.ref, key, ids)
        if queue not in state.queues_to_look_at:
            must("recount", not queue.is_idle, action.ref, key, "is idle and kept")
            limit = queue.limit
            startable = length if limit is None else max(min(length, limit - len(holders)), 0)
            must("recount", queue.startable == startable, action.ref, key, "startable", queue.startable)
            is_listed = bool(queue.waiting) and queue_has_room(queue)
            must(
                "recount",
                (queue in action.line.entries) == is_listed,
                action.ref,
                key,
                "listed",
                not is_listed,
            )
    startable = sum(queue.startable for queue in action.queues.values())
    must("recount", action.startable == startable, action.ref, "startable", action.startable)
    must(
        "recount", action.held == sum(q.held for q in action.queues.values()), action.ref, "held", action.held
    )
    surplus = sum(q.surplus for q in action.queues.values())
    must("recount", action.surplus == surplus, action.ref, "surplus", action.surplus)
    if action.window is not None:
        must("recount", action.window.kept == len(action.holding), action.ref, "kept", action.window.kept)
    alive = sum(q.length for q in action.queues.values()) + len(
        [e for e in mine if not any(e.id in ws for ws in e.queue.waiting.values())]
    )
    must("recount", action.enqueued - action.completed == alive, action.ref, "totals", alive)


def _check_crews(state: State, pool: PoolState) -> None:
    actions = [a for a in state.actions.values() if a.definition.pool == pool.definition.name]
    crews = {action.crew for action in actions}
    must("recount", crews == set(pool.crews.values()), "crews of", pool.definition.name)
    for action in actions:
        must("recount", list(action.crew.workers) == serving(state, action), "crew of", action.ref)
    for crew in crews:
        must("recount", crew.free == sum(map(free_slots, crew.workers)), "free of a crew", crew.free)
        must("recount", set(crew.actions) == {a for a in actions if a.crew is crew}, "actions of a crew")
        mine = {e for a in actions if a.crew is crew for e in a.holding if not e.is_impatient}
        must("recount", set(crew.holding) == mine, "holders of a crew")
        for worker in crew.workers:
            must("recount", crew in worker.crews, worker.id, "does not know its crew")
    for worker in state.workers.values():
        for crew in worker.crews:
            must("recount", crew in crew.pool.crews.values(), worker.id, "is in a forgotten crew")


def _check_lines(seen: Seen) -> None:
    """Membership of all lines equals the one from scratch."""
    state = seen.state
    members: list[Member] = [*state.actions.values(), *all_holders(state)]
    for member in members:
        ref, action = _name(member), member.action
        reached = seen.reached.get(member, -1)
        must("lines", member.reached == reached, ref, "reached", member.reached, "and should", reached)
        place = (member.priority, member.ticket)
        must("lines", reached < 0 or place == seen.place[member], ref, "stands for", place)
        in_line = member in action.crew.line.entries
        must("lines", in_line == (reached == len(action.gates)), ref, "in the line of its crew:", in_line)
        is_stuck = member in action.crew.stuck
        must("lines", is_stuck == (member in seen.stuck()), ref, "stuck:", is_stuck)
        for stage, gate in enumerate(action.gates):
            lane = gate.lanes.get(action.crew)
            waits = lane is not None and member in lane.line.entries
            comes = lane is not None and member in lane.coming
            must("lines", waits == (stage == seen.base.get(member, -1) <= reached), ref, "waits at", stage)
            must("lines", comes == (seen.base.get(member, 0) < stage <= reached), ref, "comes to", stage)
            is_front = lane is not None and lane.front is member
            must("lines", is_front == (seen.fronts.get((gate, action.crew)) is member), ref, "front", stage)
            is_urgent = lane is not None and member in lane.urgent
            must("lines", is_urgent == (waits and seen.is_urgent(member)), ref, "urgent", stage)
    known = set(members)
    for gate in state.resources.values():
        for crew, lane in gate.lanes.items():
            must(
                "lines",
                lane.first() is not None and lane in crew.lanes,
                gate.definition.name,
                "has an idle lane",
            )
            must(
                "lines",
                known >= set(lane.line.entries) | set(lane.coming),
                gate.definition.name,
                "has ghosts",
            )


def _name(member: Member) -> str:
    return member.ref if isinstance(member, ActionState) else f"{member.queue.action.ref} {member.id}"


def _check_timers(state: State) -> None:
    """Whatever time alone can change has a timer."""
    about: dict[object, list[float]] = defaultdict(list)
    for timer in state.timers:
        about[timer.about].append(timer.at)
    for e in state.executions.values():
        if e.due_at is not None:
            must("timers", e.due_at in about[e], e.id, "is not woken")
        if e in e.queue.action.holding and e.expires_at < inf:
            must("timers", e.expires_at in about[e], e.id, "does not expire")
    for action in state.actions.values():
        for queue in action.queues.values():
            for priority, waiting in queue.waiting.items():
                soonest = min(entry.expires_at for entry in waiting.entries())
                must("timers", soonest >= waiting.soonest, action.ref, "expires too late")
                is_set = waiting.soonest in about[queue, priority] or waiting.soonest == inf
                must("timers", is_set, action.ref, "does not expire")
