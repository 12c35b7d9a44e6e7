"""Explores every interleaving of a small system, breadth first, and checks each turn and each state.

It runs the queue manager itself. Executions come and go without end, and yet the number of states is finite:
only so many are alive at once, and states that differ only in ids, grants, the time of day or the origin of
virtual time are one state (`key_of`). So an exploration that is complete covers runs of any length.

A ledger in memory goes along. In each state a new leader may load what it has: it must find that state, and
from there everything that may happen is explored as well.
"""

import copyreg
import io
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tests.proof.queue_manager.configurations import Configuration
from tests.proof.queue_manager.loads import Ledger, check_load, door, hellos, with_report
from tests.proof.queue_manager.recount import Violation, all_holders, granted
from tests.proof.queue_manager.rules import Memory, check_idempotence, check_progress, turn
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.executor.leader.records import DefinitionRow
from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.definitions import Action, KeySettings, Pool, Rate, Resource, Use
from turnstile.executor.queue_manager.inputs import (
    Admit,
    Cancel,
    DeleteAction,
    Ended,
    Input,
    Overdue,
    Returned,
    Started,
)
from turnstile.executor.queue_manager.lines import FairClock
from turnstile.executor.queue_manager.rates import RateWindow
from turnstile.executor.queue_manager.retries import RetryPolicy
from turnstile.executor.queue_manager.state import (
    ActionState,
    Execution,
    PoolState,
    Queue,
    ResourceGate,
    State,
    Worker,
    has_meaning,
)

PROGRESS_STEPS_MAX = 60


class Event(NamedTuple):
    """What may happen: its name, and what it is about."""

    name: str
    arguments: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {' '.join(map(str, self.arguments))}"


@dataclass(slots=True)
class System:
    """A configuration at one moment: the state, what the checker remembers, and the position of each
    switch."""

    state: State
    memory: Memory = field(default_factory=Memory)
    switched: tuple[int, ...] = ()
    ledger: Ledger = field(default_factory=Ledger)


def initial(configuration: Configuration) -> System:
    system = System(State(), switched=(0,) * len(configuration.switches))
    inputs = [
        *configuration.definitions,
        *configuration.workers,
        *(each[0] for each in configuration.switches),
    ]
    take_turn(system, inputs, 0)
    return system


def take_turn(system: System, inputs: list[Input], now: float) -> Decisions:
    """Let the queue manager decide, checked, and write that. Raises Violation."""
    out = turn(system.state, system.memory, inputs, now)
    system.ledger.write(system.state, inputs, out)
    return out


def load(system: System) -> None:
    """Let a new leader go on with what it finds, the same state; its workers offer the same as before."""
    told = hellos(system.state)
    system.state, system.ledger.memory = check_load(system.ledger, system.state)
    # Each worker answers a new leader before it gets anything.
    system.memory.recalled = frozenset()
    take_turn(system, told, system.state.now)


def events_of(configuration: Configuration, system: System) -> Iterator[Event]:
    """Yield everything that may happen now."""
    state = system.state
    if sum(action.enqueued - action.completed for action in state.actions.values()) < configuration.alive_max:
        for number in range(len(configuration.requests)):
            yield Event("admit", (number,))
            if configuration.delay_seconds is not None:
                yield Event("delay", (number,))
    yield from _reports_of(configuration, state)
    if configuration.has_cancels:
        yield from (Event("cancel", (each,)) for each in cancellable(state))
    for number, values in enumerate(configuration.switches):
        current = system.switched[number]
        yield from (Event("switch", (number, to)) for to in range(len(values)) if to != current)
    if configuration.tick_seconds:
        yield Event("tick")
    if configuration.has_loads:
        yield Event("load")


def _reports_of(configuration: Configuration, state: State) -> Iterator[Event]:
    """Yield what may happen to what is at workers."""
    at_workers = granted(state)
    for number, execution in enumerate(at_workers):
        yield Event("end", (execution.id,))
        if configuration.has_failures:
            yield Event("fail", (execution.id,))
        if configuration.has_returns:
            yield Event("return", (execution.id,))
        if configuration.has_starts and execution.started_at is None:
            yield Event("start", (execution.id,))
        if configuration.has_overdues:
            yield Event("overdue", (execution.id,))
        if configuration.has_batches:
            yield from (Event("end", (execution.id, other.id)) for other in at_workers[number + 1 :])


