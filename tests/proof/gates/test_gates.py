"""The model of gates keeps its guarantees in every interleaving; the explorer detects each bug."""

import random
from collections.abc import Callable
from fractions import Fraction

import pytest

from tests.proof.gates.configurations import CONFIGURATIONS
from tests.proof.gates.defects import DEFECTS, Defect
from tests.proof.gates.definitions import GRANTED, Action, Pool, Resource, System
from tests.proof.gates.explorer import Configuration, explore
from tests.proof.gates.model import Gates


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


@pytest.mark.parametrize("seed", range(6))
def test_tags_of_first_executions_order_a_gate_like_tags_assigned_on_arrival(seed: int) -> None:
    """The reference assigns tags as the paper does: on arrival, to each execution."""
    draw, units, weights = random.Random(seed), {"a": 3, "b": 1, "c": 2}, {"a": 1, "b": 2, "c": 3}
    system = System(
        actions=tuple(Action(name=name, uses={"cad": n}) for name, n in units.items()),
        resources=(Resource(name="cad", capacity=4, order="fair", weights=weights),),
        pools=(Pool(order="arrival"),),
    )
    gates = Gates(system)
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
        passed = [p.ticket for p in step.passages if p.gate == system.number["cad"]]
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
