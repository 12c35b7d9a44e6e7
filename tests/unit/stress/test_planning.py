"""The planning of a run: scenarios, requests and faults are pure functions of configuration and seed."""

from itertools import pairwise

import numpy as np
import pytest

from tests.unit.stress.test_config import read
from turnstile.common.broker.topology import EXECUTOR_REQUESTS
from turnstile.stress.config import Preset, RunConfig
from turnstile.stress.drive.driver import plan_orders
from turnstile.stress.local.faults import PURGED
from turnstile.stress.local.schedule import RECOVERABLE, plan_faults, recovery_plan, seconds_for
from turnstile.stress.presets import scenarios_of
from turnstile.stress.scenario import DurationMix, FaultKind, Load, PlannedFault

_CONFIG = read()


def changed(**update: object) -> RunConfig:
    return _CONFIG.model_copy(update=update)


def test_the_default_run_is_the_configured_load_and_all_metrics() -> None:
    scenarios = scenarios_of(_CONFIG)
    assert scenarios[0].load.executions == 20_000
    assert str(scenarios[0].load.mix) == "70% 0s, 25% 20ms, 5% 500ms"
    limits = {scenario.name: scenario.limit for scenario in scenarios}
    assert (limits["no-op-limited"], limits["no-op-unlimited"], limits["hand-over"]) == (4, None, 1)
    assert {"depth-10000", "keys-1000", "recovery"} <= limits.keys()
    assert {fault.kind for scenario in scenarios for fault in scenario.faults} == {
        FaultKind.KILL_WORKER,
        FaultKind.KILL_EXECUTOR,
    }


@pytest.mark.parametrize("seconds", [5.0, 60.0])
def test_the_load_with_gates_has_every_kind_of_gate_and_changes_all_of_them(seconds: float) -> None:
    (scenario,) = scenarios_of(changed(preset=Preset.GATES, duration_seconds=seconds))
    gates, load = scenario.gates, scenario.load
    assert gates is not None
    assert (load.actions, len(gates.resources), load.actions * load.keys) == (30, 5, 210)
    assert set(load.priorities) == {1, 2, 3, 4, 5}
    for field in ("units", "weight"):
        assert {use[field] for fields in gates.actions for use in fields["uses"]} == {1, 2, 3, 4, 5}
    for field in ("max_concurrent_total", "rate"):
        assert any(fields[field] for fields in gates.actions)
        assert not all(fields[field] for fields in gates.actions)
    assert {fields["order"] for fields in gates.actions} == {"arrival", "fair"}
    only_limited = [f for f in gates.actions if not (f["uses"] or f["rate"] or f["max_concurrent_total"])]
    assert [fields["max_concurrent"] for fields in only_limited] == [3] * 5
    assert all(key.path.split("/keys/")[1].isdigit() for key in gates.keys)
    changed_fields = {field_of(change.path, name) for change in gates.changes for name in change.fields}
    assert changed_fields >= {
        *(f"resources {name}" for name in ("capacity", "paused", "rate", "rank")),
        *(f"actions {name}" for name in ("max_concurrent_total", "rate", "paused", "uses")),
        *(f"keys {name}" for name in ("max_concurrent", "weight")),
        "pools weights",
    }
    changed_in_uses = {
        field
        for change in gates.changes
        for number, own in enumerate(gates.actions)
        if change.path == f"actions/stress.{number:02}" and "uses" in change.fields
        for use, before in zip(change.fields["uses"], own["uses"], strict=True)
        for field in use
        if use[field] != before[field]
    }
    assert changed_in_uses == {"units", "weight"}
    times = [change.at_seconds for change in gates.changes]
    assert times == sorted(times)
    assert 0 < times[0] <= times[-1] < seconds


def field_of(path: str, name: str) -> str:
    return f"{'keys' if '/keys/' in path else path.partition('/')[0]} {name}"


