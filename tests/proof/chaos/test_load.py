"""The load is a pure function of the seed, asks for everything there is, and can be done in the time."""

import pytest

from tests.proof.chaos.load import LIMITS, Cancel, Change, Submit, plan_load

SECONDS = 120.0


def submits(seed: int) -> list[Submit]:
    return [step for step in plan_load(seed, SECONDS) if isinstance(step, Submit)]


def test_the_same_seed_gives_the_same_load() -> None:
    assert plan_load(7, SECONDS) == plan_load(7, SECONDS)
    assert plan_load(7, SECONDS) != plan_load(8, SECONDS)


@pytest.mark.parametrize("seed", range(3))
def test_everything_that_can_be_asked_is_asked(seed: int) -> None:
    steps = plan_load(seed, SECONDS)
    bodies = [step.body for step in steps if isinstance(step, Submit)]
    assert {body["action_ref"] for body in bodies} == set(LIMITS)
    for field in ("ttl", "timeout", "idempotency_key"):
        assert any(field in body for body in bodies)
        assert not all(field in body for body in bodies)
    assert any(step.run_in_seconds for step in steps if isinstance(step, Submit))
    assert {step.by_key for step in steps if isinstance(step, Cancel)} == {True, False}
    changes = [step.fields for step in steps if isinstance(step, Change)]
    assert {"paused": True} in changes
    assert any("max_concurrent" in fields for fields in changes)


@pytest.mark.parametrize("seed", range(3))
def test_some_are_sent_twice_and_mean_the_same_both_times(seed: int) -> None:
    meant: dict[int, object] = {}
    for step in submits(seed):
        assert meant.setdefault(step.number, (step.message_id, step.body)) == (step.message_id, step.body)
    assert len(meant) < len(submits(seed))


@pytest.mark.parametrize("seed", range(3))
def test_each_line_is_busy_for_less_than_a_third_of_the_time(seed: int) -> None:
    busy_seconds: dict[str, float] = {}
    for step in submits(seed):
        name = f"{step.body['action_ref']} {step.body['parameters'].get('customer', '')}"
        run_seconds = min(step.body["parameters"]["seconds"], step.body.get("timeout", 60.0))
        limit = LIMITS[step.body["action_ref"]] or 10
        busy_seconds[name] = busy_seconds.get(name, 0.0) + run_seconds / limit
    assert max(busy_seconds.values()) < SECONDS / 3
