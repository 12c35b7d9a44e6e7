"""From what is asked to the stages of a run: a pure function.

In: an `Asked`. Out: `Stage`s in their order. Each preset is a function of its own; without one the load that
was asked for comes first, and a short stage for each of the five figures after it. Next: `run` does them.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, assert_never

from turnstile.stress.asked import Asked, Preset
from turnstile.stress.figure_stages import depths, hand_over, key_counts, load_of, paced, recovery, throughput
from turnstile.stress.local.schedule import plan_faults, recovery_plan, seconds_for
from turnstile.stress.mix import DurationMix
from turnstile.stress.stage import FaultKind, PlannedFault, Purpose, Stage

EXECUTIONS: Final = 20_000
MIX: Final = DurationMix.parse("70% 0ms, 25% 20ms, 5% 500ms")

_NO_OPS: Final = 5_000
_HAND_OVERS: Final = 500
_KEYED: Final = 3_000
_DEPTHS: Final = (100, 1_000, 10_000, 100_000, 1_000_000)
_KEY_COUNTS: Final = (1, 10, 100, 1_000, 10_000)
_SHORT_DEPTHS: Final = (100, 1_000, 10_000)
_SHORT_KEY_COUNTS: Final = (1, 10, 100, 1_000)
_SOAK_RATE: Final = 100.0
_KILLS: Final = (FaultKind.KILL_WORKER, FaultKind.KILL_EXECUTOR)


def stages_of(asked: Asked) -> tuple[Stage, ...]:
    """Return what a run does."""
    match asked.preset:
        case None:
            stages = _default(asked)
        case Preset.SMOKE:
            stages = _smoke(asked)
        case Preset.LIMITS:
            stages = _limits(asked)
        case Preset.FIFO:
            stages = _fifo(asked)
        case Preset.KEYS:
            stages = key_counts(asked, asked.key_counts or _KEY_COUNTS, executions=asked.executions or _KEYED)
        case Preset.DEPTH:
            stages = depths(asked, asked.depths or _DEPTHS)
        case Preset.RECOVERY:
            stages = iter([recovery(asked, recovery_plan(asked.lease_seconds), limit=asked.limit)])
        case Preset.SOAK:
            stages = iter([_soak(asked)])
        case _:
            assert_never(asked.preset)
    return tuple(stages)


def _default(asked: Asked) -> Iterator[Stage]:
    yield _asked_load(asked)
    yield from throughput(asked, _NO_OPS)
    yield hand_over(_HAND_OVERS)
    yield from depths(asked, asked.depths or _SHORT_DEPTHS)
    yield from key_counts(asked, asked.key_counts or _SHORT_KEY_COUNTS, executions=_KEYED)
    if asked.local:
        yield recovery(asked, recovery_plan(asked.lease_seconds, kinds=_KILLS), limit=asked.limit)


def _smoke(asked: Asked) -> Iterator[Stage]:
    mix = asked.mix or DurationMix.parse("80% 0ms, 20% 10ms")
    yield _asked_load(replace(asked, executions=asked.executions or 1_000, mix=mix))
    yield from throughput(asked, 500)
    yield hand_over(100)
    yield from depths(asked, asked.depths or (500,))
    yield from key_counts(asked, asked.key_counts or (50,), executions=500)
    if asked.local:
        yield recovery(asked, recovery_plan(asked.lease_seconds, kinds=_KILLS[:1]), limit=asked.limit)


def _limits(asked: Asked) -> Iterator[Stage]:
    executions = asked.executions or 4_000
    mix = asked.mix or DurationMix.parse("80% 0ms, 20% 10ms")
    for limit in (1, 2, 4, 16, None):
        load = load_of(asked, executions=executions, mix=mix)
        name = "no-limit" if limit is None else f"limit-{limit}"
        title = "No limit" if limit is None else f"Limit {limit}"
        yield Stage(name=name, title=title, purpose=Purpose.LOAD, load=load, limit=limit)
    if asked.local:
        seconds = 30.0
        faults = _random_faults(asked, (FaultKind.CHANGE_LIMIT,), seconds)
        load = paced(load_of(asked, executions=executions, mix=mix), seconds, 200.0)
        title = "Limits changed under load"
        yield Stage(
            name="changed-limits", title=title, purpose=Purpose.LOAD, load=load, limit=4, faults=faults
        )


def _fifo(asked: Asked) -> Iterator[Stage]:
    executions = asked.executions or 4_000
    mix = asked.mix or DurationMix.parse("80% 0ms, 20% 10ms")
    many = load_of(asked, executions=executions, mix=mix, submitters=max(asked.submitters, 8))
    for name, title, load, limit in (
        ("one-by-one", "Limit 1, many submitters", many, 1),
        ("side-by-side", "Limit 4, many submitters", many, 4),
        ("keys", "Limit 1, five concurrency keys each", replace(many, keys=5), 1),
    ):
        yield Stage(name=name, title=title, purpose=Purpose.LOAD, load=load, limit=limit)
    if asked.local:
        kinds = (FaultKind.KILL_EXECUTOR, FaultKind.PAUSE_EXECUTOR, FaultKind.KILL_WORKER)
        plan = recovery_plan(asked.lease_seconds, kinds=kinds)
        yield replace(recovery(asked, plan, limit=1), name="faults", title="Executors and workers die")


def _soak(asked: Asked) -> Stage:
    load = paced(
        load_of(asked, executions=1, mix=asked.mix or MIX), asked.duration_seconds, asked.rate or _SOAK_RATE
    )
    return Stage(
        name="soak",
        title="A long steady load",
        purpose=Purpose.LOAD,
        load=load,
        limit=asked.limit,
        faults=_random_faults(asked, asked.faults, asked.duration_seconds),
    )


def _asked_load(asked: Asked) -> Stage:
    load = load_of(asked, executions=asked.executions or EXECUTIONS, mix=asked.mix or MIX)
    load = replace(load, rate=asked.rate)
    faults: tuple[PlannedFault, ...] = ()
    if asked.faults:
        seconds = seconds_for(asked.faults, lease_seconds=asked.lease_seconds)
        faults = _random_faults(asked, asked.faults, seconds)
        load = replace(load, rate=asked.rate or load.executions / seconds)
    return Stage(
        name="load", title="The load", purpose=Purpose.LOAD, load=load, limit=asked.limit, faults=faults
    )


def _random_faults(asked: Asked, kinds: tuple[FaultKind, ...], seconds: float) -> tuple[PlannedFault, ...]:
    if not kinds:
        return ()
    return plan_faults(
        asked.seed,
        seconds=seconds,
        executors=asked.executors,
        workers=asked.workers,
        kinds=kinds,
        lease_seconds=asked.lease_seconds,
        actions=asked.actions,
    )
