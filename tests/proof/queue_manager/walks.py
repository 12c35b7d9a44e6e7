"""Random walks through larger systems, from a seed, with the checks of the explorer after each turn."""

import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from tests.proof.queue_manager.configurations import RETRY, Configuration, define, worker
from tests.proof.queue_manager.explorer import (
    Event,
    System,
    events_of,
    initial,
    inputs_of,
    load,
    take_turn,
)
from tests.proof.queue_manager.rules import check_idempotence, check_progress
from turnstile.executor.queue_manager.decisions import Decisions
from turnstile.executor.queue_manager.definitions import Action, KeySettings, Pool, Rate, Resource, Use
from turnstile.executor.queue_manager.inputs import (
    DeleteAction,
    Input,
    SetKey,
    WorkerGone,
)

T = TypeVar("T")

_WEIGHTS = {
    "admit": 6,
    "delay": 1,
    "end": 8,
    "fail": 2,
    "return": 1,
    "start": 1,
    "cancel": 1,
    "switch": 2,
    "tick": 3,
    "load": 1,
}


def draw(seed: int) -> Configuration:
    """Return a random system with up to 6 actions, 3 resources, 2 pools and 4 workers."""
    dice = random.Random(seed)
    # Half of all walks have runs, with time in steps that runs last, and no rates.
    run_seconds = random.Random(seed).choice((0.015625, 0.0625)) if seed % 8 > 3 else None

    def maybe(value: T, share: float = 0.5) -> T | None:
        return value if dice.random() < share else None

    def rate() -> Rate | None:
        drawn = Rate(starts=dice.randint(1, 3), per_seconds=dice.randint(1, 4))
        return drawn if run_seconds is None else None

    resources = [
        Resource(
            name=name,
            capacity=dice.randint(1, 4),
            rank=dice.randint(1, 2),
            order=dice.choice(("arrival", "fair")),
            rate=maybe(rate(), 0.3),
            patience_seconds=dice.randint(1, 5),
        )
        for name in "xyz"[: dice.randint(0, 3)]
    ]
    pools = [Pool(name=name, order=dice.choice(("arrival", "fair"))) for name in ("default", "gpu")]
    pools[0] = replace(pools[0], weights={"a": dice.randint(1, 3)})
    actions = [
        Action(
            ref=ref,
            pool=dice.choice(("default", "default", "gpu")),
            max_concurrent=maybe(dice.randint(1, 3)),
            max_concurrent_total=maybe(dice.randint(1, 4), 0.3),
            order=dice.choice(("arrival", "fair")),
            uses=tuple(
                Use(resource=r.name, units=dice.randint(1, min(r.capacity, 2)), weight=dice.randint(1, 3))
                for r in dice.sample(resources, dice.randint(0, len(resources)))
            ),
            rate=maybe(rate(), 0.2),
            retry=RETRY,
            on_worker_lost=dice.choice(("requeue", "requeue", "abandon")),
            max_reclaims=dice.randint(0, 3),
        )
        for ref in "abcdef"[: dice.randint(1, 6)]
    ]
    if run_seconds is not None:
        actions[::2] = [replace(action, uses=(), max_concurrent_total=None) for action in actions[::2]]
    refs = [action.ref for action in actions]
    workers = [
        worker(
            f"w{n}",
            dice.randint(1, 3),
            pools=dice.choice(("default", "default gpu", "gpu default", "gpu")),
            actions=maybe(" ".join(dice.sample(refs, dice.randint(1, len(refs)))), 0.4),
        )
        for n in range(dice.randint(1, 4))
    ]
    keys = ("", "k", "l") if dice.random() < 0.5 else ("",)
    switches: list[tuple[Input, ...]] = []
    for action in dice.sample(actions, min(2, len(actions))):
        switches.append(
            (
                define(action),
                define(replace(action, paused=True)),
                define(replace(action, max_concurrent=dice.randint(0, 3), order="fair", pool="gpu")),
                define(replace(action, uses=action.uses[1:], max_concurrent_total=2)),
                DeleteAction(ref=action.ref, reason="gone", cancel_max=dice.choice((0, 99))),
            )
        )
        key = dice.choice(keys)
        settings = (
            None,
            KeySettings(weight=2),
            KeySettings(has_limit=True, max_concurrent=dice.randint(0, 2)),
        )
        switches.append(tuple(SetKey(action_ref=action.ref, key=key, settings=each) for each in settings))
    for resource in resources:
        changes = (
            resource,
            replace(resource, capacity=dice.randint(0, 4)),
            replace(resource, paused=True),
            replace(resource, order="fair", rank=3),
            replace(resource, rate=rate()),
        )
        switches.append(tuple(map(define, changes)))
    pool = dice.choice(pools)
    changed = (pool, replace(pool, paused=True), replace(pool, order="fair"), replace(pool, order="arrival"))
    switches.append(tuple(map(define, changed)))
    for each in workers:
        values = (each, replace(each, is_taking=False), replace(each, concurrency=dice.randint(0, 4)))
        switches.append(
            (*values, replace(each, actions=frozenset(refs[:2])), WorkerGone(worker_id=each.worker_id))
        )
    return Configuration(
        name=f"walk {seed}",
        definitions=(*map(define, resources), *map(define, pools), *map(define, actions)),
        workers=tuple(workers),
        alive_max=dice.randint(4, 16) + (0 if run_seconds is None else 12),
        requests=tuple(
            (dice.choice(refs), dice.choice(keys), dice.choice((1, 3, 3, 3, 5))) for _ in range(2 * len(refs))
        ),
        switches=tuple(switches),
        has_failures=True,
        has_starts=True,
        ttl_seconds=maybe(dice.randint(1, 9), 0.3),
        delay_seconds=maybe(dice.randint(1, 4), 0.3),
        run_seconds=run_seconds,
        # Short steps meet windows of rates in their middle.
        tick_seconds=1 if run_seconds is None and seed % 4 < 2 else 0.125,
        # A load looks at everything again, so it hides what a turn has forgotten.
        has_loads=seed % 2 == 0,
    )


