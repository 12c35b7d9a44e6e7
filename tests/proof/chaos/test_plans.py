"""Schedules and loads are pure functions of the seed, complete, and modest enough to drain."""

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.proof.chaos import load
from tests.proof.chaos.load import Cancel, Change, Submit
from tests.proof.chaos.neighbours import load as steady_load
from tests.proof.chaos.neighbours import schedule as neighbours
from tests.proof.chaos.neighbours.schedule import Disturbance, plan_disturbances
from tests.proof.chaos.schedule import Fault, Shape, parts_of, plan_faults

LONG = Shape(seconds=600.0)
LONG_BESIDE = neighbours.Shape(seconds=600.0)
SECONDS, STEADY_SECONDS = 120.0, 60.0
URL = "http://127.0.0.1:1/hook"


def over_at(planned: Fault | Disturbance) -> float:
    return planned.at_seconds + planned.lasting_seconds


def submits(seed: int) -> list[Submit]:
    return [step for step in load.plan_load(seed, SECONDS) if isinstance(step, Submit)]


def busiest_seconds(steps: Iterable[Submit], limits: dict[str, int | None]) -> float:
    """Return the work of the queue that has most of it, divided by its limit."""
    busy: Counter[str] = Counter()
    for step in steps:
        parameters = step.body["parameters"]
        run_seconds = min(parameters["seconds"], step.body.get("timeout", 60.0))
        limit = limits[step.body["action_ref"]] or 10
        busy[f"{step.body['action_ref']} {parameters.get('key', '')}"] += run_seconds / limit
    return max(busy.values())


def test_the_same_seed_gives_the_same_plans() -> None:
    assert plan_faults(7, LONG) == plan_faults(7, LONG) != plan_faults(8, LONG)
    assert load.plan_load(7, SECONDS) == load.plan_load(7, SECONDS) != load.plan_load(8, SECONDS)
    assert (
        plan_disturbances(7, LONG_BESIDE)
        == plan_disturbances(7, LONG_BESIDE)
        != plan_disturbances(8, LONG_BESIDE)
    )
    assert steady_load.plan_load(7, 60.0, URL) == steady_load.plan_load(7, 60.0, URL)


@pytest.mark.parametrize("seed", range(5))
def test_no_part_has_two_faults_at_once(seed: int) -> None:
    free_at: dict[str, float] = {}
    faults = plan_faults(seed, LONG)
    for fault in faults:
        for part in parts_of(fault.kind, fault.target):
            assert fault.at_seconds >= free_at.get(part, 0.0) - 0.01
            free_at[part] = over_at(fault)
    assert [fault.at_seconds for fault in faults] == sorted(fault.at_seconds for fault in faults)


@pytest.mark.parametrize("seed", range(3))
def test_the_load_uses_every_action_field_and_way(seed: int) -> None:
    steps = load.plan_load(seed, SECONDS)
    bodies = [step.body for step in steps if isinstance(step, Submit)]
    assert {body["action_ref"] for body in bodies} == set(load.LIMITS) | set(load.GATED)
    for field in ("ttl", "timeout", "idempotency_key"):
        assert any(field in body for body in bodies)
        assert not all(field in body for body in bodies)
    assert any(step.run_in_seconds for step in steps if isinstance(step, Submit))
    assert {step.by_key for step in steps if isinstance(step, Cancel)} == {True, False}
    changes = [step.fields for step in steps if isinstance(step, Change)]
    assert {"paused": True} in changes
    assert any("max_concurrent" in fields for fields in changes)
    assert {1, 5} <= {body.get("priority") for body in bodies}
    assert {step.path for step in steps if isinstance(step, Change)} >= set(load.CHANGED)
    assert {change.path for change in load.restored()} >= set(load.CHANGED)


def test_a_pool_is_paused_and_resumed_and_gets_other_weights_in_some_seed() -> None:
    changes = [
        step.fields
        for seed in range(5)
        for step in load.plan_load(seed, SECONDS)
        if isinstance(step, Change) and step.path == "pools/default"
    ]
    pauses = [fields["paused"] for fields in changes if "paused" in fields]
    assert pauses == [True, False] * (len(pauses) // 2)
    assert pauses
    assert any("weights" in fields for fields in changes)


def test_no_change_leaves_a_resource_too_small_for_an_action() -> None:
    versions = [
        (path, each) for path in load.GATES for each in (load.GATES[path], *load.CHANGED.get(path, ()))
    ]
    uses = [use for _, fields in versions for use in fields.get("uses", ()) if isinstance(use, dict)]
    for use in uses:
        path = f"resources/{use['resource']}"
        assert use["units"] <= min(
            each["capacity"] for of, each in versions if of == path and "capacity" in each
        )


@pytest.mark.parametrize("seed", range(3))
def test_each_queue_is_busy_for_less_than_a_third_of_the_time(seed: int) -> None:
    assert busiest_seconds(submits(seed), load.NUMBERS) < SECONDS / 3


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_comes_before_any_comes_twice_and_every_variant_comes(seed: int) -> None:
    disturbances = sorted(plan_disturbances(seed, LONG_BESIDE), key=lambda d: d.number)
    assert {d.kind for d in disturbances[: len(neighbours.Kind)]} == set(neighbours.Kind)
    assert {(d.kind, d.variant) for d in disturbances} == {
        (kind, variant) for kind in neighbours.Kind for variant in kind.variants
    }


@pytest.mark.parametrize("seed", range(3))
def test_the_steady_load_keeps_each_queue_idle_most_of_the_time(seed: int) -> None:
    steps = steady_load.plan_load(seed, STEADY_SECONDS, URL)
    assert busiest_seconds(steps, steady_load.NUMBERS) < STEADY_SECONDS / 20
