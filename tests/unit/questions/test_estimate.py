"""When an execution will start: what the interval promises on steady loads, and how wide it may be (P10).

The scheduler itself runs simulated loads: what it says at some moment, and what came after it.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import pytest

from turnstile.common.domain.states import Status
from turnstile.executor.questions.estimate import Durations, Interval, estimated_start
from turnstile.executor.questions.explain import Holder, RootCause, WaitingOn, explain
from turnstile.executor.queue_manager.decide import decide
from turnstile.executor.queue_manager.definitions import Action, Rate, Resource, Use
from turnstile.executor.queue_manager.inputs import (
    Admit,
    DefineAction,
    DefineResource,
    Ended,
    Input,
    WorkerChanged,
)
from turnstile.executor.queue_manager.state import State

Draw = Callable[[random.Random], float]

LOADS: dict[str, Draw] = {
    "always alike": lambda dice: 10.0,
    "spread": lambda dice: dice.uniform(5, 15),
    "memoryless": lambda dice: dice.expovariate(1 / 10),
    "skewed": lambda dice: dice.lognormvariate(1, 1),
    "of two kinds": lambda dice: 1.0 if dice.random() < 0.8 else 30.0,
    "short": lambda dice: dice.uniform(0.05, 0.15),
}


class Observation(NamedTuple):
    """The estimate at one moment, in seconds from then, and the start that came."""

    earliest: float
    latest: float
    came: float

    @property
    def holds(self) -> bool:
        return self.earliest - 0.001 <= self.came <= self.latest

    @property
    def width(self) -> float:
        return self.latest - self.earliest


class Load:
    """A scheduler whose only action has more to do than it can, with durations drawn at random."""

    def __init__(self, draw: Draw, *gates: Input, seed: int, limit: int | None, slots: int = 1000) -> None:
        self.draw, self.dice = draw, random.Random(f"{seed} {limit}")
        self.state, self.durations, self.now = State(), Durations(), 0.0
        self.ends: dict[int, float] = {}
        self.started: dict[int, float] = {}
        worker = WorkerChanged(worker_id="w", pools=frozenset(["default"]), concurrency=slots)
        uses = tuple(Use(resource=gate.resource.name) for gate in gates if isinstance(gate, DefineResource))
        action = Action(ref="a", max_concurrent=limit, uses=uses)
        self.turn(*gates, DefineAction(action=action), worker, *[Admit(action_ref="a")] * 700)

    def turn(self, *inputs: Input) -> None:
        out = decide(self.state, inputs, self.now)
        self.durations.learn(out)
        for granted in out.granted:
            self.started[granted.id] = self.now
            self.ends[granted.id] = self.now + self.draw(self.dice)

    def end_next(self) -> None:
        """Let those end whose time comes next."""
        self.now = min(self.ends.values())
        inputs = []
        for execution_id in [each for each, at in self.ends.items() if at == self.now]:
            del self.ends[execution_id]
            grant = self.state.executions[execution_id].grant
            assert grant is not None
            inputs.append(Ended(execution_id=execution_id, grant=grant, status=Status.COMPLETED))
        self.turn(*inputs)

    def observe(self, position: int, *, ends: int) -> Observation:
        """Let some end, estimate at a moment before the next end, and see when the position starts."""
        while len(self.started) < ends:
            self.end_next()
        now = self.dice.uniform(self.now, min(self.ends.values()))
        execution_id = max(self.started) + position
        found = explain(self.state, execution_id, "a")
        assert found is not None
        assert found.waiting_on is not None
        interval = estimated_start(found.waiting_on, "a", self.durations, now)
        assert interval is not None
        while execution_id not in self.started:
            self.end_next()
        return Observation(interval.earliest - now, interval.latest - now, self.started[execution_id] - now)


def observe(load: str, *, limit: int, position: int, seed: int) -> Observation:
    return Load(LOADS[load], seed=seed, limit=limit).observe(position, ends=100 + 6 * limit)


LIMITS, POSITIONS, SEEDS = (1, 4, 30), (1, 3, 20, 100), 3


@pytest.mark.parametrize("load", LOADS)
def test_on_a_steady_load_eight_of_ten_starts_are_in_the_interval(load: str) -> None:
    every = [
        observe(load, limit=limit, position=position, seed=seed)
        for position in POSITIONS
        for limit in LIMITS
        for seed in range(SEEDS)
    ]
    assert sum(each.holds for each in every) >= 0.8 * len(every)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("limit", [1, 16])
def test_on_a_steady_load_the_interval_is_not_wider_than_the_wait(load: str, limit: int) -> None:
    near = [observe(load, limit=limit, position=40, seed=seed) for seed in range(5)]
    assert median((each.width - 1) / each.came for each in near) < 2
    far = [observe(load, limit=limit, position=400, seed=seed) for seed in range(5)]
    assert median((each.width - 1) / each.came for each in far) < 1


@pytest.mark.parametrize("gate", ["pool", "resource"])
def test_at_a_pool_and_at_a_resource_the_start_follows_from_the_holders_and_the_position(gate: str) -> None:
    cad = [DefineResource(resource=Resource(name="cad", capacity=4))] if gate == "resource" else []
    every = [
        Load(LOADS["spread"], *cad, seed=seed, limit=None, slots=1000 if cad else 4).observe(
            position, ends=90
        )
        for position in (1, 5, 60)
        for seed in range(5)
    ]
    assert sum(each.holds for each in every) >= 0.8 * len(every)


def learned(**durations: list[float]) -> Durations:
    """Return what is known after runs of these lengths."""
    known = Durations()
    for ref, lengths in durations.items():
        state = State()
        worker = WorkerChanged(worker_id="w", pools=frozenset(["default"]), concurrency=len(lengths))
        decide(state, [DefineAction(action=Action(ref=ref)), worker], 0.0)
        granted = decide(state, [Admit(action_ref=ref)] * len(lengths), 0.0).granted
        for length, each in sorted(zip(lengths, granted, strict=True)):
            ended = Ended(execution_id=each.id, grant=each.grant, status=Status.COMPLETED)
            known.learn(decide(state, [ended], length))
    return known


def holders(*ages: float, now: float) -> tuple[Holder, ...]:
    return tuple(Holder(number, "a", 1, "w", now - age) for number, age in enumerate(ages, 1))


def on_limit(limit: int, *ages: float, position: int = 1) -> WaitingOn:
    held = holders(*ages, now=100.0)
    return WaitingOn(reason="limit", capacity=limit, held=len(held), position=position, holders=held)


def estimated(on: WaitingOn, known: Durations) -> Interval:
    found = estimated_start(on, "a", known, 100.0)
    assert found is not None
    return found


@pytest.mark.parametrize("limit", [1, 5, 300])
def test_a_later_position_never_starts_earlier(limit: int) -> None:
    known = learned(a=[1.0, 3.0, 8.0, 40.0])
    before = Interval(0.0, 0.0)
    for position in [1, 2, 5, 64, 127, 128, 129, 130, 1000, 10**6]:
        found = estimated(on_limit(limit, *[4.0] * min(limit, 100), position=position), known)
        assert found.earliest >= before.earliest
        assert found.latest >= before.latest
        assert found.latest >= found.earliest
        before = found


def test_a_changed_limit_changes_the_pace_at_once() -> None:
    known = learned(a=[9.0, 10.0, 11.0] * 20)
    two, four = (estimated(on_limit(limit, *[5.0] * limit, position=200), known) for limit in (2, 4))
    assert two.earliest - 100 > 1.7 * (four.earliest - 100)
    assert two.latest - 100 > 1.7 * (four.latest - 100)


def test_slots_above_a_lowered_limit_are_not_granted_again() -> None:
    found = estimated(on_limit(2, 4.0, 3.0, 2.0, 1.0), learned(a=[10.0] * 60))
    # Two of four must end before one may start: the third end frees its slot, at 8 s from now.
    assert 105 < found.earliest <= 108 <= found.latest < 113


def test_a_run_longer_than_all_others_has_an_estimate() -> None:
    found = estimated(on_limit(1, 90.0), learned(a=[10.0] * 10))
    assert 100 <= found.earliest < found.latest


def test_an_estimate_says_that_its_time_has_passed() -> None:
    known = learned(a=[10.0] * 10)
    assert not estimated(on_limit(2, 90.0, 5.0), known).is_overdue
    assert estimated(on_limit(2, 90.0, 50.0), known).is_overdue
    # What was granted 45 s ago should have started then, and not always in one second from now.
    assert estimated(WaitingOn(reason="handing_over", at=55.0), known) == Interval(55.0, 56.0)


def test_without_a_finished_run_or_behind_what_is_closed_there_is_no_basis() -> None:
    known = learned(a=[10.0] * 10)
    handed = WaitingOn(reason="handing_over", at=100.0)
    not_due = WaitingOn(reason="not_due", at=200.0, root_cause=RootCause((), handed))
    for on in [on_limit(1, 5.0), handed, not_due]:
        assert estimated_start(on, "a", Durations(), 100.0) is None
    assert estimated(handed, known) == Interval(100.0, 101.0)
    for on in [
        WaitingOn(reason="paused"),
        WaitingOn(reason="no_worker"),
        WaitingOn(reason="resource", closed="paused", position=1),
        on_limit(0, 5.0),
        replace(on_limit(2, 5.0), root_cause=RootCause((), WaitingOn(reason="no_worker"))),
    ]:
        assert estimated_start(on, "a", known, 100.0) is None


def test_at_a_rate_the_start_is_that_of_the_position() -> None:
    state = State()
    worker = WorkerChanged(worker_id="w", pools=frozenset(["default"]), concurrency=100)
    action = Action(ref="a", rate=Rate(starts=2, per_seconds=60))
    out = decide(state, [DefineAction(action=action), worker, *[Admit(action_ref="a")] * 8], 1000.0)
    starts = {each.id: 1000.0 for each in out.granted}
    expected = {}
    for each in (3, 4, 5, 8):
        found = explain(state, each, "a")
        assert found is not None
        assert found.waiting_on is not None
        expected[each] = estimated_start(found.waiting_on, "a", Durations(), 1000.0)
    for at in (1060.0, 1120.0, 1180.0):
        starts |= {each.id: at for each in decide(state, [], at).granted}
    for each, interval in expected.items():
        assert interval is not None
        assert interval.earliest <= starts[each] <= interval.latest


def test_what_is_not_due_starts_no_earlier() -> None:
    known = learned(a=[10.0] * 20)
    state = State()
    worker = WorkerChanged(worker_id="w", pools=frozenset(["default"]), concurrency=100)
    defined = DefineAction(action=Action(ref="a", max_concurrent=1))
    decide(state, [defined, worker, *[Admit(action_ref="a")] * 2], 100.0)
    (delayed,) = decide(state, [Admit(action_ref="a", run_at=500.0)], 100.0).admitted
    found = explain(state, delayed.id, "a")
    assert found is not None
    assert found.waiting_on is not None
    interval = estimated(found.waiting_on, known)
    assert interval.earliest == 500
    assert 505 < interval.latest < 520


def test_only_the_latest_durations_are_remembered() -> None:
    known = learned(a=[1.0] * 100 + [2.0] * 128)
    assert known.of("a") == [2.0] * 128
    known.forget("a")
    assert known.of("a") == []
