"""How executions come to the front of their gates: lanes of resources, and lines of what needs only a worker.

An action stands for its next execution, and waits at its first resource. Where it is the first of its crew,
fits, and need not wait for another crew, it is also coming at its next gate, and so on, without acquiring
anything; behind the last resource that is the line of its crew. So what stands in a crew's line could start
now, and each gate looks only at the front of its lanes, however much waits. `decide` acquires: all gates at
once with the grant, or the first ones if a later one keeps it waiting (P11, P12).

What waits at a resource, of whatever crew, is passed by none that it precedes, unless no worker can take it
now. Patience bounds that exception: what was passed over for longer is urgent, as is what holds units
already.
"""

from heapq import heapify, heappush
from math import inf

from turnstile.executor.queue_manager.lines import Entry
from turnstile.executor.queue_manager.rates import RateWindow
from turnstile.executor.queue_manager.state import (
    ActionState,
    Execution,
    Lane,
    Member,
    Queue,
    ResourceGate,
    State,
    Worker,
    action_of,
)

# Which execution an action stands for.


def look_at(state: State, queue: Queue) -> None:
    """Note that the first execution, the slots or the limit of a queue changed."""
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
    """Let an action stand for its next execution, or for none while it may start none."""
    entry = action.line.first() if is_open(state, action) else None
    while entry is not None and not entry.member.has_room:
        # Its limit was lowered, and the turn has not looked at it again.
        action.line.discard(entry.member)
        entry = action.line.first()
    if entry is None:
        unlist(state, action)
    else:
        enlist(state, action, entry.priority, entry.ticket)


def is_open(state: State, action: ActionState) -> bool:
    """Return whether the action lets one more start: it is not closed, and its total and rate allow it."""
    if action.obstacle is not None or action.is_deleted:
        return False
    total = action.definition.max_concurrent_total
    if total is not None and action.held >= total:
        return False
    return action.window is None or has_start(state, action.window, action)


def obstacle_of(action: ActionState) -> str | None:
    """Return the first gate that is closed for the action, whatever others release."""
    if action.definition.paused:
        return "action"
    for use, gate in zip(action.uses, action.gates, strict=True):
        if gate.definition.paused or gate.definition.capacity < use.units:
            return f"resource {use.resource}"
    return None


def has_start(state: State, window: RateWindow, about: ResourceGate | ActionState) -> bool:
    """Return whether a rate allows a grant now; if not, a timer looks again when it does."""
    if window.has_start(state.now):
        return True
    at = window.next_start_at(state.now)
    if at < window.timer_at:
        window.timer_at = at
        state.set_timer(at, about)
    return False


# Where members wait.


def enlist(state: State, member: Member, priority: int, ticket: int) -> None:
    """Let a member wait at its first gate, for this execution."""
    if member.reached >= 0:
        if member.priority == priority and member.ticket == ticket:
            return
        if action_of(member).gates:
            unlist(state, member)
    if isinstance(member, ActionState):
        member.priority, member.ticket = priority, ticket
    member.reached = member.base
    _arrive(state, member)


def unlist(state: State, member: Member) -> None:
    """Remove a member from where it waits and where it is coming."""
    if member.reached < 0:
        return
    action = action_of(member)
    _withdraw(state, member, member.base)
    if member.base == len(action.gates):
        action.crew.line.discard(member)
    else:
        gate = action.gates[member.base]
        lane = gate.lanes[action.crew]
        lane.line.discard(member)
        lane.urgent.pop(member, None)
        refresh_all(state, gate)
    if isinstance(member, ActionState):
        state.impatient.pop(member, None)
    action.crew.stuck.pop(member, None)
    member.reached = -1


def _arrive(state: State, member: Member) -> None:
    """Let a member wait at the stage that it reached, or be coming there."""
    action, stage = action_of(member), member.reached
    crew = action.crew
    if stage == len(action.gates):
        crew.stuck.pop(member, None)
        crew.line.put(member, action.ref, member.priority, member.ticket)
        state.dirty_pools[crew.pool] = None
        return
    gate = action.gates[stage]
    lane = gate.lanes.get(crew)
    if lane is None:
        lane = gate.lanes[crew] = Lane(gate, crew)
        crew.lanes[lane] = None
    if stage > member.base:
        crew.stuck[member] = None
        state.dirty_pools[crew.pool] = None
        lane.coming[member] = Entry(member, action.ref, member.priority, member.ticket)
        refresh(state, lane)
        return
    lane.line.put(member, action.ref, member.priority, member.ticket)
    if isinstance(member, Execution):
        lane.urgent[member] = None
    elif state.patience.get(member.ticket, inf) <= state.now and crew.is_live:
        lane.urgent[member] = state.impatient[member] = None
    refresh_all(state, gate)


