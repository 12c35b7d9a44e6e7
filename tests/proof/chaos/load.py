"""The load of a run, a pure function of the seed.

In: a seed and a duration. Out: `Step`s in the order of their time: requests over AMQP and HTTP from several
submitters, some of them twice, cancels by id and by key, changed limits, pauses. The work in each queue is a
fraction of the time, so that the backlog of the faults can drain after them.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from uuid import UUID

Fields = Mapping[str, Any]
Way = Literal["amqp", "http"]


def is_action(path: str) -> bool:
    """Return whether a path below the API is that of an action, which a PATCH changes."""
    return path.startswith("actions/") and "/keys/" not in path


SUBMITTERS: Final[Mapping[str, Way]] = {
    "amqp-1": "amqp",
    "amqp-2": "amqp",
    "http-1": "http",
    "http-2": "http",
}
_PER_SECOND: Final = {
    "chaos.one": 1.5,
    "chaos.two": 1.2,
    "chaos.seven": 2.5,
    "chaos.brisk": 2.0,
    "chaos.free": 2.0,
    "chaos.keyed": 2.0,
    "chaos.command": 0.5,
    "chaos.long": 0.2,
    "chaos.heavy": 1.0,
    "chaos.light": 2.0,
    "chaos.shared": 2.5,
    "chaos.mail": 2.0,
}
GATES: Final[Mapping[str, Fields]] = {
    "resources/cad": {"capacity": 4, "rank": 1, "order": "fair"},
    "resources/partner": {"capacity": 3, "rank": 2, "rate": {"starts": 12, "per": 1}},
    "actions/chaos.heavy": {"max_concurrent": 2, "uses": [{"resource": "cad", "units": 3}]},
    "actions/chaos.light": {
        "max_concurrent": None,
        "uses": [{"resource": "cad", "units": 1, "weight": 2}, "partner"],
    },
    "actions/chaos.shared": {
        "max_concurrent": 2,
        "max_concurrent_total": 3,
        "order": "fair",
        "submitter_keys": True,
        "uses": ["partner"],
    },
    "actions/chaos.mail": {"max_concurrent": None, "rate": {"starts": 6, "per": 1}},
    "actions/chaos.shared/keys/1": {"weight": 3},
    "actions/chaos.shared/keys/2": {"max_concurrent": 1},
    "pools/default": {"weights": {}},
}
"""The gates of a load, by path. Their capacities are about twice what the load needs."""
CHANGED: Final[Mapping[str, tuple[Fields, ...]]] = {
    # A request of an action that takes more units than the capacity would be refused.
    "resources/cad": ({"capacity": 3}, {"capacity": 6}, {"capacity": 4}, {"paused": True}),
    "resources/partner": (
        {"capacity": 1},
        {"capacity": 5},
        {"capacity": 3},
        {"rate": {"starts": 5, "per": 1}},
        {"rate": {"starts": 12, "per": 1}},
        {"paused": True},
    ),
    "actions/chaos.shared": (
        {"max_concurrent_total": 2},
        {"max_concurrent_total": 5},
        {"max_concurrent_total": 3},
        {"max_concurrent": 3},
        {"paused": True},
    ),
    "actions/chaos.shared/keys/2": ({"max_concurrent": 2, "weight": 2}, {"max_concurrent": 1}),
    "actions/chaos.mail": ({"rate": {"starts": 3, "per": 1}}, {"rate": {"starts": 6, "per": 1}}),
    "actions/chaos.heavy": (
        {"uses": [{"resource": "cad", "units": 1}]},
        {"uses": [{"resource": "cad", "units": 2}]},
    ),
    "pools/default": (
        {"weights": {"chaos.crowd": 1, "chaos.free": 5, "chaos.light": 3}},
        {"weights": {"chaos.crowd": 4, "chaos.free": 1, "chaos.mail": 2}},
        {"paused": True},
        {"paused": True},
    ),
}
"""What a change may set, by path."""
LIMITS: Final[Mapping[str, int | None]] = {
    "chaos.one": 1,
    "chaos.two": 2,
    "chaos.seven": 7,
    "chaos.brisk": 2,
    "chaos.free": None,
    "chaos.keyed": 1,
    "chaos.command": 2,
    "chaos.long": None,
    "chaos.crowd": None,
}
GATED: Final = {path.removeprefix("actions/"): fields for path, fields in GATES.items() if is_action(path)}
NUMBERS: Final = {
    **LIMITS,
    **{ref: fields["max_concurrent"] for ref, fields in GATED.items()},
    **{
        path.replace("resources/", "resource "): fields["capacity"]
        for path, fields in GATES.items()
        if path.startswith("resources/")
    },
}
"""What must be in force again at the end."""
_KEYS: Final = 5
_BURST: Final = 25
_CROWDS: Final = {"chaos.crowd": 30, "chaos.brisk": 150}
"""Submitted at once. The first are more than twice the worker slots: the others wait for a worker slot of the
pool, each in its turn. The second are short, and wait behind a limit: they run in runs."""
_CROWD_SECONDS: Final = {"chaos.crowd": 20.0, "chaos.brisk": 5.0}
"""From one crowd to the next, on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Submit one execution; `number` is unique in the run and part of the request's metadata."""

    number: int
    submitter: str
    at_seconds: float
    message_id: str
    body: Mapping[str, Any]
    run_in_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Cancel the execution of a submission: by its key if `by_key`, else by its id, once known."""

    submitter: str
    at_seconds: float
    of: Submit
    by_key: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change an action, a resource, a pool or the settings of a key."""

    at_seconds: float
    path: str
    fields: Fields
    method: Literal["PATCH", "PUT"] = "PATCH"


