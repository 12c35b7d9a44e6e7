"""Turns the configuration of a run into its scenarios: a pure function, with one function per preset.

The gates of a load, and their changes, are a pure function of the seed: definitions of resources and actions
with 1 to 5 units, totals, rates and fair order. The last changes restore what was there.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, TypeAlias, assert_never

from turnstile.stress.config import Preset, RunConfig
from turnstile.stress.local.schedule import plan_faults, recovery_plan, seconds_for
from turnstile.stress.scenario import (
    DefinitionChange,
    DurationMix,
    FaultKind,
    Fields,
    Gates,
    Load,
    PlannedFault,
    Scenario,
)
from turnstile.stress.trace import POOL, action_ref

_NO_OP: Final = DurationMix.always(0.0)
_RATE_MAX: Final = 100.0
"""Requests per second under faults: far below the capacity of two cores, so that only the fault shows."""
_RECOVERY_MIX: Final = DurationMix.parse("50% 50ms, 40% 200ms, 10% 1s")
EXECUTIONS: Final = 20_000
MIX: Final = DurationMix.parse("70% 0ms, 25% 20ms, 5% 500ms")

_SHORT_MIX: Final = DurationMix.parse("80% 0ms, 20% 10ms")
_NO_OP_EXECUTIONS: Final = 5_000
_HAND_OVERS: Final = 500
_KEYED: Final = 3_000
_DEPTHS: Final = (100, 1_000, 10_000, 100_000, 1_000_000)
_KEY_COUNTS: Final = (1, 10, 100, 1_000, 10_000)
_SHORT_DEPTHS: Final = (100, 1_000, 10_000)
_SHORT_KEY_COUNTS: Final = (1, 10, 100, 1_000)
_SOAK_RATE: Final = 100.0
_SOAK_SECONDS: Final = 3600.0
_GATES_RATE: Final = 80.0
_GATES_SECONDS: Final = 60.0
_GATES_SMOKE_SECONDS: Final = 5.0
_GATES_MIX: Final = DurationMix.parse("50% 5ms, 40% 20ms, 10% 100ms")
_GATED_ACTIONS: Final = 30
_KEYS_OF_EACH: Final = 7
_PRIORITIES: Final = (3, 3, 1, 3, 4, 3, 2, 3, 5, 3)
_KILLS: Final = (FaultKind.KILL_WORKER, FaultKind.KILL_EXECUTOR)
_RESOURCES: Final[dict[str, Fields]] = {
    "stress-1": {"capacity": 8, "rank": 1, "order": "fair"},
    "stress-2": {"capacity": 10, "rank": 2},
    "stress-3": {"capacity": 8, "rank": 3, "order": "fair", "rate": {"starts": 30, "per": 1}},
    "stress-4": {"capacity": 12, "rank": 4, "order": "fair"},
    "stress-5": {"capacity": None, "rate": {"starts": 40, "per": 1}},
}
"""About twice what the default rate needs: executions wait after a change, and catch up."""
_UNITS_MAX: Final = 5
_WEIGHT_MAX: Final = 5
_LIMITED: Final = [name for name, fields in _RESOURCES.items() if fields["capacity"]]
_POOL_PATH: Final = f"pools/{POOL}"
_GATE_TOTAL: Final = 3
_GATE_RATE: Final = {"starts": 6, "per": 1}
_FIRST_CHANGE_SECONDS: Final = 1.0
_CHANGE_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.8
_LAST_SHARE: Final = 0.85
"""Share of the duration after which the limits and capacities have their first values again."""


def scenarios_of(config: RunConfig) -> tuple[Scenario, ...]:
    """Return the scenarios of a run.

    Without a preset: the load of the options, then a short scenario for each metric.
    """
    match config.preset:
        case None:
            scenarios = _default(config)
        case Preset.SMOKE:
            scenarios = _smoke(config)
        case Preset.LIMITS:
            scenarios = _limits(config)
        case Preset.FIFO:
            scenarios = _fifo(config)
        case Preset.KEYS:
            scenarios = _key_counts(config, _KEY_COUNTS, executions=config.executions or _KEYED)
        case Preset.DEPTH:
            deepest = config.executions or _DEPTHS[-1]
            scenarios = _depths(config, [each for each in _DEPTHS if each <= deepest] or _DEPTHS[:1])
        case Preset.RECOVERY:
            scenarios = iter([_recovery(config, recovery_plan(config.lease_seconds), limit=config.limit)])
        case Preset.SOAK:
            scenarios = iter([_soak(config)])
        case Preset.GATES:
            seconds = config.duration_seconds or _GATES_SECONDS
            rate = config.rate or _GATES_RATE
            scenarios = iter([_gates(config, actions=_GATED_ACTIONS, seconds=seconds, rate=rate)])
        case _:
            assert_never(config.preset)
    return tuple(scenarios)


def _default(config: RunConfig) -> Iterator[Scenario]:
    yield _configured_load(config)
    yield from _throughput(config, _NO_OP_EXECUTIONS)
    yield _hand_over(_HAND_OVERS)
    yield from _depths(config, _SHORT_DEPTHS)
    yield from _key_counts(config, _SHORT_KEY_COUNTS, executions=_KEYED)
    if config.local:
        yield _recovery(config, recovery_plan(config.lease_seconds, kinds=_KILLS), limit=config.limit)


def _smoke(config: RunConfig) -> Iterator[Scenario]:
    mix = config.mix or _SHORT_MIX
    changed = {"executions": config.executions or 1_000, "mix": mix}
    yield _configured_load(config.model_copy(update=changed))
    yield from _throughput(config, 500)
    yield _hand_over(100)
    yield from _depths(config, (500,))
    yield from _key_counts(config, (50,), executions=500)
    yield _gates(config, actions=config.actions, seconds=_GATES_SMOKE_SECONDS, rate=_GATES_RATE)
    if config.local:
        yield _recovery(config, recovery_plan(config.lease_seconds, kinds=_KILLS[:1]), limit=config.limit)


def _limits(config: RunConfig) -> Iterator[Scenario]:
    executions = config.executions or 4_000
    mix = config.mix or _SHORT_MIX
    for limit in (1, 2, 4, 16, None):
        load = _load_of(config, executions=executions, mix=mix)
        name = "no-limit" if limit is None else f"limit-{limit}"
        title = "No limit" if limit is None else f"Limit {limit}"
        yield Scenario(name=name, title=title, load=load, limit=limit)
    if config.local:
        seconds = 30.0
        faults = _random_faults(config, (FaultKind.CHANGE_LIMIT,), seconds)
        load = _paced(_load_of(config, executions=executions, mix=mix), seconds, 200.0)
        title = "Limits changed under load"
        yield Scenario(name="changed-limits", title=title, load=load, limit=4, faults=faults)


def _fifo(config: RunConfig) -> Iterator[Scenario]:
    executions = config.executions or 4_000
    mix = config.mix or _SHORT_MIX
    many = _load_of(config, executions=executions, mix=mix, submitters=max(config.submitters, 8))
    for name, title, load, limit in (
        ("one-by-one", "Limit 1, many submitters", many, 1),
        ("side-by-side", "Limit 4, many submitters", many, 4),
        ("keys", "Limit 1, five concurrency keys each", replace(many, keys=5), 1),
    ):
        yield Scenario(name=name, title=title, load=load, limit=limit)
    if config.local:
        kinds = (FaultKind.KILL_EXECUTOR, FaultKind.PAUSE_EXECUTOR, FaultKind.KILL_WORKER)
        plan = recovery_plan(config.lease_seconds, kinds=kinds)
        yield replace(
            _recovery(config, plan, limit=1), name="faults", title="Executors and workers are killed"
        )


def _soak(config: RunConfig) -> Scenario:
    load = _load_of(config, executions=1, mix=config.mix or MIX)
    seconds = config.duration_seconds or _SOAK_SECONDS
    return Scenario(
        name="soak",
        title="A long steady load",
        load=_paced(load, seconds, config.rate or _SOAK_RATE),
        limit=config.limit,
        faults=_random_faults(config, config.faults, seconds),
    )


def _gates(config: RunConfig, *, actions: int, seconds: float, rate: float) -> Scenario:
    """Return a load of actions with every kind of gate; each definition changes several times."""
    load = _load_of(config, executions=1, mix=config.mix or _GATES_MIX, actions=actions, keys=_KEYS_OF_EACH)
    return Scenario(
        name="gates",
        title="Shared resources, totals, rates, fair shares, priorities",
        load=replace(_paced(load, seconds, rate), priorities=_PRIORITIES),
        limit=None,
        gates=plan_gates(config.seed, actions=load.actions, keys=load.keys, seconds=seconds),
    )


def _configured_load(config: RunConfig) -> Scenario:
    load = _load_of(config, executions=config.executions or EXECUTIONS, mix=config.mix or MIX)
    load = replace(load, rate=config.rate)
    faults: tuple[PlannedFault, ...] = ()
    if config.faults:
        seconds = seconds_for(config.faults, lease_seconds=config.lease_seconds)
        faults = _random_faults(config, config.faults, seconds)
        load = replace(load, rate=config.rate or load.executions / seconds)
    return Scenario(name="load", title="The load", load=load, limit=config.limit, faults=faults)


def _random_faults(
    config: RunConfig, kinds: tuple[FaultKind, ...], seconds: float
) -> tuple[PlannedFault, ...]:
    if not kinds:
        return ()
    return plan_faults(
        config.seed,
        seconds=seconds,
        executors=config.executors,
        workers=config.workers,
        kinds=kinds,
        lease_seconds=config.lease_seconds,
        actions=config.actions,
    )


def _throughput(config: RunConfig, executions: int) -> Iterator[Scenario]:
    """Yield the same no-op load with the limit, and without one."""
    load = _load_of(config, executions=executions, mix=_NO_OP, keys=0, answered=False)
    limited = Scenario(
        name="no-op-limited",
        title=f"No-op executions, limit {config.limit}",
        load=load,
        limit=config.limit,
    )
    if config.limit is not None:
        yield limited
    yield replace(limited, name="no-op-unlimited", title="No-op executions, no limit", limit=None)


def _hand_over(executions: int) -> Scenario:
    """Return the scenario that measures hand-overs at limit 1."""
    load = Load(executions=executions, mix=_NO_OP, actions=1, submitters=1, answered=False)
    return Scenario(
        name="hand-over",
        title="One at a time",
        load=load,
        limit=1,
        all_wait_first=True,
    )


def _depths(config: RunConfig, depths: Iterable[int]) -> Iterator[Scenario]:
    """Yield a scenario for each length of one queue."""
    for depth in depths:
        yield Scenario(
            name=f"depth-{depth}",
            title=f"{depth:,} waiting in one queue",
            load=Load(executions=depth, mix=_NO_OP, actions=1, submitters=config.submitters, answered=False),
            limit=config.limit or 4,
            all_wait_first=True,
        )


def _key_counts(config: RunConfig, counts: Iterable[int], *, executions: int) -> Iterator[Scenario]:
    """Yield a scenario for each number of keys of one action, with at least two executions per key."""
    for count in counts:
        load = _load_of(
            config,
            executions=max(executions, 2 * count),
            mix=_NO_OP,
            actions=1,
            keys=count,
            answered=False,
        )
        yield Scenario(
            name=f"keys-{count}",
            title=f"{count:,} concurrency keys",
            load=load,
            limit=config.limit or 4,
        )


def _recovery(config: RunConfig, faults: tuple[PlannedFault, ...], *, limit: int | None) -> Scenario:
    """Return the scenario with faults under a load that leaves capacity to recover."""
    load = _load_of(config, executions=1, mix=config.mix or _RECOVERY_MIX, keys=0)
    last_repair_seconds = max((fault.at_seconds + fault.lasting_seconds for fault in faults), default=0.0)
    seconds = last_repair_seconds + 2 * config.lease_seconds + 5.0
    return Scenario(
        name="recovery",
        title="Faults under a steady load",
        load=_paced(load, seconds, config.rate or _sustainable_rate(load, limit)),
        limit=limit,
        faults=faults,
    )


def _load_of(
    config: RunConfig,
    *,
    executions: int,
    mix: DurationMix,
    actions: int | None = None,
    keys: int | None = None,
    submitters: int | None = None,
    answered: bool = True,
) -> Load:
    """Return the load of the options, with these overrides."""
    return Load(
        executions=executions,
        mix=mix,
        actions=actions or config.actions,
        keys=config.keys if keys is None else keys,
        submitters=submitters or config.submitters,
        answered=answered,
    )


def _paced(load: Load, seconds: float, rate: float) -> Load:
    """Return the load of this duration at this rate."""
    return replace(load, executions=round(seconds * rate), rate=rate)


def _sustainable_rate(load: Load, limit: int | None) -> float:
    """Return half of the capacity of the slots: a backlog from a fault drains after it."""
    if limit is None or load.mix.mean_seconds == 0:
        return _RATE_MAX
    return min(_RATE_MAX, limit * load.queues / load.mix.mean_seconds / 2)


def plan_gates(seed: int, *, actions: int, keys: int, seconds: float) -> Gates:
    """Return the gates of a load of this duration."""
    definitions = tuple(_action(number) for number in range(actions))
    own_keys = tuple(_keys(actions, keys))
    before = {f"resources/{name}": fields for name, fields in _RESOURCES.items()}
    before |= {f"actions/{action_ref(number)}": fields for number, fields in enumerate(definitions)}
    before |= {each.path: each.fields for each in own_keys}
    before |= {_POOL_PATH: {"weights": dict.fromkeys(map(action_ref, range(actions)), 1)}}
    changes = list(_changes(random.Random(f"{seed} gates"), actions, keys, _LAST_SHARE * seconds))
    changed = sorted({change.path for change in changes})
    restored = [
        DefinitionChange(at_seconds=_LAST_SHARE * seconds, path=path, fields={**before[path], **_open(path)})
        for path in changed
    ]
    return Gates(resources=_RESOURCES, actions=definitions, keys=own_keys, changes=tuple(changes + restored))


def _action(number: int) -> Fields:
    """Return the gates of an action: a sixth have a limit only, and wait for it and for a worker.

    The others use a resource, of all a third two of them; a third have totals, and a sixth rates.
    """
    names = list(_RESOURCES)
    first, second = names[number % len(names)], names[(number + 2) % len(names)]
    units = 1 + number // len(names) % _UNITS_MAX
    weight = 1 + 2 * (number // len(names)) % _WEIGHT_MAX
    uses = [{"resource": first, "units": units, "weight": weight}]
    if number % 6 == 5:
        uses = []
    elif number % 3 == 0:
        uses.append({"resource": second, "units": 1, "weight": 1})
    has_total = number % 3 == 1
    return {
        "max_concurrent": 1 + number % 3,
        "max_concurrent_total": _GATE_TOTAL if has_total else None,
        "order": "fair" if has_total else "arrival",
        "rate": _GATE_RATE if number % 6 == 2 else None,
        "uses": uses,
    }


def _keys(actions: int, keys: int) -> Iterator[DefinitionChange]:
    """Yield the settings of one key of each second action: a limit of its own, or a weight."""
    for number in range(0, actions, 2):
        settings: Fields = {"weight": 4} if number % 4 else {"max_concurrent": 4}
        yield DefinitionChange(at_seconds=0.0, path=_path_of_key(number, number % keys), fields=settings)


def _path_of_key(action: int, key: int) -> str:
    return f"actions/{action_ref(action)}/keys/{key}"


def _open(path: str) -> Fields:
    return {} if "/keys/" in path else {"paused": False}


def _changes(rng: random.Random, actions: int, keys: int, until: float) -> Iterator[DefinitionChange]:
    """Yield changes in the order of their times: one kind after the other, each of a random subject."""
    count = max(len(_CHANGING), round((until - _FIRST_CHANGE_SECONDS) / _CHANGE_SECONDS))
    step = (until - _FIRST_CHANGE_SECONDS) / count
    for index in range(count):
        at = round(_FIRST_CHANGE_SECONDS + index * step + rng.uniform(0.0, step / 4), 3)
        path, fields = _CHANGING[index % len(_CHANGING)](rng, actions, keys)
        yield DefinitionChange(at_seconds=at, path=path, fields=fields)
        if fields.get("paused"):
            at = round(at + min(_PAUSE_SECONDS, step / 2), 3)
            yield DefinitionChange(at_seconds=at, path=path, fields={"paused": False})


_Changed: TypeAlias = tuple[str, Fields]
"""The path of a definition, and its new fields."""


def _lowered(rng: random.Random, actions: int, keys: int) -> _Changed:
    name = rng.choice(_LIMITED)
    # Not below the units of an action: its requests would be refused.
    return f"resources/{name}", {"capacity": max(_RESOURCES[name]["capacity"] // 2, _UNITS_MAX)}


def _doubled(rng: random.Random, actions: int, keys: int) -> _Changed:
    name = rng.choice(_LIMITED)
    return f"resources/{name}", {"capacity": 2 * _RESOURCES[name]["capacity"]}


def _paused_resource(rng: random.Random, actions: int, keys: int) -> _Changed:
    return f"resources/{rng.choice(_LIMITED)}", {"paused": True}


def _reranked(rng: random.Random, actions: int, keys: int) -> _Changed:
    """Let the resource come after all others: its executions acquire in another order."""
    name = rng.choice(_LIMITED)
    return f"resources/{name}", {"rank": len(_RESOURCES) + _RESOURCES[name]["rank"]}


def _rate_of_resource(rng: random.Random, actions: int, keys: int) -> _Changed:
    rated = [name for name, fields in _RESOURCES.items() if "rate" in fields]
    return f"resources/{rng.choice(rated)}", {"rate": {"starts": rng.randint(20, 50), "per": 1}}


def _settings_of_key(rng: random.Random, actions: int, keys: int) -> _Changed:
    number = rng.choice(range(0, actions, 2))
    settings = {"max_concurrent": rng.randint(1, 4), "weight": rng.randint(1, _WEIGHT_MAX)}
    return _path_of_key(number, number % keys), settings


def _total(rng: random.Random, actions: int, keys: int) -> _Changed:
    ref = action_ref(rng.choice(range(1, actions, 3)))
    return f"actions/{ref}", {"max_concurrent_total": rng.choice([1, 2, 4, 5])}


def _rate_of_action(rng: random.Random, actions: int, keys: int) -> _Changed:
    rated = [number for number in range(actions) if _action(number)["rate"]] or [0]
    return f"actions/{action_ref(rng.choice(rated))}", {"rate": {"starts": rng.randint(4, 9), "per": 1}}


def _paused_action(rng: random.Random, actions: int, keys: int) -> _Changed:
    return f"actions/{action_ref(rng.randrange(actions))}", {"paused": True}


def _weight_of_use(rng: random.Random, actions: int, keys: int) -> _Changed:
    return _other_use(rng, actions, "weight", _WEIGHT_MAX)


def _units_of_use(rng: random.Random, actions: int, keys: int) -> _Changed:
    return _other_use(rng, actions, "units", _UNITS_MAX)


def _other_use(rng: random.Random, actions: int, field: str, most: int) -> _Changed:
    """Give an action another number in this field of its first resource."""
    number = rng.choice([number for number in range(actions) if _action(number)["uses"]])
    first, *rest = _action(number)["uses"]
    other = rng.choice([each for each in range(1, most + 1) if each != first[field]])
    return f"actions/{action_ref(number)}", {"uses": [{**first, field: other}, *rest]}


def _weights_in_pool(rng: random.Random, actions: int, keys: int) -> _Changed:
    weights = {action_ref(number): rng.randint(1, _WEIGHT_MAX) for number in range(actions)}
    return _POOL_PATH, {"weights": weights}


_CHANGING: Final = (
    _lowered,
    _doubled,
    _paused_resource,
    _settings_of_key,
    _rate_of_resource,
    _total,
    _weight_of_use,
    _paused_action,
    _weights_in_pool,
    _units_of_use,
    _rate_of_action,
    _reranked,
)
"""The kinds of changes, one after the other."""