def _withdraw(state: State, member: Member, stage: int) -> None:
    """Remove a member from all gates behind one that it cannot pass now."""
    action = action_of(member)
    crew, last = action.crew, len(action.gates)
    reached, member.reached = member.reached, stage
    if reached == last > stage:
        crew.line.discard(member)
    lanes = [action.gates[later].lanes[crew] for later in range(stage + 1, min(reached + 1, last))]
    for lane in lanes:
        del lane.coming[member]
        if lane.front is member:
            lane.front = None
    if stage > member.base:
        crew.stuck[member] = None
        state.dirty_pools[crew.pool] = None
    else:
        crew.stuck.pop(member, None)
    for lane in lanes:
        refresh(state, lane)


# Who is at the front.


def refresh_all(state: State, gate: ResourceGate) -> None:
    """Note that what waits at a gate, its units, its rate, or the room of a crew changed."""
    for lane in list(gate.lanes.values()):
        refresh(state, lane)


def refresh(state: State, lane: Lane) -> None:
    """Find out who of a crew could pass a gate: the first, if it fits and need not wait for another crew."""
    gate, first, front = lane.gate, lane.first(), None
    if first is not None and fits(state, first.member, gate) and obstructing(gate, lane, first) is None:
        front = first.member
    if front is not lane.front:
        previous, lane.front = lane.front, front
        if previous is not None:
            _withdraw(state, previous, action_of(previous).gates.index(gate))
        if front is not None:
            front.reached = action_of(front).gates.index(gate) + 1
            _arrive(state, front)
    if lane.is_empty and gate.lanes.get(lane.crew) is lane:
        del gate.lanes[lane.crew], lane.crew.lanes[lane]


def fits(state: State, member: Member, gate: ResourceGate) -> bool:
    """Return whether the units of a member and one start of the rate are free at a gate."""
    if gate.held + units_of(member, gate) > gate.definition.capacity:
        return False
    return gate.window is None or has_start(state, gate.window, gate)


def units_of(member: Member, gate: ResourceGate) -> int:
    """Return the units that one execution of this member acquires at a gate of its action."""
    action = action_of(member)
    return action.uses[action.gates.index(gate)].units


def obstructing(gate: ResourceGate, lane: Lane, entry: Entry[Member]) -> Entry[Member] | None:
    """Return who of another crew waits at the gate before this one, and may not be passed."""
    if len(gate.lanes) == 1:
        return None
    rank = lane.rank(entry)
    for other in gate.lanes.values():
        if other is not lane:
            first = other.line.first() if other.crew.has_room else None
            for each in [other.line.entries[member] for member in other.urgent] if first is None else [first]:
                if other.rank(each) < rank:
                    return each
    return None


def note_passed_over(state: State, member: Member, last: int) -> int:
    """Remember who is passed before stage `last` because no worker can take it; return how many."""
    count, action = 0, action_of(member)
    for gate in action.gates[member.base : last]:
        if len(gate.lanes) == 1:
            continue
        lane = gate.lanes[action.crew]
        rank = lane.rank(Entry(member, action.ref, member.priority, member.ticket))
        for other in gate.lanes.values():
            first = other.first()
            if other is lane or first is None or other.crew.has_room or other.rank(first) > rank:
                continue
            count += 1
            ticket, patience = first.ticket, state.after(gate.definition.patience_seconds)
            if other.crew.is_live and patience < state.patience.get(ticket, inf):
                state.patience[ticket] = patience
                state.set_timer(patience, action_of(first.member))
    return count


def recount(state: State, worker: Worker) -> None:
    """Note that a worker slot was taken or freed, or that a worker takes more, fewer or no executions."""
    free = max(worker.concurrency - len(worker.held), 0) if worker.is_taking else 0
    change, worker.free = free - worker.free, free
    offer(worker)
    if not change:
        return
    for crew in worker.crews:
        had_room = crew.has_room
        crew.free += change
        if change > 0 or crew.holding:
            state.dirty_pools[crew.pool] = None
        if crew.has_room != had_room:
            # Other crews may pass this one now, or may not any more.
            for gate in [lane.gate for lane in crew.lanes if len(lane.gate.lanes) > 1]:
                refresh_all(state, gate)


def offer(worker: Worker) -> None:
    """Let the crews of a worker find it at its place among those with a free slot."""
    if worker.free > 0:
        breadth, share = worker.burden = len(worker.crews), len(worker.held) / worker.concurrency
        for crew in worker.crews:
            heappush(crew.offers, (breadth, share, worker.id, worker))
            if len(crew.offers) > 64 + 4 * len(crew.workers):
                crew.offers = [(*other.burden, other.id, other) for other in crew.workers if other.free > 0]
                heapify(crew.offers)