def cancellable(state: State) -> list[int]:
    """Ids of what waits, holds, is delayed, or runs without a cancel."""
    waiting = [
        i for a in state.actions.values() for q in a.queues.values() for ws in q.waiting.values() for i in ws
    ]
    rest = [e.id for e in state.executions.values() if e.id not in set(waiting) and e.cancel_reason is None]
    return sorted({*waiting, *rest})


def inputs_of(configuration: Configuration, system: System, event: Event) -> tuple[list[Input], float]:
    """Return what the queue manager is told, and when."""
    state, now = system.state, system.state.now
    match event:
        case Event("admit", (number,)):
            ref, key, priority = configuration.requests[number]
            ttl = configuration.ttl_seconds
            source = door(ref)
            return [Admit(action_ref=ref, key=key, priority=priority, ttl_seconds=ttl, source=source)], now
        case Event("delay", (number,)):
            ref, key, priority = configuration.requests[number]
            assert configuration.delay_seconds is not None
            run_at, ttl = now + configuration.delay_seconds, configuration.ttl_seconds
            return [
                Admit(
                    action_ref=ref, key=key, priority=priority, run_at=run_at, ttl_seconds=ttl,
                    source=door(ref),
                )
            ], now  # fmt: skip
        case Event("end", ids):
            return [_ended(configuration, state, each, Status.COMPLETED) for each in ids], now
        case Event("fail", ids):
            return [_ended(configuration, state, each, Status.FAILED) for each in ids], now
        case Event("return", (each,)):
            return [Returned(execution_id=each, grant=_grant(state, each))], now
        case Event("overdue", (each,)):
            return [Overdue(execution_id=each, grant=_grant(state, each))], now
        case Event("start", (each,)):
            return [Started(execution_id=each, grant=_grant(state, each), at=now)], now
        case Event("cancel", (each,)):
            ref, key, priority = _where(state, each)
            return [
                Cancel(execution_id=each, reason="why not", action_ref=ref, key=key, priority=priority)
            ], now
        case Event("switch", (number, to)):
            return [configuration.switches[number][to]], now
        case _:
            return [], now + configuration.tick_seconds


def _grant(state: State, execution_id: int) -> Grant:
    grant = state.executions[execution_id].grant
    assert grant is not None
    return grant


def _ended(
    configuration: Configuration,
    state: State,
    execution_id: int,
    status: Literal[Status.COMPLETED, Status.FAILED],
) -> Ended:
    seconds = configuration.run_seconds
    return with_report(
        Ended(
            execution_id=execution_id, grant=_grant(state, execution_id), status=status,
            is_retryable=status is Status.FAILED, started_at=None if seconds is None else state.now,
            completed_at=None if seconds is None else state.now + seconds,
        )
    )  # fmt: skip


def _where(state: State, execution_id: int) -> tuple[str, str, int]:
    for ref, action in state.actions.items():
        for key, queue in action.queues.items():
            for priority, waiting in queue.waiting.items():
                if execution_id in waiting:
                    return ref, key, priority
    queue = state.executions[execution_id].queue
    return queue.action.ref, queue.key, state.executions[execution_id].priority


def happen(configuration: Configuration, system: System, event: Event) -> None:
    """Let an event happen, checked. Raises Violation."""
    if event.name == "load":
        load(system)
        return
    inputs, now = inputs_of(configuration, system, event)
    is_refused = any(isinstance(each, DeleteAction) and _runs(system.state, each.ref) for each in inputs)
    take_turn(system, inputs, now)
    if event.name == "switch" and not is_refused:
        number, to = event.arguments
        system.switched = (*system.switched[:number], to, *system.switched[number + 1 :])


def _runs(state: State, ref: str) -> bool:
    return any(e.queue.action.ref == ref for e in granted(state))


