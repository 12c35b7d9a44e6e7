"""The recording of one scenario: tables, faults, limit changes, counters; it can be saved and loaded again.

The tables are numpy structured arrays with one row per event. Instants are int64 nanoseconds since 1970 on
the clock of this host; `NEVER` is what has not happened and sorts last. Instants of executions and attempts
are those of the database, instants of runs those of the monotonic clock of the action's host. A queue has the
number action * keys + key, from 0.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from turnstile.common.domain.states import Status
from turnstile.stress.scenario import FaultKind, Scenario

Table = NDArray[np.void]
"""A structured array of one of the types below."""
Instants = NDArray[np.int64]

NEVER: Final = np.iinfo(np.int64).max
NONE: Final = -1
"""An unknown number."""
SECOND: Final = 1_000_000_000

STATUSES: Final = tuple(Status)
"""A status is stored as its index here."""


class Answer(IntEnum):
    """The executor's reply to a request."""

    NONE = 0
    ACCEPTED = 1
    DUPLICATE = 2
    """Accepted before: the request was repeated after a lost reply."""
    REJECTED = 3


class Outcome(IntEnum):
    """The end of an attempt."""

    OPEN = 0
    """Not ended."""
    ENDED = 1
    """Together with the execution."""
    RETRIED = 2
    RECLAIMED = 3
    """The worker was lost."""
    RETURNED = 4
    """The worker was shut down gracefully."""


NOT_ENDED: Final[Mapping[str, Outcome]] = {
    "retried": Outcome.RETRIED,
    "reclaimed": Outcome.RECLAIMED,
    "returned": Outcome.RETURNED,
}
"""As the installation names the end of an attempt that did not end its execution."""


class RunEnd(IntEnum):
    """The end of a physical run."""

    STOPPED = 0
    """Recorded by the action."""
    KILLED = 1
    """Its process exited; `stopped_at` is when that was observed."""
    UNKNOWN = 2
    """Neither was observed; `stopped_at` is NEVER."""


ORDER: Final = np.dtype(
    [
        ("submitter", "i2"),
        ("queue", "i4"),
        ("duration_us", "i4"),
        ("sent_at", "i8"),
        ("confirmed_at", "i8"),
        ("answered_at", "i8"),
        ("execution_id", "i8"),
        ("answer", "u1"),
        ("sendings", "u2"),
    ]
)
"""A request; its row is its number, in the order of sending. `sent_at` is the first sending."""

EXECUTION: Final = np.dtype(
    [
        ("execution_id", "i8"),
        ("number", "i8"),
        ("queue", "i4"),
        ("status", "u1"),
        ("attempt", "i2"),
        ("created_at", "i8"),
        ("completed_at", "i8"),
    ]
)
"""An execution at the end, in the order of ids. `number`: of its request; NONE: not of this scenario."""

ATTEMPT: Final = np.dtype(
    [
        ("execution_id", "i8"),
        ("attempt", "i2"),
        ("queue", "i4"),
        ("waiting_since", "i8"),
        ("granted_at", "i8"),
        ("started_at", "i8"),
        ("ended_at", "i8"),
        ("outcome", "u1"),
        ("worker", "i4"),
    ]
)
"""A grant to a worker. `worker`: index in `Recording.workers`; NONE: not known."""

RUN: Final = np.dtype(
    [
        ("number", "i8"),
        ("execution_id", "i8"),
        ("attempt", "i2"),
        ("queue", "i4"),
        ("process", "i4"),
        ("started_at", "i8"),
        ("stopped_at", "i8"),
        ("end", "u1"),
    ]
)
"""A physical run, recorded by the action. `process`: a number for each process."""


STAY: Final = np.dtype(
    [
        ("execution_id", "i8"),
        ("gate", "i4"),
        ("units", "i4"),
        ("arrived_at", "i8"),
        ("passed_at", "i8"),
        ("priority", "i1"),
    ]
)
"""A gate that the last attempt of an ended execution passed, in the order of ids and of its route.

`gate`: index in `GateRecords.names`. `priority`: of the execution.
"""


