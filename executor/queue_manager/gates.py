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
from turnstile.executor.queue_manager.runs import shrink
from turnstile.executor.queue_manager.state import (
    ActionState,
    Crew,
    Execution,
    Lane,
    Member,
    Queue,
    ResourceGate,
    State,
    Worker,
)


def apply_changes(state: State) -> None:
    """Bring what changed to the front of its gates, each once: what comes later here follows from earlier."""
    while state.changed_queues:
        look_at(state, state.changed_queues.popitem()[0])
    while state.changed_workers:
        recount(state, state.changed_workers.popitem()[0])
    while state.changed_actions:
        relist(state, state.changed_actions.popitem()[0])
    while state.changed_gates:
        gate = min(state.changed_gates, key=rank_of)
        del state.changed_gates[gate]
        refresh(state, gate)


def rank_of(gate: ResourceGate) -> tuple[int, str]:
    """Return what orders resources: all executions acquire them in this order."""
    return gate.definition.rank, gate.definition.name


# Which execution an action stands for.


def look_at(state: State, queue: Queue) -> None:
    """Let a queue stand for its first execution in the line of its action, while it has a free slot."""
    action, limit, startable = queue.action, queue.limit, queue.length
    if limit is not None:
        room = limit - len(queue.holders)
        if room <= 0:
            startable = 0
            if action.pace and queue.length:
                state.runs[queue] = None
        elif room < startable:
            startable = room
    if queue.surplus:
        shrink(state, queue)
    action.startable += startable - queue.startable
    queue.startable = startable
    if startable:
        priority, ticket = queue.head()
        action.line.put(queue, queue.key, priority, ticket)
    else:
        action.line.discard(queue)
        if queue.is_idle and action.queues.get(queue.key) is queue:
            del action.queues[queue.key]
    state.changed_actions[action] = None


def relist(state: State, action: ActionState) -> None:
    """Let an action stand for its next execution, or for none while it may start none."""
    entry = action.line.first() if is_open(state, action) else None
    while entry is not None and state.queues_to_look_at and not entry.member.has_room:
        # Its limit was lowered, and the turn has not looked at it again.
        action.line.discard(entry.member)
        entry = action.line.first()
    if entry is None:
        unlist(state, action)
    elif action.reached < 0 or action.ticket != entry.ticket:
        if action.gates and action.reached >= 0:
            _step_back(state, action)
        action.queue, action.priority, action.ticket = entry.member, entry.priority, entry.ticket
        enlist(state, action)


def is_open(state: State, action: ActionState) -> bool:
    """Return whether the action lets one more start: it is not closed, and its total and rate allow it."""
    if action.is_closed:
        return False
    total = action.definition.max_concurrent_total
    if total is not None and action.held >= total:
        return False
    return action.window is None or has_start(state, action.window, action)


def is_closed(action: ActionState) -> bool:
    """Return whether a gate is closed for the action, whatever others release."""
    return action.definition.paused or any(
        gate.definition.paused or gate.definition.capacity < use.units
        for use, gate in zip(action.uses, action.gates, strict=True)
    )


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


def enlist(state: State, member: Member) -> None:
    """Let a member wait at its first gate."""
    member.reached = member.base
    _arrive(state, member)


def unlist(state: State, member: Member) -> None:
    """Remove a member from where it waits and where it is coming."""
    if member.reached < 0:
        return
    action = member.action
    _step_back(state, member)
    if member.base == len(action.gates):
        _leave_line(state, member)
    else:
        action.gates[member.base].lanes[action.crew].line.discard(member)
    member.reached = -1


def _leave_line(state: State, member: Member) -> None:
    """Remove a member from the line of its crew. What its workers may have in runs no longer waits for it."""
    crew = member.action.crew
    crew.line.discard(member)
    if crew.free <= 0:
        state.dirty_pools[crew.pool] = None
        if not crew.line.entries:
            _wake_pools(state, crew)


def _wake_pools(state: State, crew: Crew) -> None:
    """Look again at what waited for the turn of a crew at its workers."""
    state.dirty_pools |= {other.pool: None for worker in crew.workers for other in worker.crews}


def _step_back(state: State, member: Member) -> None:
    """Let a member be at no front: neither of the gate where it waits nor of those behind it.

    All of them are looked at again: others may come to their fronts, and it may have acquired their units.
    """
    action = member.action
    _withdraw(state, member, member.base)
    if member.base < len(action.gates):
        gate = action.gates[member.base]
        lane = gate.lanes[action.crew]
        lane.urgent.pop(member, None)
        if lane.front is member:
            lane.front = None
        state.changed_gates[gate] = None
    if member is action:
        state.impatient.pop(action, None)


