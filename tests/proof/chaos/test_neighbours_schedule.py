"""The neighbours and the steady load are pure functions of the seed, and leave nothing out."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.proof.chaos.neighbours.load import LIMITS, plan_load
from tests.proof.chaos.neighbours.neighbour import Access
from tests.proof.chaos.neighbours.process import Plan
from tests.proof.chaos.neighbours.schedule import VARIANTS, Disturbance, Kind, Shape, plan_disturbances

LONG = Shape(seconds=600.0)
SECONDS = 60.0
URL = "http://127.0.0.1:1/hook"


def ends_at(disturbance: Disturbance) -> float:
    return disturbance.at_seconds + disturbance.lasting_seconds


def test_the_same_seed_gives_the_same_neighbours() -> None:
    assert plan_disturbances(7, LONG) == plan_disturbances(7, LONG)
    assert plan_disturbances(7, LONG) != plan_disturbances(8, LONG)


def test_the_process_of_the_neighbours_reads_the_plan_that_was_written(tmp_path: Path) -> None:
    access = Access(
        seed=3, amqp_url="amqp://a", management_url="http://b", vhost="v", database_url="c", http_urls=["d"]
    )
    shape = Shape(seconds=60.0, kinds=(Kind.FULL_LINE, Kind.MANY_KEYS), at_once=2)
    plan = Plan(shape=shape, began_at=datetime.now(UTC), access=access)
    plan.write(tmp_path / "plan")
    read = Plan.read(tmp_path / "plan")
    assert read == plan
    assert read.disturbances == plan_disturbances(3, shape)


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_comes_before_any_comes_twice_and_every_variant_comes(seed: int) -> None:
    disturbances = sorted(plan_disturbances(seed, LONG), key=lambda d: d.number)
    assert {d.kind for d in disturbances[: len(Kind)]} == set(Kind)
    assert {(d.kind, d.variant) for d in disturbances} == {
        (kind, variant) for kind in Kind for variant in VARIANTS[kind]
    }


@pytest.mark.parametrize("seed", range(5))
def test_several_disturb_at_once_none_beside_one_of_its_kind_and_all_end_with_the_load(seed: int) -> None:
    disturbances = plan_disturbances(seed, LONG)
    most_at_once = 0
    for one in disturbances:
        beside = [d for d in disturbances if d.at_seconds <= one.at_seconds < ends_at(d) - 0.02]
        assert len({d.kind for d in beside}) == len(beside)
        most_at_once = max(most_at_once, len(beside))
    assert most_at_once == LONG.at_once
    assert max(map(ends_at, disturbances)) <= LONG.seconds + 0.02


@pytest.mark.parametrize("seed", range(3))
def test_the_steady_load_is_modest_and_uses_every_way_and_action(seed: int) -> None:
    steps = plan_load(seed, SECONDS, URL)
    assert steps == plan_load(seed, SECONDS, URL)
    assert 30 <= len(steps) / SECONDS <= 60
    refs = {step.body["action_ref"] for step in steps}
    assert refs == {ref for ref in LIMITS if ref.startswith("steady.")}
    assert {step.submitter.partition("-")[0] for step in steps} == {"amqp", "http"}
    assert any("callback_url" in step.body for step in steps)


@pytest.mark.parametrize("seed", range(3))
def test_hardly_one_of_the_steady_load_waits_for_another_ones_slot(seed: int) -> None:
    busy_seconds: dict[str, float] = {}
    for step in plan_load(seed, SECONDS, URL):
        name = f"{step.body['action_ref']} {step.body['parameters'].get('customer', '')}"
        limit = LIMITS[step.body["action_ref"]] or 10
        busy_seconds[name] = busy_seconds.get(name, 0.0) + step.body["parameters"]["seconds"] / limit
    assert max(busy_seconds.values()) < SECONDS / 20


def test_a_plan_begins_with_the_load_alone() -> None:
    first = min(plan_disturbances(1, LONG), key=lambda d: d.at_seconds)
    assert first.at_seconds >= 2
