"""The replay of gates from stored histories: correct ones pass, and each falsified fact is named."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.proof.gates import configurations, defects
from tests.proof.gates.explorer import Configuration
from tests.proof.gates.model import Gates
from tests.proof.history.gate_runs import run
from turnstile.stress.check.definitions import (
    DefinitionChange,
    DefinitionHistory,
    Definitions,
    history_of,
    pauses,
)
from turnstile.stress.check.passages import GateHistory, Passer, Stay, violations
from turnstile.stress.recording import NEVER

SECOND: Final = 1_000_000_000
CAD: Final = "resource cad"


def totals(alive_max: int) -> Configuration:
    """Without pauses of single keys, which no installation has."""
    return replace(configurations.totals(alive_max), pausable=())


CONFIGURATIONS: Final[tuple[Callable[[int], Configuration], ...]] = (
    configurations.resources,
    configurations.crossed,
    totals,
    configurations.fair,
    configurations.urgent_share,
    configurations.rates,
    configurations.priorities,
)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_no_history_of_the_model_breaks_a_rule(configuration: Callable[[int], Configuration]) -> None:
    for seed in range(5):
        history = run(configuration(4), seed)
        assert sum(len(each.stays) for each in history.passers) > 50
        assert violations(history) == []


@pytest.mark.parametrize(
    ("model", "configuration", "rule"),
    [
        (defects.CountsExecutions, configurations.resources, "P11"),
        (defects.FitsIfAnyIsFree, configurations.resources, "P11"),
        (defects.FirstCapacity, totals, "P11"),
        (defects.IgnoresKeyLimit, totals, "P11"),
        (defects.SkipsTheHeavy, configurations.resources, "P12"),
        (defects.PriorityAtTheQueueOnly, configurations.priorities, "P12"),
        (defects.NoPriorityAtTheQueue, totals, "P12"),
        (defects.LastComesFirst, configurations.resources, "P12"),
        (defects.ShortWindow, configurations.rates, "P13"),
        (defects.CountsFirstRate, configurations.rates, "P13"),
        (defects.ReclaimRefunds, configurations.rates, "P13"),
        (defects.TagStays, configurations.fair, "P14"),
        (defects.VirtualTimeAhead, configurations.fair, "P14"),
        (defects.Unfair, configurations.fair, "P14"),
    ],
)
def test_histories_of_a_wrong_model_break_its_rule(
    model: type[Gates], configuration: Callable[[int], Configuration], rule: str
) -> None:
    found = {
        broken.rule for seed in range(10) for broken in violations(run(configuration(4), seed, model=model))
    }
    assert found == {rule}


# A correct history by hand. Instants are seconds; a resource with three units, in order of arrival.


def passer(execution_id: int, action: str, *stays: tuple[str, int, float, float], **fields: Any) -> Passer:
    """Return an execution; its last stay ends with the grant, one second before its end."""
    first, last = stays[0], stays[-1]
    known = {"key": None, "priority": 3, "attempt": 1, "completed_at": ns(last[3] + 1)}
    return Passer(
        execution_id=execution_id,
        action=action,
        created_at=ns(first[2]),
        stays=tuple(Stay(gate, units, ns(since), ns(until)) for gate, units, since, until in stays),
        **known | fields,
    )


def ns(seconds: float) -> int:
    return round(seconds * SECOND)


def at_cad(execution_id: int, action: str, arrived: float, passed: float, **fields: Any) -> Passer:
    """Return an execution that waits only for the resource."""
    units = {"heavy": 2, "light": 1}[action]
    return passer(
        execution_id, action, ("queue", 1, arrived, arrived), (CAD, units, arrived, passed), **fields
    )


def always(**fields: Any) -> DefinitionHistory:
    return history_of({"paused": False} | fields, ())


def uses(resource: str, units: int, weight: int = 1) -> list[dict[str, Any]]:
    return [{"resource": resource, "units": units, "weight": weight}]


def shared(*passers: Passer, cad: DefinitionHistory | None = None, settling_ns: int = 0) -> GateHistory:
    actions = {"heavy": always(uses=uses("cad", 2)), "light": always(uses=uses("cad", 1))}
    resources = {"cad": cad or always(capacity=3, order="arrival")}
    definitions = Definitions(actions=actions, resources=resources, settling_ns=settling_ns)
    return GateHistory(passers=passers, definitions=definitions)


HEAVY, WAITING, URGENT, LIGHT = (
    at_cad(1, "heavy", 1, 1, completed_at=ns(4)),
    at_cad(2, "heavy", 2, 4),
    at_cad(3, "light", 3, 4, priority=1),
    at_cad(4, "light", 3.5, 5),
)


def rules(*passers: Passer, **fields: Any) -> set[str]:
    return {broken.rule for broken in violations(shared(*passers, **fields))}


def test_a_correct_history_of_a_shared_resource_breaks_no_rule() -> None:
    assert violations(shared(HEAVY, WAITING, URGENT, LIGHT)) == []


def lowered(at: float, capacity: int) -> DefinitionHistory:
    change = DefinitionChange(ns(at), {"capacity": 3}, {"capacity": capacity})
    return history_of({"paused": False, "capacity": capacity, "order": "arrival"}, [change])


def paused(since: float, until: float) -> DefinitionHistory:
    changes = [
        DefinitionChange(ns(since), {"paused": False}, {"paused": True}),
        DefinitionChange(ns(until), {"paused": True}, {"paused": False}),
    ]
    return history_of({"paused": False, "capacity": 3, "order": "arrival"}, changes)


@pytest.mark.parametrize(
    ("passers", "cad"),
    [
        ((HEAVY._replace(completed_at=ns(4.5)), WAITING, URGENT, LIGHT), None),
        ((HEAVY._replace(completed_at=NEVER), WAITING, URGENT, LIGHT), None),
        ((HEAVY, WAITING, URGENT, LIGHT), lowered(3.9, 2)),
        (
            (
                HEAVY._replace(stays=(HEAVY.stays[0], HEAVY.stays[1]._replace(units=1))),
                WAITING,
                URGENT,
                LIGHT,
            ),
            None,
        ),
    ],
    ids=["ended later", "has not ended", "the capacity was lowered before", "fewer units"],
)
def test_units_beyond_the_capacity_are_found(
    passers: tuple[Passer, ...], cad: DefinitionHistory | None
) -> None:
    assert rules(*passers, cad=cad) == {"P11"}


@pytest.mark.parametrize(
    "passers",
    [
        (HEAVY, WAITING, URGENT, at_cad(4, "light", 3.5, 3.7, completed_at=ns(4))),
        (HEAVY, WAITING._replace(priority=4), URGENT, at_cad(4, "light", 1.5, 5)),
        (HEAVY, WAITING, at_cad(3, "light", 3, 6, priority=1), LIGHT),
    ],
    ids=["a light one passes a heavy one", "a less urgent one passes", "an urgent one waits"],
)
def test_a_passage_out_of_order_is_found(passers: tuple[Passer, ...]) -> None:
    assert rules(*passers) == {"P12"}


def test_an_execution_may_be_passed_while_its_route_is_closed() -> None:
    passers = HEAVY, WAITING, at_cad(4, "light", 3.5, 3.7)
    assert rules(*passers, cad=lowered(3.6, 1)) == {"P11"}
    assert "P12" not in rules(*passers, cad=paused(3.6, 3.8))
    assert "P12" in rules(*passers, cad=paused(3.8, 3.9))


def with_pool(history: GateHistory, *changes: DefinitionChange) -> GateHistory:
    """Put the actions into the pool `gpu`; these changes end with it being open."""
    actions = {
        ref: history_of({**each.versions[-1][1], "pool": "gpu"}, ())
        for ref, each in history.definitions.actions.items()
    }
    pools = {"gpu": pauses(history_of({"order": "fair", "paused": False, "weights": {}}, changes))}
    return replace(history, definitions=replace(history.definitions, actions=actions, pools=pools))


def paused_pool(since: float, until: float) -> tuple[DefinitionChange, ...]:
    return (
        DefinitionChange(ns(since), {"paused": False}, {"paused": True}),
        DefinitionChange(ns(until), {"paused": True}, {"paused": False}),
    )


def test_an_execution_may_be_passed_while_its_pool_is_paused() -> None:
    history = shared(HEAVY, WAITING, at_cad(4, "light", 3.5, 3.7))
    weights = DefinitionChange(ns(3.6), {"weights": {"heavy": 2}}, {"weights": {}})
    for changes, is_broken in (
        ((), True),
        (paused_pool(3.6, 3.8), False),
        (paused_pool(3.8, 3.9), True),
        ((weights,), True),
    ):
        found = {broken.rule for broken in violations(with_pool(history, *changes))}
        assert ("P12" in found) == is_broken, changes
    other = with_pool(history, *paused_pool(3.6, 3.8))
    pools = {"other": other.definitions.pools["gpu"]}
    elsewhere = replace(other, definitions=replace(other.definitions, pools=pools))
    assert "P12" in {broken.rule for broken in violations(elsewhere)}


def test_a_change_may_take_effect_some_time_after_it_is_recorded() -> None:
    passers = HEAVY, WAITING, URGENT, LIGHT
    assert rules(*passers, cad=lowered(3.9, 2), settling_ns=ns(0.05)) == {"P11"}
    assert rules(*passers, cad=lowered(3.9, 2), settling_ns=ns(0.2)) == set()


# Rates: two starts in ten seconds.


def started(execution_id: int, at: float, **fields: Any) -> Passer:
    stays = ("queue", 1, 1, 1), ("total", 1, 1, 1), ("rate", 1, 1, at)
    return passer(execution_id, "mail", *stays, **fields)


def limited(*passers: Passer, rate: DefinitionHistory | None = None) -> set[str]:
    mail = rate or always(**{"rate.starts": 2, "rate.per": 10})
    definitions = Definitions(actions={"mail": mail}, settling_ns=0)
    return {broken.rule for broken in violations(GateHistory(passers=passers, definitions=definitions))}


STARTS: Final = [started(number, at) for number, at in ((1, 1), (2, 4), (3, 11), (4, 14), (5, 21))]


def test_starts_that_span_the_period_break_no_rule() -> None:
    assert limited(*STARTS) == set()


@pytest.mark.parametrize(
    "passers",
    [
        (*STARTS[:2], started(3, 10.9), *STARTS[3:]),
        (*STARTS[:4], started(5, 20.9)),
        (*STARTS[:4], started(5, 21, granted_ats=(ns(16),))),
        (*STARTS, started(6, 21)),
    ],
    ids=["across an edge", "the last one early", "a retry counts too", "one too many at once"],
)
def test_a_start_too_early_is_found(passers: tuple[Passer, ...]) -> None:
    assert limited(*passers) == {"P13"}


def test_a_changed_rate_counts_from_its_change_on() -> None:
    new = {"rate.starts": 1, "rate.per": 10}
    rate = history_of(new, [DefinitionChange(ns(12), {"rate.starts": 2}, {"rate.starts": 1})])
    assert limited(*STARTS[:4], started(5, 24), rate=rate) == set()
    assert limited(*STARTS[:4], started(5, 23.9), rate=rate) == {"P13"}


# A fair resource with one unit: two actions wait from the beginning, one of them with double weight.


def in_turns(order: str, *, weight: int = 2, **unknown: Any) -> GateHistory:
    """Return a history in which the actions `a` and `b` pass in this order, one a second."""
    passers = []
    for number, action in enumerate(order):
        stays = ("queue", 1, 1, 1), (CAD, 1, 1, 2 + number)
        passers.append(passer(number + 1, action, *stays))
    passers += [Passer(**each) for each in unknown.values()]
    actions = {"a": always(uses=uses("cad", 1, weight)), "b": always(uses=uses("cad", 1))}
    resources = {"cad": always(capacity=1, order="fair")}
    return GateHistory(
        passers=passers, definitions=Definitions(actions=actions, resources=resources, settling_ns=0)
    )


def shares(order: str, **fields: Any) -> set[str]:
    return {broken.rule for broken in violations(in_turns(order, **fields))}


def test_turns_by_weight_break_no_rule() -> None:
    assert shares("abaabaabaaba") == set()
    assert shares("abababababab", weight=1) == set()


@pytest.mark.parametrize(
    ("order", "weight"), [("aaaabbba", 1), ("abbbbbbabaab", 2), ("abababababab", 2), ("aaaaaaabab", 2)]
)
def test_an_unfair_share_is_found(order: str, weight: int) -> None:
    assert shares(order, weight=weight) == {"P14"}


def test_a_flow_with_passages_that_are_not_stored_is_not_compared() -> None:
    hidden = {
        "execution_id": 99, "action": "b", "key": None, "priority": 3, "created_at": ns(1),
        "completed_at": ns(20), "attempt": 1,
    }  # fmt: skip
    assert shares("aaaabbba", weight=1, hidden=hidden) == set()
    assert shares("aaaabbba", weight=1, hidden=hidden | {"action": "other"}) == {"P14"}