# One key for all systems that behave in the same way.


def key_of(system: System) -> object:
    """Return the same value for systems that behave in the same way. Ids are renumbered, instants are
    ages."""
    state, now = system.state, system.state.now
    alive: dict[int, tuple[Queue, int, float]] = {}
    for action in state.actions.values():
        for queue in action.queues.values():
            for priority, waiting in queue.waiting.items():
                alive |= {e.id: (queue, priority, e.expires_at) for e in waiting.entries()}
    for e in state.executions.values():
        alive.setdefault(e.id, (e.queue, e.priority, e.expires_at))
    number = {execution_id: n for n, execution_id in enumerate(sorted(alive))}
    executions = tuple(
        (
            queue.action.ref,
            queue.key,
            priority,
            max(expires_at - now, 0.0),
            _past(state.executions.get(i), now),
        )
        for i, (queue, priority, expires_at) in sorted(alive.items())
    )
    served = sorted({pool.served for pool in state.pools.values()})
    return (
        system.switched,
        executions,
        tuple((a.ref, _clock(a.clock), _window(a.window, now)) for a in state.actions.values()),
        tuple((name, _clock(g.clock), _window(g.window, now)) for name, g in state.resources.items()),
        tuple(
            (name, _clock(p.clock), served.index(p.served), _holding(p, number))
            for name, p in state.pools.items()
        ),
        tuple((w.id, w.concurrency, w.is_taking, w.pools, w.surplus) for w in state.workers.values()),
        tuple((a.ref, a.seconds and round(a.seconds, 2)) for a in state.actions.values()),
        tuple(sorted((number[i], max(at - now, 0.0)) for i, at in state.patience.items() if i in number)),
        frozenset((t.at - now, _about(t.about, number)) for t in state.timers if has_meaning(t)),
        frozenset(
            (name, tuple(at - now for at in instants if now - at < rate.per_seconds))
            for name, (rate, instants) in system.memory.starts.items()
        ),
        frozenset((pair, share) for pair, share in system.memory.shares.items() if share != (0, 0)),
    )


def _past(e: Execution | None, now: float) -> object:
    if e is None:
        return None
    due = None if e.due_at is None else e.due_at - now
    worker = None if e.worker is None else e.worker.id
    return (
        e.status, due, e.base, worker, e.cancel_reason is None, e.failures, e.reclaims, e.is_impatient,
        e.is_recorded, e.attempt > 0, e.started_at is None, e.is_short, e.is_suspect,
        # How long what may be in a run has been there.
        None if worker is None or not e.is_short else min(now - (e.scheduled_at or now), 0.5),
    )  # fmt: skip


def _clock(clock: FairClock | None) -> object:
    if clock is None:
        return None
    ahead = ((key, tag - clock.virtual.get(key[0], 0)) for key, tag in clock.finish.items())
    return frozenset((key, tag) for key, tag in ahead if tag > 0)


def _window(window: RateWindow | None, now: float) -> object:
    if window is None:
        return None
    ages = tuple(at - now for at in window.instants if now < at + window.rate.per_seconds)
    return ages, window.kept, window.timer_at - now


def _holding(pool: PoolState, number: dict[int, int]) -> object:
    return frozenset(tuple(number[e.id] for e in crew.holding) for crew in pool.crews.values())


def _about(about: object, number: dict[int, int]) -> object:
    match about:
        case Execution() as e:
            return number.get(e.id)
        case ActionState() as action:
            return action.ref
        case ResourceGate() as gate:
            return gate.definition.name
        case Worker() as worker:
            return worker.id
        case (Queue() as queue, priority):
            return queue.action.ref, queue.key, priority
        case _:
            raise AssertionError(about)


