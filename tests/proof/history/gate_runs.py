"""Random runs of the model of gates, as an installation would have stored them.

In: a `Configuration` and a model. Out: a `GateHistory`. Each operation has an instant of its own, one
millisecond after a tick of the model's clock, so a rate of n ticks spans at least 2n - 1 milliseconds here.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from tests.proof.gates.definitions import GRANTED, Rate, System
from tests.proof.gates.explorer import Configuration
from tests.proof.gates.model import Execution, Gates, State, Step
from turnstile.stress.check.definitions import (
    Definition,
    DefinitionChange,
    DefinitionHistory,
    Definitions,
    history_of,
)
from turnstile.stress.check.passages import QUEUE, RATE, TOTAL, GateHistory, Passer, Stay
from turnstile.stress.recording import NEVER

_MILLISECOND: Final = 1_000_000


def run(
    configuration: Configuration, seed: int, *, steps: int = 300, model: type[Gates] = Gates
) -> GateHistory:
    """Return the history of a run of random operations; equal arguments give equal histories."""
    recorder = _Run(configuration, model(configuration.system), random.Random(seed))
    for _ in range(steps):
        recorder.operate()
    return recorder.history()


@dataclass(slots=True)
class _Life:
    """One execution, and what its last attempt has passed so far."""

    action: str
    key: str
    priority: int
    created_at: int
    waits_since: int
    attempt: int = 1
    passed: list[tuple[int, int, int]] = field(default_factory=list)
    """Gate, units, instant."""
    grants: list[int] = field(default_factory=list)
    completed_at: int = NEVER


class _Run:
    def __init__(self, configuration: Configuration, gates: Gates, chance: random.Random) -> None:
        self.configuration, self.gates, self.chance = configuration, gates, chance
        self.system: System = configuration.system
        self.state: State = gates.initial()
        self.lives: dict[int, _Life] = {}
        self.at = _MILLISECOND
        self.now = {name: dict(_action(self.system, name)) for name in self.system.actions}
        self.now |= {name: dict(_resource(self.system, name)) for name in self.system.resources}
        self.changes: dict[str, list[DefinitionChange]] = defaultdict(list)

    def operate(self) -> None:
        """Let a tick pass, then do one operation."""
        self.at += _MILLISECOND
        self._apply(self.gates.tick(self.state))
        self.at += _MILLISECOND
        granted = [e for e in self.state.executions if e.gate == GRANTED]
        waiting = [e for e in self.state.executions if e.gate != GRANTED]
        kinds = ["admit"] * 5 + ["settle"] * 5 * bool(granted) + ["reclaim", "settle both"] * bool(granted)
        kinds += ["cancel"] * bool(waiting)
        kinds += ["capacity"] * bool(self.configuration.capacities)
        kinds += ["pause"] * bool(self.configuration.pausable)
        match self.chance.choice(kinds):
            case "admit" if len(self.state.executions) < 12:
                action, key, priority = self.chance.choice(self.configuration.requests)
                self.lives[self.state.next_ticket] = _Life(action, key, priority, self.at, self.at)
                self._apply(self.gates.admit(self.state, action, key, priority))
            case "settle":
                self._settle(self.chance.choice(granted))
            case "settle both":
                self._settle(*granted[:2])
            case "reclaim":
                again = self.chance.choice(granted).ticket
                life = self.lives[again]
                life.grants.append(life.passed[-1][2])
                life.passed, life.waits_since, life.attempt = [], self.at, life.attempt + 1
                self._apply(self.gates.reclaim(self.state, again))
            case "cancel":
                gone = self.chance.choice(waiting).ticket
                self.lives[gone].completed_at, self.lives[gone].passed = self.at, []
                self._apply(self.gates.cancel(self.state, gone))
            case "capacity":
                self._change_capacity()
            case "pause":
                self._pause()
            case _:
                pass

    def _settle(self, *ended: Execution) -> None:
        for each in ended:
            self.lives[each.ticket].completed_at = self.at
        self._apply(self.gates.settle(self.state, *(each.ticket for each in ended)))

    def _apply(self, step: Step) -> None:
        self.state = step.state
        alive = {e.ticket: e for e in step.state.executions}
        for gate, ticket, units in step.passages:
            life = self.lives[ticket]
            if self.system.gates[gate].kind == "queue":
                # It returned to its queue, if it had passed before.
                life.passed = []
            life.passed.append((gate, units, self.at))
        for ticket, execution in alive.items():
            life = self.lives[ticket]
            if life.passed and not execution.held:
                # It has returned to its queue.
                life.passed, life.waits_since = [], self.at

    def _change_capacity(self) -> None:
        name = self.chance.choice(sorted(self.configuration.capacities))
        capacity = self.chance.choice(self.configuration.capacities[name])
        subject, _, key = name.removeprefix("total ").partition("/")
        if name.startswith("total "):
            self._change(subject, max_concurrent_total=capacity)
        elif key:
            settings = {
                "max_concurrent": capacity,
                "weight": self.system.actions[subject].weights.get(key, 1),
            }
            self._change(subject, **{f"keys.{key}": settings})
        else:
            field_name = "capacity" if name in self.system.resources else "max_concurrent"
            self._change(subject, **{field_name: capacity})
        self._apply(self.gates.change_capacity(self.state, self.system.number[name], capacity))

    def _pause(self) -> None:
        names = self.chance.choice(self.configuration.pausable)
        numbers = [self.system.number[name] for name in names]
        is_paused = numbers[0] in self.state.paused
        for name in names:
            # A queue is paused with its action: here only those of which all queues are.
            self._change(name.partition("/")[0], paused=not is_paused)
        operation = self.gates.resume if is_paused else self.gates.pause
        self._apply(operation(self.state, *numbers))

    def _change(self, subject: str, **fields: Any) -> None:
        now = self.now[subject]
        old = {name: now[name] for name in fields if name in now}
        now.update(fields)
        self.changes[subject].append(DefinitionChange(self.at, old, fields))

    def history(self) -> GateHistory:
        """Return what is stored: the gates of ended executions, and what is known of the others."""
        histories = {name: history_of(now, self.changes[name]) for name, now in self.now.items()}
        actions: dict[str, DefinitionHistory] = {name: histories[name] for name in self.system.actions}
        resources = {name: histories[name] for name in self.system.resources}
        return GateHistory(
            passers=[self._passer(ticket, life) for ticket, life in self.lives.items()],
            definitions=Definitions(actions=actions, resources=resources, settling_ns=0),
        )

    def _passer(self, ticket: int, life: _Life) -> Passer:
        stays = []
        arrived_at = life.waits_since
        for gate, units, passed_at in life.passed if life.completed_at != NEVER else ():
            name = self._name(gate, life.action)
            if name is not None:
                stays.append(Stay(name, units, arrived_at, passed_at))
                arrived_at = passed_at
        return Passer(
            execution_id=ticket,
            action=life.action,
            key=life.key or None,
            priority=life.priority,
            created_at=life.created_at,
            completed_at=life.completed_at,
            attempt=life.attempt,
            stays=tuple(stays),
            granted_ats=tuple(life.grants),
        )

    def _name(self, gate: int, action: str) -> str | None:
        """Return the name as it is stored; None: this gate is not stored."""
        match self.system.gates[gate].kind:
            case "queue":
                return QUEUE
            case "total":
                return TOTAL
            case "resource":
                return f"resource {self.system.gates[gate].name}"
            case _:
                return RATE if self.system.rate_names[action] else None


def _action(system: System, name: str) -> Definition:
    action = system.actions[name]
    uses = [
        {"resource": used, "units": units, "weight": system.resources[used].weights.get(name, 1)}
        for used, units in action.uses.items()
    ]
    keys: dict[str, Any] = {
        f"keys.{key}": {"weight": action.weights.get(key, 1)}
        | ({"max_concurrent": action.key_limits[key]} if key in action.key_limits else {})
        for key in action.keys
        if key
    }
    definition: dict[str, Any] = {
        "max_concurrent": action.limit,
        "max_concurrent_total": action.total,
        "order": action.order,
    }
    return definition | {"uses": uses, "paused": False} | keys | _rate(action.rate)


def _resource(system: System, name: str) -> Definition:
    resource = system.resources[name]
    definition: dict[str, Any] = {
        "capacity": resource.capacity,
        "order": resource.order,
        "rank": resource.rank,
    }
    return definition | {"paused": False} | _rate(resource.rate)


def _rate(rate: Rate | None) -> dict[str, Any]:
    if rate is None:
        return {"rate.starts": None, "rate.per": None}
    return {"rate.starts": rate.starts, "rate.per": (2 * rate.per - 1) / 1000}