def turns_of(seed: int, turns: int = 60) -> Iterator[tuple[System, Decisions]]:
    """Walk, checked; yield the system after each turn, and what was decided. Raises Violation."""
    configuration, dice = draw(seed), random.Random(-seed - 1)
    system = initial(configuration)
    for _ in range(turns):
        events = _choose(configuration, system, dice)
        inputs: list[Input] = []
        now = system.state.now
        for event in events:
            if event.name == "load":
                continue
            told, at = inputs_of(configuration, system, event)
            inputs, now = inputs + told, max(now, at)
            if event.name == "switch":
                place, to = event.arguments
                system.switched = (*system.switched[:place], to, *system.switched[place + 1 :])
        out = take_turn(system, inputs, now)
        if Event("load") in events:
            load(system)
        yield system, out


def walk(seed: int) -> int:
    """Walk, and check now and then what the future brings; return the number of grants. Raises Violation."""
    grants = 0
    for number, (system, out) in enumerate(turns_of(seed)):
        grants += len(out.granted)
        if number % 10 == 9:
            packed = pickle.dumps(system.state)
            check_progress(packed, 500)
            check_idempotence(pickle.loads(packed))
    return grants


def _choose(configuration: Configuration, system: System, dice: random.Random) -> list[Event]:
    events = [
        event
        for event in events_of(configuration, system)
        if len(event.arguments) < 2 or event.name == "switch"
    ]
    by_name: dict[str, list[Event]] = {}
    for event in events:
        by_name.setdefault(event.name, []).append(event)
    names = list(by_name)
    chosen: dict[Event, None] = {}
    for _ in range(dice.choice((1, 1, 2, 4))):
        (name,) = dice.choices(names, [_WEIGHTS[name] for name in names])
        chosen[dice.choice(by_name[name])] = None
    return list(chosen)