# The exploration.


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of an exploration."""

    configuration: str
    states: int
    transitions: int
    depth: int
    """The number of events on the longest shortest path."""
    seconds: float
    is_complete: bool
    """False if there were more states than allowed, or a violation."""
    violation: BaseException | None = None
    trace: tuple[Event, ...] = ()
    """A shortest sequence of events that leads to the violation."""

    def __str__(self) -> str:
        verdict = "no violation" if self.violation is None else f"{self.violation!r}"
        return (
            f"{self.configuration:16} {self.states:9,} states {self.transitions:10,} transitions  "
            f"depth {self.depth:3}  {self.seconds:6.1f} s  "
            f"{'all' if self.is_complete else 'not all'}, {verdict}"
        )


_DEFINITIONS: list[object] = []
_NUMBERS: dict[str, int] = {}


def _definition(number: int) -> object:
    return _DEFINITIONS[number]


def _by_number(definition: object) -> tuple[Callable[..., object], tuple[int]]:
    text = repr(definition)
    if text not in _NUMBERS:
        _NUMBERS[text] = len(_DEFINITIONS)
        _DEFINITIONS.append(definition)
    return _definition, (_NUMBERS[text],)


class _Pickler(pickle.Pickler):
    """Packs each definition as a number: it never changes, and is most of a state."""

    dispatch_table = copyreg.dispatch_table | dict.fromkeys(
        (Action, KeySettings, Pool, Rate, Resource, RetryPolicy, Use, DefinitionRow), _by_number
    )


def _pack(value: object) -> bytes:
    packed = io.BytesIO()
    _Pickler(packed, pickle.HIGHEST_PROTOCOL).dump(value)
    return packed.getvalue()


class _Node(NamedTuple):
    state: bytes
    rest: bytes
    depth: int
    parent: "_Node | None"
    event: Event | None

    def system(self) -> System:
        return System(pickle.loads(self.state), *pickle.loads(self.rest))

    def trace(self, event: Event) -> tuple[Event, ...]:
        events, node = [event], self
        while node.parent is not None and node.event is not None:
            events.append(node.event)
            node = node.parent
        return tuple(reversed(events))


def explore(configuration: Configuration, *, states_max: int = 10**9) -> Report:
    """Explore until nothing new appears, a rule is violated, or there are more than `states_max` states."""
    began = time.process_time()
    seen: set[object] = set()
    frontier: deque[_Node] = deque()
    transitions = depth = 0

    def report(violation: BaseException | None = None, trace: tuple[Event, ...] = ()) -> Report:
        return Report(
            configuration=configuration.name, states=len(seen), transitions=transitions, depth=depth,
            seconds=time.process_time() - began, is_complete=not frontier and violation is None,
            violation=violation, trace=trace,
        )  # fmt: skip

    try:
        system = initial(configuration)
    except Exception as error:  # noqa: BLE001
        return report(error)
    seen.add(key_of(system))
    frontier.append(_node(system, None, None))
    while frontier and len(seen) <= states_max:
        node = frontier.popleft()
        depth = node.depth
        for event in list(events_of(configuration, node.system())):
            transitions += 1
            try:
                system = node.system()
                happen(configuration, system, event)
                if event.name == "end" and len(event.arguments) == 2:
                    _check_batch(configuration, node, event, system)
                key = key_of(system)
                if key not in seen:
                    seen.add(key)
                    following = _node(system, node, event)
                    frontier.append(following)
                    check_progress(following.state, PROGRESS_STEPS_MAX)
                    check_idempotence(system.state)
            except Exception as error:  # noqa: BLE001
                return report(error, node.trace(event))
    return report()


def _node(system: System, parent: _Node | None, event: Event | None) -> _Node:
    rest = _pack((system.memory, system.switched, system.ledger))
    return _Node(_pack(system.state), rest, 0 if parent is None else parent.depth + 1, parent, event)


def _check_batch(configuration: Configuration, node: _Node, event: Event, system: System) -> None:
    """The grants of a batch of ends do not depend on their order in the batch."""
    other = node.system()
    happen(configuration, other, Event("end", event.arguments[::-1]))
    if _placed(other.state) != _placed(system.state):
        raise Violation("batch", f"{_placed(system.state)}, in reverse order {_placed(other.state)}")


def _placed(state: State) -> tuple[list[int], list[tuple[int, int]]]:
    return [e.id for e in granted(state)], [(e.id, e.base) for e in all_holders(state)]
