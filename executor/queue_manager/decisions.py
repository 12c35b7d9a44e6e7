"""What a turn decided: the leader writes it in one transaction, and publishes it afterwards.

Each list is in the order of decision. The objects of the state that changed are named in `changed` and the
fields after it: the ledger writes what they are after the turn.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from turnstile.common.domain.errors import Code
from turnstile.common.domain.identifiers import Grant
from turnstile.common.domain.states import Status
from turnstile.executor.queue_manager.inputs import Cancel, Ended

if TYPE_CHECKING:
    from turnstile.executor.queue_manager.lines import FairClock
    from turnstile.executor.queue_manager.rates import RateWindow
    from turnstile.executor.queue_manager.state import Execution, Queue, Worker


class Admitted(NamedTuple):
    """A request became an execution."""

    id: int
    queue: "Queue"
    priority: int
    queued_at: float
    due_at: float | None
    """None: it waits in its queue; else it is delayed until then."""
    expires_at: float
    position: int | None
    source: Any


class Refused(NamedTuple):
    """A request that can never be accepted unchanged."""

    code: Code
    message: str
    source: Any


class Granted(NamedTuple):
    """An execution is offered to a worker."""

    id: int
    grant: Grant
    attempt: int
    queue: "Queue"
    worker: "Worker"
    expires_at: float
    timeout_seconds: float | None


class Finished(NamedTuple):
    """An execution reached its terminal state."""

    id: int
    status: Status
    queue: "Queue"
    attempt: int
    error: tuple[str, str] | None
    """Type and message where the leader decided the end; None: the report has them."""
    worker_id: str | None
    scheduled_at: float | None
    started_at: float | None
    completed_at: float
    passages: tuple["Passage | Waited", ...]
    report: Ended | None
    failures: int
    reclaims: int
    queued_at: float
    previous: Status


class Moved(NamedTuple):
    """The status of an execution changed, and it was neither admitted, granted nor ended."""

    id: int
    queue: "Queue"
    previous: Status
    status: Status
    attempt: int
    at: float


class Passage(NamedTuple):
    """A gate that an execution passed, with its units and instants."""

    gate: str
    units: int
    arrived_at: float
    passed_at: float


class Waited(NamedTuple):
    """A gate at which an execution waited when it ended, as the last of its passages."""

    gate: str
    units: int
    arrived_at: float
    passed_at: None = None


class AttemptOver(NamedTuple):
    """An attempt ended, and its execution did not: it is retried, was reclaimed, or was returned."""

    id: int
    attempt: int
    outcome: str
    """A status, `reclaimed` or `returned`."""
    worker_id: str
    scheduled_at: float
    started_at: float | None
    ended_at: float
    report: Ended | None


class Asked(NamedTuple):
    """A worker is asked to stop an attempt: always before a new grant of the execution is offered."""

    worker_id: str
    execution_id: int
    grant: Grant
    reason: str


class Recalled(NamedTuple):
    """A worker is asked to return what it has not started of a queue: every grant up to this one."""

    queue: "Queue"
    worker_id: str
    barrier: Grant


class Limited(NamedTuple):
    """A worker is told how many of a queue may run at once: it may have heard another number."""

    queue: "Queue"
    worker_id: str


class Cancelled(NamedTuple):
    """The answer to a cancel: the status that the execution has now, and whether it had ended before."""

    status: Status | None
    had_ended: bool
    cancel: Cancel


@dataclass(slots=True)
class Decisions:
    """Everything that one turn decided."""

    now: float
    admitted: list[Admitted] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    granted: list[Granted] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    attempts: list[AttemptOver] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    limited: list[Limited] = field(default_factory=list)
    recalled: list[Recalled] = field(default_factory=list)
    cancelled: list[Cancelled] = field(default_factory=list)
    deleted: list[tuple[bool, int, int, Any]] = field(default_factory=list)
    """For each `DeleteAction`: whether it was deleted, how many waited and ran, and its source."""
    stale: list[Any] = field(default_factory=list)
    """Reports about grants that are over: nothing changed, and they can be acknowledged."""
    changed: dict[int, "Execution | None"] = field(default_factory=dict)
    """Executions that have more to remember than that they wait or were granted; None: they have ended."""
    charged: dict["FairClock", dict[tuple[int, str], None]] = field(default_factory=dict)
    """Fair gates, each with the priorities and flows whose tags changed."""
    started: dict["RateWindow", int] = field(default_factory=dict)
    """Rates, each with the number of its starts."""
    has_forgotten: bool = False
    """A fair gate or a rate is gone or has changed: the ledger needs a checkpoint, as journals only add."""
    passed_over: int = 0
    """How often an execution passed another one, which no worker could take."""
    is_unfinished: bool = False
    """The bound of the turn was reached: more can be decided at once."""
    next_at: float = float("inf")
    """When time alone leads to the next decision."""

    def charge(self, clock: "FairClock", priority: int, flow: str, units: int, weight: int) -> None:
        """Let an execution of a flow pass a fair gate."""
        clock.charge(priority, flow, units, weight)
        self.charged.setdefault(clock, {})[priority, flow] = None

    def start(self, window: "RateWindow") -> None:
        """Let an execution have a start of a rate, which was kept for it."""
        window.count(self.now)
        self.started[window] = self.started.get(window, 0) + 1

    def forget(self, gone: "FairClock | RateWindow | None") -> None:
        """Let what earlier turns told of a fair gate or a rate mean nothing to another one of this name."""
        self.has_forgotten |= gone is not None
