"""The model of gates keeps its guarantees in every interleaving; the explorer detects each bug."""

import random
from collections.abc import Callable
from fractions import Fraction

import pytest

from tests.proof.gates.configurations import CONFIGURATIONS
from tests.proof.gates.defects import DEFECTS, Defect
from tests.proof.gates.definitions import GRANTED, Action, Pool, Rate, Resource, System, Worker
from tests.proof.gates.explorer import Configuration, explore
from tests.proof.gates.model import Gates, Step


@pytest.mark.parametrize(
    ("configuration", "alive_max"),
    [
        pytest.param(configuration, small, id=configuration.__name__)
        for configuration, small, _ in CONFIGURATIONS
    ],
)
def test_no_interleaving_breaks_a_guarantee(
    configuration: Callable[[int], Configuration], alive_max: int
) -> None:
    report = explore(configuration(alive_max))
    print(report)
    assert report.violation is None, "\n".join(map(str, [report.violation, *report.trace]))
    assert report.is_complete


@pytest.mark.parametrize("defect", [pytest.param(defect, id=defect.name) for defect in DEFECTS])
def test_the_explorer_detects_a_planted_bug(defect: Defect) -> None:
    report = explore(defect.configuration, defect.model(defect.configuration.system), states_max=50_000)
    assert report.violation is not None, f"{report.states} states look right"


def test_a_light_execution_never_overtakes_a_heavy_one() -> None:
    gates = _gates(
        Action(name="heavy", uses={"cad": 2}), Action(name="light", uses={"cad": 1}),
        resources=(Resource(name="cad", capacity=2),),
    )  # fmt: skip
    step = _admitted(gates, "light", "heavy", "light")
    assert _granted(step) == [1]
    assert gates.settle(step.state, 1).grants == (2,)


def test_an_execution_without_a_worker_holds_no_unit_of_a_shared_resource() -> None:
    gates = _gates(
        Action(name="a", uses={"cad": 1}), Action(name="b", uses={"cad": 1}),
        resources=(Resource(name="cad", capacity=1),),
        workers=(Worker(name="w", concurrency=2, actions=frozenset({"b"})),),
    )  # fmt: skip
    assert _admitted(gates, "a", "b").grants == (2,)


def test_two_keys_share_a_fair_total_by_their_weights() -> None:
    action = Action(name="a", keys=("7", "8"), total=1, order="fair", weights={"7": 2})
    gates = _gates(action)
    step = gates.admit(gates.initial(), "a", "7")
    for key in ("7", "7", "7", "7", "8", "8", "8"):
        step = gates.admit(step.state, "a", key)
    order = _granted(step)
    while step.state.executions and len(order) < 7:
        step = gates.settle(step.state, order[-1])
        order += step.grants
    assert ["8" if ticket > 5 else "7" for ticket in order] == ["7", "8", "7", "7", "8", "7", "7"]


@pytest.mark.parametrize("seed", range(20))
def test_tags_of_first_executions_order_a_gate_like_tags_assigned_on_arrival(seed: int) -> None:
    """The reference assigns tags as the paper does: on arrival, to each execution."""
    draw, units, weights = random.Random(seed), {"a": 3, "b": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}
    gates = _gates(
        *(Action(name=name, uses={"cad": n}) for name, n in units.items()),
        resources=(Resource(name="cad", capacity=4, order="fair", weights=weights),),
        pools=(Pool(order="arrival"),),
    )
    state, expected = gates.initial(), _TagsOnArrival(units, weights, capacity=4)
    for _ in range(300):
        granted = [e.ticket for e in state.executions if e.gate == GRANTED]
        if granted and draw.random() < 0.5:
            ticket = draw.choice(granted)
            step = gates.settle(state, ticket)
            expected.settle(ticket)
        else:
            action = draw.choice("abc")
            expected.arrive(state.next_ticket, action)
            step = gates.admit(state, action)
        state = step.state
        passed = [p.ticket for p in step.passages if p.gate == gates.system.number["cad"]]
        assert passed == expected.passed()