@pytest.mark.parametrize("seed", range(5))
def test_changes_of_gates_refuse_no_request_and_no_definition(seed: int) -> None:
    """No resource gets smaller than what an action takes of it, and no two that it uses get one rank."""
    (scenario,) = scenarios_of(changed(preset=Preset.GATES, seed=seed))
    assert scenario.gates is not None
    resources = {name: dict(fields) for name, fields in scenario.gates.resources.items()}
    for change in scenario.gates.changes:
        kind, name = change.path.split("/")[:2]
        if kind == "resources":
            resources[name] |= change.fields
        ranks = [fields["rank"] for fields in resources.values() if "rank" in fields]
        assert len(set(ranks)) == len(ranks)
    units = [
        use["units"]
        for fields in (*scenario.gates.actions, *(change.fields for change in scenario.gates.changes))
        for use in fields.get("uses", ())
    ]
    capacities = [change.fields.get("capacity") for change in scenario.gates.changes]
    assert max(units) <= min(capacity for capacity in capacities if capacity is not None)


def test_changes_of_gates_restore_what_was_there() -> None:
    (scenario,) = scenarios_of(changed(preset=Preset.GATES))
    assert scenario.gates is not None
    before = {f"resources/{name}": fields for name, fields in scenario.gates.resources.items()}
    before |= {f"actions/stress.{n:02}": fields for n, fields in enumerate(scenario.gates.actions)}
    before |= {key.path: key.fields for key in scenario.gates.keys}
    before |= {"pools/stress": {"weights": {f"stress.{n:02}": 1 for n in range(scenario.load.actions)}}}
    after: dict[str, dict[str, object]] = {}
    for change in scenario.gates.changes:
        is_whole = "/keys/" in change.path
        after[change.path] = {**({} if is_whole else after.get(change.path, {})), **change.fields}
    for path, fields in after.items():
        assert {**fields, "paused": False} == {**before[path], "paused": False}


def test_the_load_follows_the_configuration() -> None:
    mix = DurationMix.always(0.01)
    first = scenarios_of(changed(executions=50, mix=mix, keys=3, submitters=2, limit=2, actions=5))[0]
    load = first.load
    assert (load.executions, load.mix, load.keys, load.submitters, load.actions) == (50, mix, 3, 2, 5)
    assert first.limit == 2


@pytest.mark.parametrize("preset", [None, *Preset])
def test_scenario_names_are_unique_and_can_name_a_folder(preset: Preset | None) -> None:
    names = [scenario.name for scenario in scenarios_of(changed(preset=preset))]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() and name.islower() for name in names)


@pytest.mark.parametrize("preset", [None, *(preset for preset in Preset if preset is not Preset.RECOVERY)])
def test_no_faults_are_planned_for_an_external_installation(preset: Preset | None) -> None:
    assert not any(scenario.faults for scenario in scenarios_of(changed(preset=preset, local=False)))


@pytest.mark.parametrize("preset", [None, *Preset])
def test_faults_happen_during_the_load(preset: Preset | None) -> None:
    config = changed(preset=preset)
    if preset in (None, Preset.SOAK):
        config = config.model_copy(update={"faults": tuple(FaultKind)})
    for scenario in scenarios_of(config):
        if scenario.faults:
            assert scenario.load.rate is not None
            seconds = scenario.load.executions / scenario.load.rate
            assert all(fault.at_seconds + fault.lasting_seconds < seconds for fault in scenario.faults)


def test_a_load_under_faults_leaves_capacity_for_the_backlog() -> None:
    for preset in (None, Preset.RECOVERY):
        for scenario in scenarios_of(changed(preset=preset)):
            if scenario.faults and scenario.limit is not None:
                assert scenario.load.rate is not None
                busy = scenario.load.rate * scenario.load.mix.mean_seconds
                assert busy <= 0.51 * scenario.limit * scenario.load.queues


def test_the_same_seed_gives_the_same_run() -> None:
    config = changed(faults=tuple(FaultKind))
    assert scenarios_of(config) == scenarios_of(config)
    assert scenarios_of(config) != scenarios_of(config.model_copy(update={"seed": 8}))
    assert np.array_equal(plan_orders(load(), 7, "load"), plan_orders(load(), 7, "load"))


MIX = DurationMix.parse("70% 0ms, 25% 20ms, 5% 500ms")


def load(executions: int = 1_000, *, actions: int = 10, keys: int = 0, submitters: int = 4) -> Load:
    return Load(executions=executions, mix=MIX, actions=actions, keys=keys, submitters=submitters)