Step = Submit | Cancel | Change


def plan_load(seed: int, seconds: float) -> list[Step]:
    """Return all steps of a run."""
    rng = random.Random(f"{seed} load")
    submits = list(_submits(rng, seconds))
    steps: list[Step] = [*submits, *_again(rng, submits), *_cancels(rng, submits), *_changes(rng, seconds)]
    steps += _gate_changes(random.Random(f"{seed} gates"), seconds)
    return sorted(steps, key=lambda step: step.at_seconds)


def gates_defined() -> list[Change]:
    """Return the changes that define the gates; they undo all others."""
    return [
        Change(at_seconds=0.0, path=path, fields=fields, method="PATCH" if is_action(path) else "PUT")
        for path, fields in GATES.items()
    ]


def restored() -> list[Change]:
    """Return the changes that undo all changes of a run."""
    limited = [
        Change(at_seconds=0.0, path=f"actions/{ref}", fields={"max_concurrent": limit, "paused": False})
        for ref, limit in LIMITS.items()
    ]
    return [*limited, *gates_defined()]


def _submits(rng: random.Random, seconds: float) -> Iterator[Submit]:
    times: list[tuple[float, str]] = []
    for ref, per_second in _PER_SECOND.items():
        count = round(seconds * per_second)
        times += [(rng.uniform(0.0, seconds), ref) for _ in range(count)]
        times += [(rng.uniform(0.0, seconds), ref)] * min(_BURST, count // 8)
    for ref, count in _CROWDS.items():
        for _ in range(max(round(seconds / _CROWD_SECONDS[ref]), 1)):
            times += [(rng.uniform(0.0, seconds), ref)] * count
    for number, (at_seconds, ref) in enumerate(sorted(times), 1):
        yield _submit(rng, number, round(at_seconds, 3), ref)


def _submit(rng: random.Random, number: int, at_seconds: float, ref: str) -> Submit:
    submitter = rng.choice(list(SUBMITTERS))
    body: dict[str, Any] = {
        "action_ref": ref,
        "parameters": {"seconds": _run_seconds(rng, ref)},
        "metadata": {"tag": number},
    }
    if ref == "chaos.keyed":
        body["parameters"]["key"] = rng.randrange(_KEYS)
    if ref in GATED:
        body["priority"] = rng.choice([1, 2, 3, 3, 3, 3, 4, 5])
    if ref == "chaos.shared":
        body["concurrency_key"] = str(rng.randrange(_KEYS))
    if ref == "chaos.seven" and rng.random() < 0.2:
        body["parameters"]["failures"] = rng.randint(1, 3)
    if rng.random() < 0.05:
        body["ttl"] = round(rng.uniform(0.2, 3.0), 2)
    if ref in ("chaos.free", "chaos.two") and rng.random() < 0.1:
        body["timeout"] = 1.0
        body["parameters"]["seconds"] = 4.0 if rng.random() < 0.5 else 0.1
    # An answer over HTTP can be lost: only with a key can the request be repeated.
    if SUBMITTERS[submitter] == "http" or rng.random() < 0.5:
        body["idempotency_key"] = f"key {number}"
    return Submit(
        number=number,
        submitter=submitter,
        at_seconds=at_seconds,
        message_id=str(UUID(int=rng.getrandbits(128), version=4)),
        body=body,
        run_in_seconds=round(rng.uniform(0.5, 5.0), 2) if rng.random() < 0.05 else None,
    )


def _run_seconds(rng: random.Random, ref: str) -> float:
    match ref:
        # Long enough to outlive a lease.
        case "chaos.long":
            return round(rng.uniform(4.0, 8.0), 3)
        case "chaos.free" if rng.random() < 0.05:
            return round(rng.uniform(4.0, 8.0), 3)
        case "chaos.crowd":
            return round(rng.uniform(0.5, 1.0), 3)
        case "chaos.brisk":
            return round(rng.choice([0.0, 0.0, 0.01, 0.03]), 3)
        case "chaos.seven" | "chaos.free":
            return round(rng.choice([0.0, 0.05, 0.1, rng.uniform(0.1, 0.5), rng.uniform(0.5, 3.0)]), 3)
        case _:
            return round(rng.choice([0.0, 0.0, 0.01, rng.uniform(0.0, 0.1), rng.uniform(0.0, 0.5)]), 3)


def _again(rng: random.Random, submits: list[Submit]) -> Iterator[Submit]:
    """Repeat some requests by the same submitter, as after a lost answer."""
    for first in submits:
        if first.run_in_seconds is None and rng.random() < 0.03:
            yield replace(first, at_seconds=round(first.at_seconds + rng.uniform(0.0, 3.0), 3))


def _cancels(rng: random.Random, submits: list[Submit]) -> Iterator[Cancel]:
    for of in submits:
        if rng.random() < 0.08:
            submitter = rng.choice(list(SUBMITTERS))
            after_seconds = rng.choice([0.0, rng.uniform(0.0, 0.5), rng.uniform(0.0, 4.0)])
            yield Cancel(
                submitter=submitter,
                at_seconds=round(of.at_seconds + after_seconds, 3),
                of=of,
                # Over HTTP a cancel names an id; only messages may name a key.
                by_key=SUBMITTERS[submitter] == "amqp"
                and "idempotency_key" in of.body
                and rng.random() < 0.5,
            )


def _changes(rng: random.Random, seconds: float) -> Iterator[Change]:
    now = rng.uniform(1.0, 5.0)
    while now < seconds:
        ref = rng.choice(["chaos.one", "chaos.two", "chaos.seven", "chaos.brisk", "chaos.keyed"])
        if rng.random() < 0.3:
            yield Change(at_seconds=round(now, 2), path=f"actions/{ref}", fields={"paused": True})
            now += rng.uniform(0.5, 3.0)
            yield Change(at_seconds=round(now, 2), path=f"actions/{ref}", fields={"paused": False})
        else:
            limit = rng.choice([1, 2, 3, LIMITS[ref], LIMITS[ref], None])
            yield Change(at_seconds=round(now, 2), path=f"actions/{ref}", fields={"max_concurrent": limit})
        now += rng.uniform(2.0, 8.0)


def _gate_changes(rng: random.Random, seconds: float) -> Iterator[Change]:
    """Yield changes of gates in the order of their time: of each path before any comes twice.

    A pause is soon over.
    """
    now = rng.uniform(2.0, 6.0)
    paths: list[str] = []
    while now < seconds:
        paths = paths or rng.sample(sorted(CHANGED), len(CHANGED))
        path = paths.pop()
        fields = rng.choice(CHANGED[path])
        method: Literal["PATCH", "PUT"] = "PUT" if "/keys/" in path else "PATCH"
        yield Change(at_seconds=round(now, 2), path=path, fields=fields, method=method)
        if fields.get("paused"):
            now += rng.uniform(0.5, 2.5)
            yield Change(at_seconds=round(now, 2), path=path, fields={"paused": False})
        # Fair shares and the order are compared between changes.
        now += rng.uniform(1.0, 12.0)
