"""What everybody saw of one stage: the tables, what was done to the system, and what it counted itself.

In: rows from `drive`. Out: one value that `check` and `figures` read without asking anybody, and that can be
kept in a folder and read again.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from pydantic import TypeAdapter

from turnstile.stress.stage import FaultKind, Stage
from turnstile.stress.tables import NEVER, Table

_TABLES: Final = ("orders", "executions", "attempts", "runs", "samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """A fault as it happened; instants in nanoseconds."""

    kind: FaultKind
    target: str
    """For people: `worker-2`, `executor.completions`."""
    began_at: int
    healed_at: int
    """When what was broken was whole again: its process up and ready, its limit restored."""
    lost_worker: str | None = None
    """The id under which a killed or paused worker held its lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """A limit was changed: at some instant between the two."""

    action: int
    limit: int | None
    asked_at: int
    answered_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionCounters:
    """What `queue-stats` says of one action, before the first request and when everything is over."""

    enqueued_before: int
    enqueued: int
    completed_before: int
    completed: int
    queue_length: int
    active_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What `GET /audit` says when everything is over: the checks that found something."""

    clean: bool
    faults: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One stage, as everybody saw it."""

    stage: Stage
    began_at: int
    """Before the first request."""
    ended_at: int
    """When everything was over, or nothing moved any more."""
    opened_at: int = NEVER
    """When what had been held back was let go; NEVER: nothing was."""
    orders: Table
    executions: Table
    attempts: Table
    runs: Table
    samples: Table
    workers: tuple[str, ...]
    faults: tuple[InjectedFault, ...] = ()
    limit_changes: tuple[LimitChange, ...] = ()
    """After those that opened the stage."""
    counters: tuple[ActionCounters, ...] = ()
    """Of each action by its number; empty where they could not be read."""
    audit: Audit | None = None
    clock_error_ns: int = 0
    """How far clocks of other hosts may be off; 0: everything ran on this host."""
    idle_allowed_seconds: float = 2.0
    """The watchdog's tick of the installation, with a margin."""
    collapses: tuple[str, ...] = ()
    """What ended by itself, one sentence each; of a private installation only."""

    def save(self, folder: Path) -> None:
        """Write it into a folder of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folder / "tables.npz", **{name: getattr(self, name) for name in _TABLES})
        rest = {name: value for name, value in asdict(self).items() if name not in _TABLES}
        (folder / "recording.json").write_text(json.dumps(rest, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote; raises OSError or ValueError where that is not there."""
        rest = json.loads((folder / "recording.json").read_text(encoding="utf-8"))
        with np.load(folder / "tables.npz") as tables:
            columns: dict[str, Any] = {name: tables[name] for name in _TABLES}
        hints = {name: kind for name, kind in cls.__annotations__.items() if name not in _TABLES}
        return cls(**columns, **{name: TypeAdapter(hints[name]).validate_python(rest[name]) for name in rest})