@pytest.mark.parametrize(("seed", "name"), [(8, "load"), (7, "other")])
def test_another_seed_or_scenario_gives_another_load(seed: int, name: str) -> None:
    one, other = plan_orders(load(), 7, "load"), plan_orders(load(), seed, name)
    for column in ("queue", "duration_us"):
        assert not np.array_equal(one[column], other[column])


@pytest.mark.parametrize(
    ("executions", "expected"),
    [(1_000, [700, 250, 50]), (10, [7, 3, 0]), (3, [2, 1, 0]), (1, [1, 0, 0]), (0, [0, 0, 0])],
)
def test_shares_are_exact_up_to_rounding(executions: int, expected: list[int]) -> None:
    durations = plan_orders(load(executions), 7, "load")["duration_us"]
    assert [int((durations == us).sum()) for us in (0, 20_000, 500_000)] == expected


def test_each_queue_and_each_submitter_gets_its_share_of_executions_and_of_durations() -> None:
    orders = plan_orders(load(10_003, actions=3, keys=2, submitters=4), 7, "load")
    short = orders["duration_us"] == 0
    for column, count in (("queue", 6), ("submitter", 4)):
        shares = np.bincount(orders[column], minlength=count)
        assert len(shares) == count
        assert max(shares) - min(shares) <= 1
        own = [short[orders[column] == number].mean() for number in range(count)]
        assert all(0.65 < share < 0.75 for share in own), (column, own)


def test_a_duration_above_the_maximum_is_rejected() -> None:
    with pytest.raises(ValueError, match="minutes at most"):
        plan_orders(Load(executions=1, mix=DurationMix.parse("100% 1h")), 7, "load")


LEASE_SECONDS = 6.0
SEEDS = range(1, 11)


def plan(
    seed: int, *, seconds: float = 3600.0, kinds: tuple[FaultKind, ...] = tuple(FaultKind)
) -> tuple[PlannedFault, ...]:
    return plan_faults(
        seed, seconds=seconds, executors=2, workers=3, kinds=kinds, lease_seconds=LEASE_SECONDS, actions=5
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_every_kind_occurs_and_is_recovered_from_before_the_next_one(seed: int) -> None:
    faults, size = plan(seed), len(FaultKind)
    assert len(faults) > 2 * size
    for start in range(0, len(faults) - size + 1, size):
        assert {fault.kind for fault in faults[start : start + size]} == set(FaultKind)
    for before, after in pairwise(faults):
        least = LEASE_SECONDS if before.kind in (FaultKind.KILL_WORKER, FaultKind.PAUSE_WORKER) else 3.0
        assert after.at_seconds >= before.at_seconds + before.lasting_seconds + least
    for kinds in (tuple(FaultKind), (FaultKind.PURGE_QUEUES,), (FaultKind.KILL_WORKER,)):
        seconds = seconds_for(kinds, lease_seconds=LEASE_SECONDS)
        assert {fault.kind for fault in plan(seed, seconds=seconds, kinds=kinds)} == set(kinds)


def test_every_target_is_hit_at_some_time() -> None:
    targets: dict[FaultKind, set[int]] = {kind: set() for kind in FaultKind}
    for fault in plan(7, seconds=36_000.0):
        targets[fault.kind].add(fault.target)
        assert (fault.limit is not None) == (fault.kind is FaultKind.CHANGE_LIMIT)
    assert targets[FaultKind.KILL_WORKER] == targets[FaultKind.PAUSE_WORKER] == {0, 1, 2}
    assert targets[FaultKind.KILL_EXECUTOR] == targets[FaultKind.PAUSE_EXECUTOR] == {0, 1}
    assert targets[FaultKind.CHANGE_LIMIT] == {0, 1, 2, 3, 4}
    assert targets[FaultKind.RESTART_BROKER] == {0}


def test_a_recovery_plan_has_one_fault_of_each_kind_far_enough_apart() -> None:
    faults = recovery_plan(LEASE_SECONDS)
    assert [fault.kind for fault in faults] == list(RECOVERABLE)
    for before, after in pairwise(faults):
        apart = after.at_seconds - before.at_seconds
        if before.kind in (FaultKind.KILL_WORKER, FaultKind.PAUSE_WORKER):
            assert apart >= 2 * LEASE_SECONDS
        assert apart > before.lasting_seconds


def test_requests_are_never_purged() -> None:
    assert EXECUTOR_REQUESTS not in PURGED
