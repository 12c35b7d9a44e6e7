"""How executions come to the front of their gates: lines of resources, and of what waits only for a worker.

An action stands for its next execution. It joins the line of its first resource. Where it is the first of its
crew and fits, it also joins the line of its next gate, and so on, without acquiring anything; behind the last
resource that is the line of its crew. So what stands in a crew's line could start now, and each gate looks only at
the front of its lines, however much waits. `decide` acquires: all gates at once with the grant, or the first ones
if a later one keeps it waiting (P11, P12).
"""

from math import inf

from turnstile.executor.queue_manager.lines import Entry, Line
from turnstile.executor.queue_manager.state import (
    ActionState,
    Crew,
    Execution,
    Member,
    Queue,
    ResourceGate,
    State,
    action_of,
)


def look_at(state: State, queue: Queue) -> None:
    """The first execution, the slots or the limit of a queue changed."""
    action = queue.action
    if queue.waiting and queue.has_room:
        priority, ticket = queue.head()
        action.line.put(queue, queue.key, priority, ticket)
    else:
        action.line.discard(queue)
        if queue.is_idle and action.queues.get(queue.key) is queue:
            del action.queues[queue.key]
    relist(state, action)


def relist(state: State, action: ActionState) -> None:
    """The next execution of an action changed, or what keeps it waiting."""
    entry = action.line.first() if is_open(state, action) else None
    if entry is None:
        unlist(state, action)
    else:
        enlist(state, action, entry.priority, entry.ticket)


def is_open(state: State, action: ActionState) -> bool:
    """Return whether the action itself lets one more start: it is not paused, and its total and rate allow it."""
    if action.obstacle is not None or action.is_deleted:
        return False
    total = action.definition.max_concurrent_total
    if total is not None and action.held >= total:
        return False
    return action.window is None or action.window.has_start(state.now)


def obstacle_of(state: State, action: ActionState) -> str | None:
    """Return the first gate that is closed for the action, whatever others release."""
    if action.definition.paused:
        return "action"
    for use, gate in zip(action.uses, action.gates, strict=True):
        if gate.definition.paused or gate.definition.capacity < use.units:
            return f"resource {use.resource}"
    return None


def units_of(member: Member, gate: ResourceGate) -> int:
    """Return the units that one execution of this member acquires at a gate of its action."""
    action = action_of(member)
    return action.uses[action.gates.index(gate)].units


def fits(state: State, member: Member, gate: ResourceGate) -> bool:
    """Return whether the units of a member and one start of the rate are free at a gate."""
    if gate.held + units_of(member, gate) > gate.definition.capacity:
        return False
    return gate.window is None or gate.window.has_start(state.now)


def enlist(state: State, member: Member, priority: int, ticket: int) -> None:
    """Put a member into the line of its first gate, or correct what it stands for."""
    line = line_at(member, member.base)
    entry = line.entries.get(member)
    if entry is not None:
        if entry.priority == priority and entry.ticket == ticket:
            return
        withdraw(state, member, member.base)
        action = action_of(member)
        if member.base < len(action.gates) and action.gates[member.base].front.get(action.crew) is member:
            del action.gates[member.base].front[action.crew]
    if isinstance(member, ActionState) and member.passed_over is not None and member.passed_over[0] != ticket:
        member.passed_over = None
        state.impatient.pop(member, None)
    member.reached = member.base
    line.put(member, action_of(member).ref, priority, ticket)
    arrived_at(state, member, member.base)


def unlist(state: State, member: Member) -> None:
    """Remove a member from all lines."""
    if member.reached >= 0:
        withdraw(state, member, member.base - 1)
        member.reached = -1


def line_at(member: Member, stage: int) -> Line[Member]:
    """Return the line of a member's crew at a stage of its route, created when it is needed."""
    action = action_of(member)
    crew = action.crew
    if stage == len(action.gates):
        return crew.line
    gate = action.gates[stage]
    line = gate.lines.get(crew)
    if line is None:
        line = gate.lines[crew] = Line(gate.clock)
    return line


