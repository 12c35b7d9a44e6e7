"""A seed makes a story: definitions, processes, requests, commands and faults, all as plain values.

The same story always runs the same way. A part of it can be left out, which is how a failing one gets
shorter.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, Literal

from tests.proof.simulation.faults import Fault, faults_of
from tests.proof.simulation.runner import Step

POOL: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPlan:
    """An action and its definition."""

    ref: str
    limit: int | None
    fields: Mapping[str, Any]
    """What its definition has beside these."""
    keys: int = 0

    def body(self, *, limit: int | None, paused: bool = False) -> dict[str, Any]:
        """Return the definition."""
        return {
            "ref": self.ref, "pool": POOL, "max_concurrent": limit, "needs_code": False, "paused": paused,
            **self.fields,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePlan:
    """A resource and its definition."""

    name: str
    capacity: int
    order: str

    @property
    def body(self) -> dict[str, Any]:
        return {"name": self.name, "capacity": self.capacity, "order": self.order}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPlan:
    """A request; its number is its place in the story."""

    number: int
    at: float
    submitter: int
    action: int
    key: int
    script: tuple[Step, ...]
    ttl_seconds: float | None = None
    run_after: float | None = None
    has_idempotency_key: bool = False
    priority: int = 3
    is_invalid: bool = False
    """It names an action that does not exist."""
    timeout_seconds: float | None = None
    singleton: str | None = None
    """It replaces what has this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePlan:
    """A schedule from the beginning of the world on, of an action that is paused: what waits expires."""

    name: str
    seconds: float
    """How long it has occurrences."""
    every: int = 1
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPlan:
    """A command: a cancel of a request, or an operator's change of an action or drain of a worker."""

    at: float
    kind: Literal["cancel", "cancel by key", "limit", "pause", "drain"]
    target: int
    """Number of a request, of an action or of a worker."""
    limit: int | None = None
    seconds: float = 0.0
    """After so long an operator restores what was before."""
    by_inbox: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Everything that is decided before a world begins."""

    seed: int
    executors: int
    workers: tuple[int, ...]
    """How many executions each worker runs at once."""
    lease_seconds: float
    write_seconds: float
    """How long the database takes for a turn."""
    actions: tuple[ActionPlan, ...]
    resources: tuple[ResourcePlan, ...]
    submitters: int
    inbox_submitter: int
    """This submitter uses HTTP, whose requests are rows of the inbox."""
    requests: tuple[RequestPlan, ...]
    commands: tuple[CommandPlan, ...]
    faults: tuple[Fault, ...]
    kind: str = ""
    """Of a directed story: the interleaving around which it was made."""
    clock_rates: tuple[float, ...] = ()
    """How many seconds the clock of each worker counts in one; if empty, all clocks are true."""
    schedules: tuple[SchedulePlan, ...] = ()
    has_packs: bool = False
    """A load finds what waits in packs, as on PostgreSQL."""

    @property
    def keys(self) -> int:
        return max((action.keys for action in self.actions), default=0)

    @property
    def has_gates(self) -> bool:
        """Whether the order within a queue is not that of ids alone."""
        return bool(self.resources)

    @property
    def loses_commits(self) -> bool:
        """Whether it fails over to a standby without the last commits."""
        return any(fault.kind == "failover" for fault in self.faults)

    def describe(self) -> str:
        """Return it in a few lines."""
        lines = [
            f"seed {self.seed} {self.kind}: {self.executors} executors, workers {list(self.workers)}, lease"
            f" {self.lease_seconds:g} s, {self.submitters} submitters, {len(self.requests)} requests,"
            f" {len(self.commands)} commands, {len(self.faults)} faults"
        ]
        lines += [f"  {each}" for each in self.resources]
        lines += [
            f"  action {each.ref}: limit {each.limit}, keys {each.keys}, {dict(each.fields)}"
            for each in self.actions
        ]
        if len(self.requests) <= 20:
            lines += [f"  {each}" for each in self.requests]
        lines += [f"  {each}" for each in self.commands[:30]]
        lines += [f"  {each}" for each in self.faults[:60]]
        return "\n".join(lines)


def story_of(seed: int, *, size: float = 1.0, with_faults: bool = True) -> Story:
    """Return the story of a seed; `size` scales how many executions and faults it has."""
    random = Random(seed)
    resources: tuple[ResourcePlan, ...] = ()
    if random.random() < 0.25:
        resources = tuple(
            ResourcePlan(
                name=f"r{number}",
                capacity=random.choice((3, 6, 20)),
                order=random.choice(("arrival", "fair")),
            )
            for number in range(random.randint(1, 3))
        )
    actions = tuple(_action(random, number, resources) for number in range(random.randint(1, 4)))
    workers = tuple(random.choice((2, 4, 8, 40)) for _ in range(random.randint(1, 4)))
    submitters = random.randint(2, 5)
    seconds = random.choice((4.0, 8.0, 15.0))
    count = max(round(size * random.choice((100, 1000, 5000, 12000))), 10)
    has_commands = random.random() < 0.6
    is_plain = random.random() < 0.3
    requests = tuple(
        _requests(
            random,
            actions,
            workers,
            submitters=submitters,
            seconds=seconds,
            count=count,
            is_plain=is_plain,
            has_priorities=bool(resources) and random.random() < 0.5,
        )
    )
    commands = tuple(_commands(random, actions, workers, requests, seconds)) if has_commands else ()
    faults: tuple[Fault, ...] = ()
    # Of their own, so that the rest of a story does not depend on them.
    others = Random(f"others {seed}")
    if others.random() < 0.3:
        commands = _with_drains(others, commands, len(workers), seconds)
    if others.random() < 0.2:
        requests = tuple(
            replace(each, ttl_seconds=others.choice((1.5, 3.0, 6.0))) if others.random() < 0.5 else each
            for each in requests
        )
    rates: tuple[float, ...] = ()
    if others.random() < 0.3:
        rates = tuple(others.choice((0.95, 0.99, 1.0, 1.01, 1.05)) for _ in workers)
    executors = random.randint(2, 3)
    if with_faults and random.random() < 0.9:
        faults = faults_of(
            random,
            executors,
            len(workers),
            seconds,
            max(round(count * random.choice((0.005, 0.01, 0.02))), random.choice((1, 3, 10, 30))),
        )
    return Story(
        seed=seed, executors=executors, workers=workers, lease_seconds=random.choice((3.0, 6.0)),
        write_seconds=random.choice((0.002, 0.01, 0.025)),
        actions=actions, resources=resources, submitters=submitters + 1,
        inbox_submitter=submitters, requests=requests,
        commands=commands, faults=faults, clock_rates=rates, has_packs=others.random() < 0.5,
    )  # fmt: skip


def _with_drains(
    random: Random, commands: tuple[CommandPlan, ...], workers: int, seconds: float
) -> tuple[CommandPlan, ...]:
    drains = [
        CommandPlan(
            at=0.5 + seconds * random.random(), kind="drain", target=random.randrange(workers),
            seconds=0.1 + 3 * random.random(),
        )
        for _ in range(random.randint(1, 4))
    ]  # fmt: skip
    return tuple(sorted((*commands, *drains), key=lambda each: each.at))


def _action(random: Random, number: int, resources: tuple[ResourcePlan, ...]) -> ActionPlan:
    fields: dict[str, Any] = {"max_reclaims": 100}
    if resources:
        used = random.sample(resources, random.randint(0, len(resources)))
        fields["uses"] = [{"resource": each.name, "units": random.randint(1, 3)} for each in used]
        if random.random() < 0.3:
            fields["rate"] = {"starts": 40, "per_seconds": 1.0}
        if random.random() < 0.4:
            fields["max_concurrent_total"] = random.choice((2, 5, 12))
            fields["order"] = random.choice(("arrival", "fair"))
    if random.random() < 0.4:
        fields["retry"] = {"max_attempts": 3, "delay_seconds": 0.2}
    if random.random() < 0.1:
        fields["on_worker_lost"] = "abandon"
    return ActionPlan(
        ref=f"stress.{number:02}",
        limit=random.choice((1, 1, 1, 2, 4, 7, 30, None)),
        keys=random.choice((0, 0, 3, 8)),
        fields=fields,
    )


def _requests(
    random: Random, actions: tuple[ActionPlan, ...], workers: tuple[int, ...], *, submitters: int,
    seconds: float, count: int, is_plain: bool, has_priorities: bool,
) -> list[RequestPlan]:  # fmt: skip
    # What the slots can do in the time, so that a backlog ends soon after the last request.
    capacity = sum(workers) / 3
    slots = sum(min((each.limit or 16) * max(each.keys, 1), sum(workers)) for each in actions) / len(actions)
    busy = min(max(min(capacity, slots) * seconds / count, 0.0005), 0.2)
    instants = sorted(_arrivals(random, seconds, count))
    found = []
    for number, at in enumerate(instants):
        action = random.randrange(len(actions))
        script: tuple[Step, ...] = (Step("ok", busy * 2 * random.random(), random.random() < 0.7),)
        lucky = random.random()
        fields: dict[str, Any] = {}
        if not is_plain and lucky < 0.12:
            script, fields = _special(random, lucky / 0.12, script)
        submitter = submitters if random.random() < 0.1 else random.randrange(submitters)
        found.append(
            RequestPlan(
                number=number, at=at, submitter=submitter, action=action,
                key=random.randrange(actions[action].keys) if actions[action].keys else 0, script=script,
                has_idempotency_key=random.random() < 0.1,
                priority=random.choice((1, 3, 3, 5)) if has_priorities else 3, **fields,
            )
        )  # fmt: skip
    return found


def _arrivals(random: Random, seconds: float, count: int) -> list[float]:
    """Return instants: evenly, in bursts, or all at once."""
    kind = random.choice(("even", "bursts", "once"))
    if kind == "once":
        return [1.0 + 0.3 * random.random() for _ in range(count)]
    if kind == "even":
        return [0.5 + seconds * random.random() for _ in range(count)]
    bursts = [0.5 + seconds * random.random() for _ in range(5)]
    return [random.choice(bursts) + 0.1 * random.random() for _ in range(count)]


def _special(
    random: Random, lucky: float, script: tuple[Step, ...]
) -> tuple[tuple[Step, ...], dict[str, Any]]:
    step = script[0]
    if lucky < 0.2:
        return (replace(step, kind="fail"),), {}
    if lucky < 0.4:
        return (replace(step, kind="retry"), step), {}
    if lucky < 0.5:
        return (Step("hang", 0.0),), {"timeout_seconds": 0.5}
    if lucky < 0.53:
        return (Step("deaf", 0.0),), {"timeout_seconds": 0.5}
    if lucky < 0.56:
        return (Step("refuse", 0.0), step), {}
    if lucky < 0.6:
        return (replace(step, kind="unstorable"),), {}
    if lucky < 0.7:
        return script, {"is_invalid": True}
    if lucky < 0.85:
        return script, {"ttl_seconds": random.choice((0.2, 1.0, 3.0))}
    return script, {"run_after": 2 * random.random()}


def _commands(
    random: Random, actions: tuple[ActionPlan, ...], workers: tuple[int, ...],
    requests: tuple[RequestPlan, ...], seconds: float,
) -> list[CommandPlan]:  # fmt: skip
    found: list[CommandPlan] = []
    for request in requests:
        if random.random() < 0.02:
            kind: Literal["cancel", "cancel by key"] = "cancel"
            if request.has_idempotency_key and random.random() < 0.7:
                kind = "cancel by key"
            at = request.at + random.choice((-0.05, 0.001, 0.05, 0.5)) * random.random()
            found.append(
                CommandPlan(at=max(at, 0.1), kind=kind, target=request.number, by_inbox=random.random() < 0.5)
            )
    for number in range(len(actions)):
        at, lasting = seconds * random.random(), 0.1 + 2 * random.random()
        if random.random() < 0.4:
            found.append(CommandPlan(at=at, kind="pause", target=number, seconds=lasting))
        elif random.random() < 0.5:
            limit = random.choice((0, 1, 2, 5, None))
            found.append(CommandPlan(at=at, kind="limit", target=number, limit=limit, seconds=lasting))
    return sorted(found, key=lambda each: each.at)
