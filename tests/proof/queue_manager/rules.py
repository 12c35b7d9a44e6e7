"""The guarantees, as a checker of what the queue manager did: P1, P2, P3, P7, P11 to P14, and progress.

The checker is told of each passage just before it happens, and looks at the state itself: who waits, what is
held, who has a worker. It knows nothing of lines and lanes. What it remembers of the past are the starts of
each rate and how far flows of fair gates are ahead of each other.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil, inf

from tests.proof.queue_manager.recount import (
    Seen,
    Violation,
    all_holders,
    free_slots,
    granted,
    has_room,
    heads,
    is_open,
    is_open_but_full,
    limit_of,
    must,
    queue_has_room,
    rank_at,
    recount,
    see,
    serving,
    slots_used,
)
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager import decide as decide_module
from turnstile.executor.queue_manager.decide import GRANTS_MAX
from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.definitions import Rate
from turnstile.executor.queue_manager.inputs import (
    DefineAction,
    DefinePool,
    DefineResource,
    Ended,
    Input,
    SetKey,
)
from turnstile.executor.queue_manager.lines import TAG_SCALE
from turnstile.executor.queue_manager.state import (
    ActionState,
    Execution,
    Member,
    PoolState,
    ResourceGate,
    State,
    Worker,
)

Gate = ActionState | ResourceGate | PoolState
Pair = tuple[str, int, str, str]


@dataclass(slots=True)
class Memory:
    """What the checker remembers of the past."""

    starts: dict[str, tuple[Rate, tuple[float, ...]]] = field(default_factory=dict)
    """For each rate the instants of its last grants, since it is what it is."""
    shares: dict[Pair, tuple[int, int]] = field(default_factory=dict)
    """For two flows that wait: how far the first is ahead of the second since both wait, and behind."""
    costs: dict[tuple[str, str], int] = field(default_factory=dict)
    """For each flow of a gate the most that one execution cost, by any weight that it had."""
    last_grant: tuple[int, int] = (0, 0)
    checks_runs: bool = True
    """Whether runs must be as long as they may be after each turn; after returns they are refilled later."""
    recalled: frozenset[tuple[int, int]] = frozenset()
    """Grants that their worker was asked to return, and has neither returned nor started."""


class Checker:
    """Checks one turn after the other."""

    def __init__(self, state: State, memory: Memory) -> None:
        self.state = state
        self.memory = memory

    # One passage.

    def before_passage(self, member: Member, last: int) -> None:
        """Check that a member may pass all gates before stage `last`. Raises Violation."""
        state, action, seen = self.state, member.action, see(self.state)
        base = member.base if isinstance(member, Execution) else 0
        if isinstance(member, ActionState):
            self._check_queue(member)
        must("P12", is_open(state, action) or base > 0, action.ref, "is closed and starts")
        # What passes no resource may be granted to a worker without a free slot: `before_grant`.
        is_start = last == len(action.gates) and (has_room(state, action) or not action.gates)
        for gate, use in zip(action.gates[base:last], action.uses[base:last], strict=True):
            capacity = gate.definition.capacity
            must("P11", gate.held + use.units <= capacity, action.ref, "exceeds", gate.definition.name)
            self._check_order_at(seen, gate, member)
            if gate.clock is not None:
                self._share(seen, gate, member, use.units, use.weight)
        if is_start:
            self._check_pool(seen, member)
            pool = state.pools[action.definition.pool]
            if pool.clock is not None and has_room(state, action):
                self._share(seen, pool, member, 1, pool.definition.weights.get(action.ref, 1))
        else:
            must_hold = isinstance(member, Execution) or member in state.impatient or self._spare(action) > 0
            must("hold", must_hold, action.ref, "holds units and no worker is left for it")

    def before_grant(self, execution: Execution, worker: Worker) -> None:
        """Check that an execution which has all it needs may be given to a worker. Raises Violation."""
        state, queue, action = self.state, execution.queue, execution.action
        others = [e for e in state.executions.values() if e.queue is queue and e.worker is not None]
        pool = state.pools[action.definition.pool]
        must("run", worker.takes and worker in serving(state, action), execution.id, "goes to", worker.id)
        must("run", not pool.definition.paused, execution.id, "starts in a paused pool")
        place = execution.priority, execution.id
        limit = limit_of(queue)
        is_beyond = limit is not None and len(others) >= limit
        if execution.held_at or (not is_beyond and free_slots(worker)):
            return
        must("run", is_plain(action), action.ref, "may have no runs")
        must("run", not execution.is_suspect, execution.id, "may have brought a worker down")
        members = [m for m in see(state).startable() if has_place(state, m.action, worker)]
        flows = {action}
        if is_beyond:
            assert limit is not None
            must("P1", {e.worker for e in others} == {worker}, execution.id, "is one too many of its limit")
            waiting = [(p, i) for p, ws in queue.waiting.items() for i in ws]
            must("P2", all(place < other for other in waiting), execution.id, "is not the first")
            is_urgent = any(place < (e.priority, e.id) for e in others)
            most = run_of(action, limit) * (1 + is_urgent)
            must("run", len(others) - limit < most, execution.id, "is more than a horizon's worth")
            must("P12", not members, execution.id, "passes what waits for its worker")
            late = sum(e.scheduled_at < state.now - 0.4 for e in others if e.scheduled_at is not None)
            must("run", late <= len(others) - queue.surplus + 1, execution.id, "is behind what stalls")
        else:
            short = worker.concurrency - sum(not e.is_short for e in worker.held.values())
            over = slots_used(worker) - worker.concurrency
            must("run", over < run_of(action, short, 1024), execution.id, "is more than a horizon's worth")
            rank = rank_at(pool.clock, *place[:1], action.ref, execution.id)
            mine = [m for m in members if m.action.definition.pool == pool.definition.name]
            for other in mine:
                other_rank = rank_at(pool.clock, *_place(other))
                must("P12", rank <= other_rank, place, "passes", _place(other), "at its pool")
            flows |= {m.action for m in mine if _place(m)[0] == execution.priority}
        if pool.clock is not None:
            weights = {each.ref: pool.definition.weights.get(each.ref, 1) for each in flows}
            self._charge(
                f"pool {pool.definition.name}", execution.priority, action.ref, set(weights), 1, weights,
                dict.fromkeys(weights, 1),
            )  # fmt: skip

    def _check_runs(self, seen: Seen, out: Decisions) -> None:
        """P7: what may have a horizon's worth at a worker has it, unless others wait for that worker."""
        state = self.state
        changed = {each.queue for each in out.admitted if each.due_at is None}
        changed |= {each.queue for each in out.granted} | {each.queue for each in out.finished}
        for queue in changed:
            limit, waiting = limit_of(queue), [(p, i) for p, ws in queue.waiting.items() for i in ws]
            workers = list(queue.at)
            if limit is None or len(workers) != 1 or not waiting or not is_plain(queue.action):
                continue
            pending, most = queue.held - limit, run_of(queue.action, limit)
            is_open_there = has_place(state, queue.action, workers[0]) and workers[0].concurrency >= limit
            others_wait = any(has_place(state, member.action, workers[0]) for member in seen.startable())
            is_due = 0 <= pending <= 0.85 * most and is_open_there and not others_wait and most > pending
            must(
                "P7",
                not is_due or is_suspect(state, min(waiting)[1]),
                queue.action.ref,
                "has too short a run",
            )
        for worker in state.workers.values():
            members = [m for m in seen.startable() if has_place(state, m.action, worker)]
            pools = {m.action.definition.pool for m in members}
            name = next((name for name in worker.pools if name in pools), "")
            first = min(
                (m for m in members if m.action.definition.pool == name),
                key=lambda m: rank_at(state.pools[name].clock, *_place(m)),
                default=None,
            )
            if first is None or not is_plain(first.action) or is_suspect(state, _place(first)[2]):
                continue
            short = worker.concurrency - sum(not e.is_short for e in worker.held.values())
            over = slots_used(worker) - worker.concurrency
            must(
                "P7", over >= run_of(first.action, short, 1024), _place(first), "could be ahead at", worker.id
            )

    def _check_queue(self, action: ActionState) -> None:
        """P1, P2: it is the first of its queue, which has a free slot; P12, P14 at the total."""
        entry = action.line.head()
        queue = entry.member
        first = min((p, i) for p, ws in queue.waiting.items() for i in ws)
        must("P2", (entry.priority, entry.ticket) == first, action.ref, "starts", entry.ticket, "not", first)
        must("P1", queue_has_room(queue), action.ref, queue.key, "has no free slot")
        total = action.definition.max_concurrent_total
        must("P1", total is None or action.held < total, action.ref, "has no free total")
        rank = rank_at(action.clock, entry.priority, queue.key, entry.ticket)
        for key, (priority, ticket) in heads(action).items():
            earlier = rank_at(action.clock, priority, key, ticket)
            must("P12", earlier >= rank, action.ref, f"{entry.ticket} passes {ticket} at the total")
        if action.clock is not None:
            flows = {key for key, (priority, _) in heads(action).items() if priority == entry.priority}
            weights = {key: action.queues[key].settings.weight for key in flows}
            self._charge(
                f"total {action.ref}", entry.priority, queue.key, flows, 1, weights, dict.fromkeys(flows, 1)
            )

    def _check_order_at(self, seen: Seen, gate: ResourceGate, member: Member) -> None:
        """P12: who waits there before it is passed only if no worker can take it."""
        rank = rank_at(gate.clock, *_place(member))
        for other in seen.at(gate):
            if other is not member and seen.rank(gate, other) < rank:
                is_excused = not seen.is_urgent(other) and not has_room(self.state, other.action)
                must("P12", is_excused, _place(member), "passes", _place(other), "at", gate.definition.name)

    def _check_pool(self, seen: Seen, member: Member) -> None:
        """P12: nothing that could start, and has a worker, comes before it in the order of the pool."""
        pool = self.state.pools[member.action.definition.pool]
        rank = rank_at(pool.clock, *_place(member))
        for other in seen.startable():
            action = other.action
            if action.definition.pool == pool.definition.name and has_room(self.state, action):
                must(
                    "P12",
                    seen.rank(pool, other) >= rank,
                    _place(member),
                    "passes",
                    _place(other),
                    "at its pool",
                )

    def _spare(self, action: ActionState) -> int:
        """Free worker slots of an action's workers that nothing which holds units counts on."""
        state, workers = self.state, serving(self.state, action)
        counting = [
            e for e in all_holders(state)
            if not e.is_impatient and e.queue.action.definition.pool == action.definition.pool
            and serving(state, e.queue.action) == workers
        ]  # fmt: skip
        return (sum(map(free_slots, workers)) if has_room(state, action) else 0) - len(counting)

    # Fairness.

    def _share(
        self, seen: Seen, gate: ResourceGate | PoolState, member: Member, units: int, weight: int
    ) -> None:
        flows = self._flows(seen, gate, member.action, _place(member)[0])
        refs = {action.ref for action in flows}
        weights, most = {}, {}
        for action in flows:
            weights[action.ref], most[action.ref] = _weight_and_units(gate, action)
        name = gate.definition.name
        kind = "pool" if isinstance(gate, PoolState) else "resource"
        self._charge(f"{kind} {name}", _place(member)[0], member.action.ref, refs, units, weights, most)

    def _flows(
        self, seen: Seen, gate: ResourceGate | PoolState, passing: ActionState | None, priority: int
    ) -> set[ActionState]:
        """Actions that wait at a gate and lack nothing but their turn."""
        waiting = seen.at(gate) if isinstance(gate, ResourceGate) else [
            m for m in seen.startable() if self.state.pools[m.action.definition.pool] is gate
        ]  # fmt: skip
        flows = {m.action for m in waiting if seen.place[m][0] == priority}
        if passing is not None:
            flows.add(passing)
        some_has_room = any(has_room(self.state, action) for action in flows)
        return {a for a in flows if a is passing or not some_has_room or has_room(self.state, a)}

    def _charge(  # noqa: PLR0917
        self, gate: str, priority: int, flow: str, flows: set[str], units: int,
        weights: dict[str, int], most: dict[str, int],
    ) -> None:  # fmt: skip
        """P14: of two flows that wait, none gets ahead by more than one execution of each."""
        shares, costs = self.memory.shares, self.memory.costs
        for each in flows:
            cost = most[each] * TAG_SCALE // weights[each]
            costs[gate, each] = max(costs.get((gate, each), 0), cost)
        for pair in [p for p in shares if p[:2] == (gate, priority) and not {p[2], p[3]} <= flows]:
            del shares[pair]
        for other in flows - {flow}:
            first, second = min(flow, other), max(flow, other)
            growth = (units * TAG_SCALE // weights[flow]) * (1 if flow == first else -1)
            above, below = shares.get((gate, priority, first, second), (0, 0))
            above, below = max(above + growth, 0), max(below - growth, 0)
            bound = costs[gate, flow] + costs[gate, other]
            must("P14", max(above, below) <= bound, f"{flow} is ahead of {other} at {gate}")
            shares[gate, priority, first, second] = above, below

    def _forget_shares(self, seen: Seen) -> None:
        """Drop the pairs of which one flow does not wait any more."""
        for pair in list(self.memory.shares):
            gate, priority, first, second = pair
            kind, _, name = gate.partition(" ")
            if kind == "total":
                action, flows = self.state.actions.get(name), set()
                if action is not None and action.clock is not None and is_open_but_full(self.state, action):
                    flows = {key for key, (p, _) in heads(action).items() if p == priority}
            else:
                at = self.state.resources.get(name) if kind == "resource" else self.state.pools[name]
                found = set() if at is None or at.clock is None else self._flows(seen, at, None, priority)
                flows = {action.ref for action in found}
            if not {first, second} <= flows:
                del self.memory.shares[pair]

    # One turn.

    def after_turn(self, out: Decisions) -> None:
        """Check what a turn decided and the state that it left. Raises Violation."""
        for each in out.granted:
            number = each.grant.epoch, each.grant.counter
            must("P6", number > self.memory.last_grant, each.id, "has an old grant")
            self.memory.last_grant = number
            self._count_starts(each.queue.action, each.id)
        self._check_recalls(out)
        ended = [each.id for each in out.finished]
        must("P3", len(ended) == len(set(ended)), "ended twice", ended)
        must("P3", not set(ended) & self.state.executions.keys(), "ended and lives", ended)
        self._check_asked(out)
        seen = recount(self.state)
        self._check_rest(seen, out)
        if self.memory.checks_runs and not out.is_unfinished:
            self._check_runs(seen, out)
        self._forget_shares(seen)

    def _check_recalls(self, out: Decisions) -> None:
        """P2: a worker gets nothing more while it may return something that was granted before."""
        recalled = {(queue, worker_id): barrier for queue, worker_id, barrier in out.recalled}
        unanswered = [
            e
            for e in self.state.executions.values()
            if e.worker is not None and e.grant is not None and e.started_at is None
            and (tuple(e.grant) in self.memory.recalled
                 or e.grant <= recalled.get((e.queue, e.worker.id), Grant(0, 0)))
        ]  # fmt: skip
        for each in out.granted:
            must("P2", all(e.worker is not each.worker for e in unanswered), each.id, "is before a return")
        self.memory.recalled = frozenset((e.grant.epoch, e.grant.counter) for e in unanswered if e.grant)

    def _count_starts(self, action: ActionState, execution_id: int) -> None:
        """P13: any starts + 1 consecutive grants span at least `per`."""
        windows = [w for w in (action.window, *(gate.window for gate in action.gates)) if w is not None]
        for window in windows:
            starts, per = window.rate.starts, window.rate.per_seconds
            _, before = self.memory.starts.get(window.name, (window.rate, ()))
            instants = (*before, self.state.now)
            if len(instants) > starts:
                is_late = instants[-1] >= instants[-1 - starts] + per
                must("P13", is_late, execution_id, "is one start too many of", window.name)
            self.memory.starts[window.name] = window.rate, instants[-max(starts, 1) :]

    def _check_asked(self, out: Decisions) -> None:
        """A grant of a turn never follows an attempt at a lost worker of which that worker was not told."""
        asked = {each.execution_id for each in out.asked}
        for each in out.attempts:
            must("asked", each.outcome != "reclaimed" or each.id in asked, each.id, "was reclaimed silently")

    def _check_rest(self, seen: Seen, out: Decisions) -> None:
        """P1, P7: at the fixed point nothing could start, hold or must give back."""
        state = self.state
        if out.is_unfinished:
            return
        for member in seen.startable():
            must("P7", not has_room(state, member.action), _place(member), "could start")
        for member in seen.stuck():
            could = (
                isinstance(member, Execution) or member in state.impatient or self._spare(member.action) > 0
            )
            must("P7", not could, _place(member), "could acquire what is free")
        for action in state.impatient:
            must("P7", seen.reached[action] == 0, action.ref, "was passed over for too long")
        for execution in all_holders(state):
            is_kept = execution.is_impatient or self._spare(execution.queue.action) >= 0
            must("hold", is_kept, execution.id, "holds units and no worker is left for it")
            must(
                "hold",
                is_open_but_full(state, execution.queue.action),
                execution.id,
                "holds behind a closed gate",
            )
            pool = state.pools[execution.queue.action.definition.pool]
            must("hold", not pool.definition.paused, execution.id, "holds units for a paused pool")
            live = any(
                worker.is_taking and worker.concurrency for worker in serving(state, execution.queue.action)
            )
            must("hold", live, execution.id, "holds units and has no worker")


def is_plain(action: ActionState) -> bool:
    """Whether an action has runs now: it passes no gate but queue and pool, may run twice, and is short."""
    it = action.definition
    is_gated = it.paused or it.max_concurrent_total is not None or bool(it.uses) or it.rate is not None
    may_run_twice = it.on_worker_lost == "requeue" and it.max_reclaims > 0
    return it.runs and not is_gated and may_run_twice and action.seconds is not None and action.seconds < 0.1


def run_of(action: ActionState, slots: int, count_max: int = 256) -> int:
    """A horizon's worth of an action for so many slots: by default of its limit."""
    assert action.seconds is not None
    return min(count_max, ceil(slots * 0.1 / max(action.seconds, 0.001)))


def has_place(state: State, action: ActionState, worker: Worker) -> bool:
    """Whether an action could have a slot of this worker."""
    is_paused = state.pools[action.definition.pool].definition.paused
    return worker.takes and worker in serving(state, action) and not is_paused


def is_suspect(state: State, execution_id: int) -> bool:
    return execution_id in state.executions and state.executions[execution_id].is_suspect


def _place(member: Member) -> tuple[int, str, int]:
    """Priority, flow at resources and pools, and id."""
    if isinstance(member, Execution):
        return member.priority, member.queue.action.ref, member.id
    entry = member.line.head()
    return entry.priority, member.ref, entry.ticket


def _weight_and_units(gate: ResourceGate | PoolState, action: ActionState) -> tuple[int, int]:
    if isinstance(gate, PoolState):
        return gate.definition.weights.get(action.ref, 1), 1
    use = action.uses[action.gates.index(gate)]
    return use.weight, use.units


# Turns, watched.

PASSAGES_MAX = 500


def _fail(violation: Violation) -> None:
    raise violation


@contextmanager
def watched(checker: Checker, note: Callable[[Violation], None]) -> Iterator[None]:
    """Tell a checker of each passage, and note what it finds."""
    acquire, give, passages = decide_module._acquire, decide_module._give, 0

    def acquire_watched(state: State, member: Member, last: int, out: Decisions) -> Execution:
        nonlocal passages
        passages += 1
        must("progress", passages < PASSAGES_MAX, "the turn does not end")
        try:
            checker.before_passage(member, last)
        except Violation as violation:
            note(violation)
        return acquire(state, member, last, out)

    def give_watched(state: State, execution: Execution, worker: Worker, out: Decisions) -> None:
        try:
            checker.before_grant(execution, worker)
        except Violation as violation:
            note(violation)
        give(state, execution, worker, out)

    decide_module._acquire, decide_module._give = acquire_watched, give_watched
    try:
        yield
    finally:
        decide_module._acquire, decide_module._give = acquire, give


def turn(
    state: State,
    memory: Memory,
    inputs: Iterable[Input],
    now: float,
    note: Callable[[Violation], None] = _fail,
    *,
    grants_max: int = GRANTS_MAX,
) -> Decisions:
    """Let the queue manager decide, checked. Raises Violation, unless `note` takes it."""
    checker, told = Checker(state, memory), list(inputs)
    if any(isinstance(each, DefineAction | DefineResource | DefinePool | SetKey) for each in told):
        # Weights, units and orders may change: shares are counted from now on.
        memory.shares.clear()
    actions, changed = dict(state.actions), list(_changed_rates(state, told))
    with watched(checker, note):
        out = decide_module.decide(state, told, now, grants_max=grants_max)
    changed += [f"action {ref}" for ref, action in actions.items() if state.actions.get(ref) is not action]
    for name in changed:
        memory.starts.pop(name, None)
    try:
        checker.after_turn(out)
    except Violation as violation:
        note(violation)
    return out


def _changed_rates(state: State, told: Iterable[Input]) -> Iterator[str]:
    """Yield the rates that a turn changes, even if it changes them back: their starts are counted anew."""
    owner: ActionState | ResourceGate | None
    for each in told:
        match each:
            case DefineAction(action=definition):
                name, owner = f"action {definition.ref}", state.actions.get(definition.ref)
            case DefineResource(resource=definition):
                name, owner = f"resource {definition.name}", state.resources.get(definition.name)
            case _:
                continue
        if owner is not None and owner.definition.rate != definition.rate:
            yield name


def check_progress(packed: bytes, steps_max: int) -> None:
    """Starvation: if nothing arrives and all that runs ends, everything that is open starts. Raises
    Violation."""
    state: State = pickle.loads(packed)
    # Nothing expires, so what waits must start.
    state.timers = sorted(timer for timer in state.timers if not isinstance(timer.about, tuple))
    for _ in range(steps_max):
        ends = [
            Ended(execution_id=e.id, grant=e.grant, status=Status.COMPLETED)
            for e in granted(state)
            if e.grant
        ]
        left = [ref for ref, action in state.actions.items() if _could_ever_start(state, action)]
        if not left:
            return
        out = decide_module.decide(state, ends, state.now)
        if not out.granted and not ends:
            at = min((timer.at for timer in state.timers), default=inf)
            must("progress", at < inf, left, "wait and nothing will happen")
            decide_module.decide(state, (), max(at, state.now))
    raise Violation("progress", f"something waits after {steps_max} steps")


def _could_ever_start(state: State, action: ActionState) -> bool:
    if not is_open_but_full(state, action) or state.pools[action.definition.pool].definition.paused:
        return False
    if not any(worker.is_taking and worker.concurrency for worker in serving(state, action)):
        return False
    limits = (limit_of(queue) for queue in action.queues.values() if queue.waiting or queue.holding)
    return any(limit is None or limit > 0 for limit in limits)


def check_idempotence(state: State) -> None:
    """Deciding again without anything new changes nothing. Raises Violation."""
    out = decide_module.decide(state, (), state.now)
    changed = out.granted or out.changed or out.finished
    must("again", not changed, "deciding twice decided something", out.granted, out.changed)