def empty(dtype: np.dtype[Any], rows: int) -> Table:
    """Return a table of unknown values: numbers NONE, instants NEVER, codes 0."""
    table = np.zeros(rows, dtype)
    assert dtype.names is not None
    for name in dtype.names:
        if name.endswith(("_at", "_since")):
            table[name] = NEVER
        elif dtype[name].kind == "i":
            table[name] = NONE
    return table


def status_code(status: Status) -> int:
    """Return the stored number of a status."""
    return STATUSES.index(status)


_TABLES: Final = ("orders", "executions", "attempts", "runs", "stays")


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFault:
    """A fault that was injected; instants in nanoseconds."""

    kind: FaultKind
    target: str
    """For display, such as `worker-2`."""
    began_at: int
    healed_at: int
    """When it was repaired: process up and ready, limit restored."""
    lost_worker: str | None = None
    """The id of the killed or paused worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChange:
    """A change of a limit, at some instant between the two."""

    action: int
    limit: int | None
    asked_at: int
    answered_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedChange:
    """A change of a definition, as the installation recorded it; its fields are those of its log."""

    at: int
    old: Mapping[str, Any]
    new: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDefinition:
    """The definition of an action or resource at the end, flat as in the log of changes."""

    now: Mapping[str, Any]
    changes: tuple[RecordedChange, ...]
    """Since the beginning of the scenario."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRecords:
    """The gates of a scenario; `Recording.stays` says when which execution passed them."""

    names: tuple[str, ...]
    actions: Mapping[str, RecordedDefinition]
    resources: Mapping[str, RecordedDefinition]
    changed: int
    """Number of changes during the load."""
    settling_ns: int
    """The longest time from the request of a change to its answer: until then, both definitions may apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionCounters:
    """The counters of `queue-stats` for one action, before the first request and at the end."""

    enqueued_before: int
    enqueued: int
    completed_before: int
    completed: int
    queue_length: int
    active_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result of `GET /audit` at the end, with the checks that found faults."""

    clean: bool
    faults: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Everything that was observed of one scenario."""

    scenario: Scenario
    began_at: int
    """Before the first request."""
    ended_at: int
    """When everything had ended, or nothing changed any more."""
    opened_at: int = NEVER
    """When paused actions were resumed; NEVER: there were none."""
    orders: Table
    executions: Table
    attempts: Table
    runs: Table
    stays: Table = field(default_factory=lambda: np.empty(0, STAY))
    workers: tuple[str, ...]
    faults: tuple[InjectedFault, ...] = ()
    limit_changes: tuple[LimitChange, ...] = ()
    """After the setup of the scenario."""
    counters: tuple[ActionCounters, ...] = ()
    """Of each action by its number; empty where they could not be read."""
    audit: Audit | None = None
    clock_error_ns: int = 0
    """The possible difference to clocks of other hosts; 0: everything ran on this host."""
    worker_capacity: int = 0
    """How many executions the live workers run at once, as read at the end; 0: not known."""
    idle_allowed_seconds: float = 2.0
    """The tick of the installation's watchdog, with a margin."""
    collapses: tuple[str, ...] = ()
    """Services that ended by themselves, one sentence each; only of a private installation."""
    gates: GateRecords | None = None
    pool: RecordedDefinition | None = None
    """The settings of the pool of the stress actions; None: not known."""

    def save(self, folder: Path) -> None:
        """Write it into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folder / "tables.npz", **{name: getattr(self, name) for name in _TABLES})
        rest = {name: value for name, value in asdict(self).items() if name not in _TABLES}
        (folder / "recording.json").write_text(json.dumps(rest, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote; raises OSError or ValueError."""
        rest = json.loads((folder / "recording.json").read_text(encoding="utf-8"))
        with np.load(folder / "tables.npz") as tables:
            columns: dict[str, Any] = {name: tables[name] for name in _TABLES if name in tables}
        hints = {name: kind for name, kind in cls.__annotations__.items() if name not in _TABLES}
        return cls(
            **columns,
            **{
                name: TypeAdapter(hint).validate_python(rest[name])
                for name, hint in hints.items()
                if name in rest
            },
        )