def arrived_at(state: State, member: Member, stage: int) -> None:
    """A member joined the line of a stage: it may be the front there."""
    action = action_of(member)
    if stage == len(action.gates):
        action.crew.stuck.pop(member, None)
        state.dirty_pools[action.crew.pool] = None
        return
    if stage > member.base:
        action.crew.stuck[member] = None
        state.dirty_pools[action.crew.pool] = None
    refresh(state, action.gates[stage], action.crew)


def refresh_all(state: State, gate: ResourceGate) -> None:
    """The units, the rate or the definition of a gate changed."""
    for crew in list(gate.lines):
        refresh(state, gate, crew)


def refresh(state: State, gate: ResourceGate, crew: Crew) -> None:
    """Find out who of a crew could pass a gate now: its first member, if it fits."""
    line = gate.lines[crew]
    entry = line.first()
    front = entry.member if entry is not None and fits(state, entry.member, gate) else None
    previous = gate.front.get(crew)
    if front is not previous:
        if previous is not None:
            del gate.front[crew]
            withdraw(state, previous, action_of(previous).gates.index(gate))
        if front is not None and entry is not None:
            gate.front[crew] = front
            stage = front.reached = action_of(front).gates.index(gate) + 1
            line_at(front, stage).put(front, entry.flow, entry.priority, entry.ticket)
            arrived_at(state, front, stage)
    if not line.entries and gate.lines.get(crew) is line:
        del gate.lines[crew]


def withdraw(state: State, member: Member, stage: int) -> None:
    """Remove a member from all lines behind a stage."""
    action = action_of(member)
    crew = action.crew
    reached, member.reached = member.reached, min(member.reached, stage)
    for later in range(reached, stage, -1):
        if later == len(action.gates):
            crew.line.discard(member)
            continue
        gate = action.gates[later]
        line = gate.lines.get(crew)
        if line is None:
            continue
        line.discard(member)
        if gate.front.get(crew) is member:
            del gate.front[crew]
        refresh(state, gate, crew)
    if stage <= member.base:
        crew.stuck.pop(member, None)
    elif stage < len(action.gates):
        crew.stuck[member] = None
        state.dirty_pools[crew.pool] = None


def preceding(gate: ResourceGate, member: Member) -> list[tuple[Crew, Entry[Member]]]:
    """Return the first members of other crews that precede a member in the order of a gate."""
    crew = action_of(member).crew
    if len(gate.lines) == 1:
        return []
    line = gate.lines[crew]
    rank = line.rank(line.entries[member])
    found = []
    for other, others in gate.lines.items():
        if other is not crew and (entry := others.first()) is not None and others.rank(entry) < rank:
            found.append((other, entry))
    return found


def must_wait_for(state: State, crew: Crew, entry: Entry[Member]) -> bool:
    """Return whether an earlier member of another crew may not be passed: a worker could take it now."""
    member = entry.member
    if isinstance(member, Execution) or member in state.impatient:
        return True
    return crew.spare() > 0 or (member in crew.line.entries and crew.has_room)


def is_blocked(state: State, member: Member) -> bool:
    """Return whether a member of another crew, which may not be passed, precedes this one at a resource."""
    action = action_of(member)
    last = min(member.reached, len(action.gates))
    return any(
        must_wait_for(state, crew, entry)
        for stage in range(member.base, last)
        for crew, entry in preceding(action.gates[stage], member)
    )


def note_passed_over(state: State, member: Member, last: int) -> int:
    """Remember who is passed at the gates before stage `last` because no worker can take it; return how many."""
    count = 0
    action = action_of(member)
    for gate in action.gates[member.base : last]:
        for crew, entry in preceding(gate, member):
            passed = entry.member
            if isinstance(passed, Execution) or not any(worker.is_taking for worker in crew.workers):
                continue
            count += 1
            if not crew.pool.definition.paused and passed.passed_over is None:
                passed.passed_over = (entry.ticket, state.now)
                state.set_timer(state.now + gate.definition.patience_seconds, passed)
    return count


def lose_patience(state: State, action: ActionState) -> None:
    """An action whose next execution has been passed over for long may hold units before a worker is free."""
    if action.passed_over is None:
        return
    patience = min((gate.definition.patience_seconds for gate in action.gates), default=inf)
    if action.passed_over[1] + patience <= state.now:
        state.impatient[action] = None
        state.dirty_pools[action.crew.pool] = None