def _arrive(state: State, member: Member) -> None:
    """Let a member wait at the stage that it reached, or be coming there."""
    action, stage = member.action, member.reached
    crew = action.crew
    if stage == len(action.gates):
        crew.stuck.pop(member, None)
        crew.line.put(member, action.ref, member.priority, member.ticket)
        state.dirty_pools[crew.pool] = None
        return
    gate = action.gates[stage]
    state.changed_gates[gate] = None
    lane = gate.lanes.get(crew)
    if lane is None:
        lane = gate.lanes[crew] = Lane(gate, crew)
        crew.lanes[lane] = None
    if stage > member.base:
        crew.stuck[member] = None
        state.dirty_pools[crew.pool] = None
        lane.coming[member] = Entry(member, action.ref, member.priority, member.ticket)
        return
    lane.line.put(member, action.ref, member.priority, member.ticket)
    if isinstance(member, Execution):
        lane.urgent[member] = None
    elif state.patience.get(member.ticket, inf) <= state.now and crew.is_live:
        lane.urgent[member] = state.impatient[member] = None


def _withdraw(state: State, member: Member, stage: int) -> None:
    """Remove a member from all gates behind one that it cannot pass now."""
    action, reached = member.action, member.reached
    crew, last = action.crew, len(action.gates)
    member.reached = stage
    if reached == last > stage:
        _leave_line(state, member)
    for gate in action.gates[stage + 1 : reached + 1]:
        lane = gate.lanes[crew]
        del lane.coming[member]
        if lane.front is member:
            lane.front = None
        state.changed_gates[gate] = None
    if stage > member.base:
        crew.stuck[member] = None
        state.dirty_pools[crew.pool] = None
    else:
        crew.stuck.pop(member, None)


# Who is at the front.


def refresh(state: State, gate: ResourceGate) -> None:
    """Find out who could pass a gate, and let it come to its next one.

    That is the first of each crew, if it fits and need not wait for another crew.
    """
    for lane in list(gate.lanes.values()):
        first, front = lane.first(), None
        if first is not None and fits(state, first.member, gate) and obstructing(gate, lane, first) is None:
            front = first.member
        if front is not lane.front:
            previous, lane.front = lane.front, front
            if previous is not None:
                _withdraw(state, previous, previous.action.gates.index(gate))
            if front is not None:
                front.reached += 1
                _arrive(state, front)
        if first is None:
            del gate.lanes[lane.crew], lane.crew.lanes[lane]


def fits(state: State, member: Member, gate: ResourceGate) -> bool:
    """Return whether the units of a member and one start of the rate are free at a gate."""
    if gate.held + units_of(member, gate) > gate.definition.capacity:
        return False
    return gate.window is None or has_start(state, gate.window, gate)


def units_of(member: Member, gate: ResourceGate) -> int:
    """Return the units that one execution of this member acquires at a gate of its action."""
    action = member.action
    return action.uses[action.gates.index(gate)].units


def obstructing(gate: ResourceGate, lane: Lane, entry: Entry[Member]) -> Entry[Member] | None:
    """Return who of another crew waits at the gate before this one, and may not be passed."""
    if len(gate.lanes) == 1:
        return None
    rank = lane.line.rank(entry)
    for other in gate.lanes.values():
        if other is not lane:
            first = other.line.first() if other.crew.has_room else None
            for each in [other.line.entries[member] for member in other.urgent] if first is None else [first]:
                if other.line.rank(each) < rank:
                    return each
    return None


def note_passed_over(state: State, member: Member, last: int) -> int:
    """Remember who is passed before stage `last` because no worker can take it; return how many."""
    count, action = 0, member.action
    for gate in action.gates[member.base : last]:
        if len(gate.lanes) == 1:
            continue
        lane = gate.lanes[action.crew]
        rank = lane.line.rank(Entry(member, action.ref, member.priority, member.ticket))
        for other in gate.lanes.values():
            first = other.first()
            if other is lane or first is None or other.crew.has_room or other.line.rank(first) > rank:
                continue
            count += 1
            ticket, patience = first.ticket, state.after(gate.definition.patience_seconds)
            if other.crew.is_live and patience < state.patience.get(ticket, inf):
                state.patience[ticket] = patience
                state.set_timer(patience, first.member.action)
    return count


def recount(state: State, worker: Worker) -> None:
    """Note that a worker slot was taken or freed, or that a worker takes more, fewer or no executions."""
    free = worker.concurrency - worker.used if worker.takes else 0
    before, worker.free = worker.free, free
    offer(worker)
    change = max(free, 0) - max(before, 0)
    for crew in worker.crews:
        had_free = crew.free > 0
        crew.free += change
        if free >= before or crew.holding:
            state.dirty_pools[crew.pool] = None
        if (crew.free > 0) != had_free:
            # Other crews may pass this one now, or may not any more.
            state.changed_gates |= {lane.gate: None for lane in crew.lanes if len(lane.gate.lanes) > 1}
            if crew.line.entries:
                _wake_pools(state, crew)


def offer(worker: Worker) -> None:
    """Let the crews of a worker find it at its place among those with a free slot."""
    if worker.free > 0:
        breadth, share = worker.burden = len(worker.crews), 1 - worker.free / worker.concurrency
        for crew in worker.crews:
            heappush(crew.offers, (breadth, share, worker.id, worker))
            if len(crew.offers) > 64 + 4 * len(crew.workers):
                crew.offers = [(*other.burden, other.id, other) for other in crew.workers if other.free > 0]
                heapify(crew.offers)
