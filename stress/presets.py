"""Turns the configuration of a run into its scenarios: a pure function, with one function per preset."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, assert_never

from turnstile.stress.config import Preset, RunConfig
from turnstile.stress.gate_plan import plan_gates
from turnstile.stress.local.schedule import plan_faults, recovery_plan, seconds_for
from turnstile.stress.scenario import DurationMix, FaultKind, Load, PlannedFault, Scenario

EXECUTIONS: Final = 20_000
MIX: Final = DurationMix.parse("70% 0ms, 25% 20ms, 5% 500ms")
_NO_OP: Final = DurationMix.always(0.0)
_SHORT_MIX: Final = DurationMix.parse("80% 0ms, 20% 10ms")
_GATES_MIX: Final = DurationMix.parse("50% 5ms, 40% 20ms, 10% 100ms")
_RECOVERY_MIX: Final = DurationMix.parse("50% 50ms, 40% 200ms, 10% 1s")
_RATE_MAX: Final = 100.0
"""Requests per second under faults: far below the capacity of two cores, so that only the fault shows."""
_SOAK_RATE: Final = 100.0
_SOAK_SECONDS: Final = 3600.0
_GATES_RATE: Final = 80.0
_GATES_SECONDS: Final = 60.0
_GATES_SMOKE_SECONDS: Final = 5.0
_GATED_ACTIONS: Final = 30
_KEYS_OF_EACH: Final = 7
_PRIORITIES: Final = (3, 3, 1, 3, 4, 3, 2, 3, 5, 3)
_KILLS: Final = (FaultKind.KILL_WORKER, FaultKind.KILL_EXECUTOR)


def scenarios_of(config: RunConfig) -> tuple[Scenario, ...]:
    """Return the scenarios of a run; without a preset, the load of the options and short measurements."""
    match config.preset:
        case None:
            scenarios = _default(config)
        case Preset.SMOKE:
            scenarios = _smoke(config)
        case Preset.RECOVERY:
            scenarios = iter([_recovery(config, recovery_plan(config.lease_seconds))])
        case Preset.SOAK:
            scenarios = iter([_soak(config)])
        case Preset.GATES:
            seconds = config.duration_seconds or _GATES_SECONDS
            scenarios = iter([_gates(config, _GATED_ACTIONS, seconds, config.rate or _GATES_RATE)])
        case _:
            assert_never(config.preset)
    return tuple(scenarios)


def _default(config: RunConfig) -> Iterator[Scenario]:
    yield _configured_load(config)
    yield from _measured(
        config,
        no_op=5_000,
        hand_overs=500,
        depths=(100, 1_000, 10_000),
        keys=(1, 10, 100, 1_000),
        keyed=3_000,
    )
    if config.local:
        yield _recovery(config, recovery_plan(config.lease_seconds, kinds=_KILLS))


def _smoke(config: RunConfig) -> Iterator[Scenario]:
    few = {"executions": config.executions or 1_000, "mix": config.mix or _SHORT_MIX}
    yield _configured_load(config.model_copy(update=few))
    yield from _measured(config, no_op=500, hand_overs=100, depths=(500,), keys=(50,), keyed=500)
    yield _gates(config, config.actions, _GATES_SMOKE_SECONDS, _GATES_RATE)
    if config.local:
        yield _recovery(config, recovery_plan(config.lease_seconds, kinds=_KILLS[:1]))


def _soak(config: RunConfig) -> Scenario:
    seconds = config.duration_seconds or _SOAK_SECONDS
    return Scenario(
        name="soak",
        title="A long steady load",
        load=_paced(_load_of(config, config.mix or MIX), seconds, config.rate or _SOAK_RATE),
        limit=config.limit,
        faults=_random_faults(config, seconds),
    )


def _gates(config: RunConfig, actions: int, seconds: float, rate: float) -> Scenario:
    """Return a load of actions with every kind of gate; each definition changes several times."""
    load = replace(_load_of(config, config.mix or _GATES_MIX), actions=actions, keys=_KEYS_OF_EACH)
    return Scenario(
        name="gates",
        title="Shared resources, totals, rates, fair shares, priorities",
        load=replace(_paced(load, seconds, rate), priorities=_PRIORITIES),
        limit=None,
        gates=plan_gates(config.seed, actions=load.actions, keys=load.keys, seconds=seconds),
    )


def _configured_load(config: RunConfig) -> Scenario:
    load = _load_of(config, config.mix or MIX)
    load = replace(load, executions=config.executions or EXECUTIONS, rate=config.rate)
    faults: tuple[PlannedFault, ...] = ()
    if config.faults:
        seconds = seconds_for(config.faults, lease_seconds=config.lease_seconds)
        faults = _random_faults(config, seconds)
        load = replace(load, rate=config.rate or load.executions / seconds)
    return Scenario(name="load", title="The load", load=load, limit=config.limit, faults=faults)


def _random_faults(config: RunConfig, seconds: float) -> tuple[PlannedFault, ...]:
    if not config.faults:
        return ()
    return plan_faults(
        config.seed,
        seconds=seconds,
        executors=config.executors,
        workers=config.workers,
        kinds=config.faults,
        lease_seconds=config.lease_seconds,
        actions=config.actions,
    )


def _measured(
    config: RunConfig,
    *,
    no_op: int,
    hand_overs: int,
    depths: Iterable[int],
    keys: Iterable[int],
    keyed: int,
) -> Iterator[Scenario]:
    """Yield no-op loads: with the limit and without, one at a time, in a long queue, and among many keys.

    Those of one queue wait until all of its executions do.
    """
    load = replace(_load_of(config, _NO_OP), keys=0, answered=False)
    for name, limit in (("limited", config.limit), ("unlimited", None)):
        if name == "unlimited" or limit is not None:
            title = f"No-op executions, {f'limit {limit}' if limit else 'no limit'}"
            wide = replace(load, executions=no_op)
            yield Scenario(name=f"no-op-{name}", title=title, load=wide, limit=limit)
    alone = replace(load, executions=hand_overs, actions=1, submitters=1)
    yield Scenario(name="hand-over", title="One at a time", load=alone, limit=1, all_wait_first=True)
    limit = config.limit or 4
    for depth in depths:
        title = f"{depth:,} waiting in one queue"
        deep = replace(load, executions=depth, actions=1)
        yield Scenario(name=f"depth-{depth}", title=title, load=deep, limit=limit, all_wait_first=True)
    for count in keys:
        # At least two executions of each key.
        many = replace(load, executions=max(keyed, 2 * count), actions=1, keys=count)
        yield Scenario(name=f"keys-{count}", title=f"{count:,} concurrency keys", load=many, limit=limit)


def _recovery(config: RunConfig, faults: tuple[PlannedFault, ...]) -> Scenario:
    """Return the scenario with faults under a load that leaves capacity to recover."""
    load = replace(_load_of(config, config.mix or _RECOVERY_MIX), keys=0)
    last_repair_seconds = max((fault.at_seconds + fault.lasting_seconds for fault in faults), default=0.0)
    seconds = last_repair_seconds + 2 * config.lease_seconds + 5.0
    return Scenario(
        name="recovery",
        title="Faults under a steady load",
        load=_paced(load, seconds, config.rate or _sustainable_rate(load, config.limit)),
        limit=config.limit,
        faults=faults,
    )


def _load_of(config: RunConfig, mix: DurationMix) -> Load:
    """Return the load of the options, of one execution."""
    return Load(executions=1, mix=mix, actions=config.actions, keys=config.keys, submitters=config.submitters)


def _paced(load: Load, seconds: float, rate: float) -> Load:
    """Return the load of this duration at this rate."""
    return replace(load, executions=round(seconds * rate), rate=rate)


def _sustainable_rate(load: Load, limit: int | None) -> float:
    """Return half of the capacity of the slots: a backlog from a fault drains after it."""
    if limit is None or load.mix.mean_seconds == 0:
        return _RATE_MAX
    return min(_RATE_MAX, limit * load.queues / load.mix.mean_seconds / 2)