class _TagsOnArrival:
    """Start-time fair queueing at one gate of `capacity` units."""

    def __init__(self, units: dict[str, int], weights: dict[str, int], *, capacity: int) -> None:
        self.units, self.weights, self.free = units, weights, capacity
        self.virtual_time = Fraction()
        self.finish: dict[str, Fraction] = {}
        self.waiting: list[tuple[Fraction, int, str]] = []
        self.held: dict[int, int] = {}

    def arrive(self, ticket: int, flow: str) -> None:
        start = max(self.virtual_time, self.finish.get(flow, Fraction()))
        self.finish[flow] = start + Fraction(self.units[flow], self.weights[flow])
        self.waiting.append((start, ticket, flow))

    def settle(self, ticket: int) -> None:
        self.free += self.held.pop(ticket)

    def passed(self) -> list[int]:
        passed = []
        self.waiting.sort()
        while self.waiting and self.units[self.waiting[0][2]] <= self.free:
            self.virtual_time, ticket, flow = self.waiting.pop(0)
            self.held[ticket] = self.units[flow]
            self.free -= self.units[flow]
            passed.append(ticket)
        return passed


def test_a_rate_grants_at_the_first_instant_at_which_its_window_allows_it() -> None:
    gates = _gates(Action(name="a", rate=Rate(starts=2, per=5)))
    step = _admitted(gates, "a")
    instants = []
    for now in range(1, 12):
        step = gates.tick(step.state)
        if now == 3:
            for _ in range(4):
                step = gates.admit(step.state, "a")
                instants += [now] * len(step.grants)
        else:
            instants += [now] * len(step.grants)
    assert instants == [3, 5, 8, 10]


def test_a_neighbour_uses_the_worker_slots_that_a_rate_leaves() -> None:
    gates = _gates(
        Action(name="slow", rate=Rate(starts=1, per=100)), Action(name="other"),
        workers=(Worker(name="w", concurrency=3),),
    )  # fmt: skip
    step = _admitted(gates, "slow", "slow", "slow", "other")
    assert _granted(step) == [1, 4]


def test_a_worker_that_drains_takes_its_work_out_of_the_pool() -> None:
    gates = _gates(
        Action(name="a"), workers=(Worker(name="u", concurrency=2), Worker(name="v", concurrency=2))
    )
    step = _admitted(gates, "a", "a", "a", "a", "a")
    assert _granted(step) == [1, 2, 3, 4]
    assert gates.leave(step.state, "v", 3, 4).grants == ()
    assert gates.settle(gates.leave(step.state, "v", 3, 4).state, 1).grants == (5,)


def test_the_batch_of_settles_is_decided_once() -> None:
    gates = _gates(
        Action(name="heavy", uses={"cad": 2}), Action(name="light", uses={"cad": 1}),
        resources=(Resource(name="cad", capacity=2),), pools=(Pool(order="arrival"),),
    )  # fmt: skip
    step = _admitted(gates, "light", "light", "heavy", "light")
    assert gates.settle(step.state, 1, 2).grants == (3,)


def _gates(
    *actions: Action,
    resources: tuple[Resource, ...] = (),
    pools: tuple[Pool, ...] = (Pool(),),
    workers: tuple[Worker, ...] = (Worker(name="w", concurrency=100),),
) -> Gates:
    return Gates(System(actions=actions, resources=resources, pools=pools, workers=workers))


def _admitted(gates: Gates, *actions: str) -> Step:
    """Return the last step of these admissions."""
    first, *others = actions
    step = gates.admit(gates.initial(), first)
    for action in others:
        step = gates.admit(step.state, action)
    return step


def _granted(step: Step) -> list[int]:
    return [execution.ticket for execution in step.state.executions if execution.gate == GRANTED]
