"""What the leader needs of its surroundings: a store, a broker, a clock. The simulation has its own of each.

Every call that leaves the process may take long, fail, or succeed without an answer; each says what it
raises.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias
from uuid import UUID

import msgspec

from turnstile.common.domain.errors import Code
from turnstile.common.domain.states import Status
from turnstile.common.worker_protocol import FromWorker, ToSession
from turnstile.executor.leader.records import EventRow, Known, Loaded, Turn


class StoreError(Exception):
    """A call to the store did not succeed."""


class OutcomeUnknown(StoreError):
    """The statement may have committed, may commit later, or never."""


class Deposed(StoreError):
    """Another executor leads, or this one under another epoch: nothing was written."""


class TurnRefused(StoreError):
    """The database refused the content of the turn; nothing was written.

    `execution_ids` names the executions whose request or result it cannot store; empty: a constraint or
    something unknown refused it.
    """

    def __init__(self, message: str, execution_ids: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.execution_ids = tuple(execution_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestTurn:
    """The newest turn row of the installation."""

    epoch: int
    number: int


class Store(Protocol):
    """The database, as the leader uses it. Every call has its own time-out."""

    async def take_over(self, executor_id: str, *, above: int = 0, only_if_leading: bool = False) -> int:
        """Raise the epoch above all earlier ones, and return it.

        It is also above `above` and the database's clock, it is none that a failover has lost, and its
        commit is known. Waits for a turn in flight, and terminates its session after a second. With
        `only_if_leading`, nothing changes and Deposed is raised if the fence names another executor. Raises
        OutcomeUnknown.
        """

    async def announce(self, executor_id: str, *, has_broker: bool) -> bool:
        """Say that this executor could lead; return whether another one, with the broker, said so lately.

        Raises OutcomeUnknown.
        """

    async def resign(self) -> None:
        """Let go of what shows candidates that this leader lives: they take over at once."""

    async def load(self, epoch: int) -> Loaded:
        """Read everything, in one snapshot that is newer than the epoch. Raises OutcomeUnknown, Deposed."""

    async def write(self, turn: Turn) -> None:
        """Write a turn in one statement that checks epoch and executor.

        Raises OutcomeUnknown, Deposed, TurnRefused.
        """

    async def newest_turn(self) -> NewestTurn | None:
        """Return the newest turn row. Raises OutcomeUnknown."""

    async def leader_seen(self) -> tuple[NewestTurn | None, bool]:
        """Return the newest turn row, and whether the session of its leader is known to be gone."""

    async def look_up(
        self, delivery_keys: Sequence[UUID], idempotency_keys: Sequence[str], execution_ids: Sequence[int]
    ) -> Mapping[UUID | str | int, Known]:
        """Return the executions admitted under these keys or with these ids. Raises OutcomeUnknown."""

    async def inbox(self, count: int) -> Sequence["InboxRow"]:
        """Return the first commands that no turn has decided. Raises OutcomeUnknown."""

    async def outcomes(self, execution_ids: Sequence[int]) -> Mapping[int, "Outcome"]:
        """Return those of these executions that have ended. Raises OutcomeUnknown."""

    async def requests_of(self, execution_ids: Sequence[int]) -> Mapping[int, "StoredRequest"]:
        """Return what offers need of these executions. Raises OutcomeUnknown."""

    async def traces_of(self, execution_ids: Sequence[int]) -> Mapping[int, str]:
        """Return the trace contexts of these executions, of those that have one. Raises OutcomeUnknown."""

    async def events(self, after_id: int) -> Sequence[EventRow]:
        """Return the first stored events behind this one. Raises OutcomeUnknown."""


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an execution's row that its offer needs."""

    parameters: bytes
    metadata: bytes | None = None
    traceparent: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """An ended execution as its event shows it."""

    execution_id: int
    action_ref: str
    status: Status
    attempt: int
    result: bytes | None
    error: tuple[str, str] | None
    completed_at: float
    traceparent: str | None = None


class Singleton(NamedTuple):
    """The name that one execution of an action has at a time: `messages.Singleton`."""

    key: str
    when: Literal["waiting", "waiting_or_running"]
    then: Literal["return_existing", "refuse", "cancel_running"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """An admission request that was validated at the door."""

    action_ref: str
    parameters: bytes
    request_hash: UUID
    key: str = ""
    """The queue; empty: the concurrency key, or what the action's pointer finds in the parameters."""
    concurrency_key: str | None = None
    """As the submitter gave it: checked against the action."""
    priority: int | None = None
    """None: 3, or the action's `priority_min` if that is larger."""
    may_be_urgent: bool = False
    """The action's `priority_min` does not bind this submitter."""
    run_at: float | None = None
    delay_seconds: float | None = None
    """From its admission, which sets `run_at`: the clock of a submitter does not count."""
    ttl_seconds: float | None = None
    timeout_seconds: float | None = None
    idempotency_key: str | None = None
    callback_url: str | None = None
    """None: the action's."""
    singleton: Singleton | None = None
    metadata: bytes | None = None
    traceparent: str | None = None
    retry_of: int | None = None
    """The ended execution whose request this repeats: its key and priority were accepted before."""
    edited: Sequence[str] | None = None
    """Names of the parameters that differ from those of `retry_of`; None: it repeats them unchecked."""
    changed_by: Mapping[str, Any] | None = None
    """The operator who retries: `name`, `address`, `channel`."""
    is_submission: bool = False
    """From `turnstile.submit`: no client waits for an answer, and a refused one is a dead letter too."""
    body_id: UUID | None = None
    """Where its parameters and metadata are stored already, because they are large."""
    refusal: tuple[Code, str] | None = None
    """Why its parameters do not fit. A copy of an admitted request gets that execution all the same."""

    @property
    def repeats_accepted(self) -> bool:
        """Whether all of it was accepted before."""
        return self.retry_of is not None and self.edited is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRequest:
    """What `turnstile.submit` stored or a queue brought, and the leader cannot read."""

    code: Code
    message: str
    body: bytes | None
    """None: it is larger than what the leader reads, or the delivery has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """A cancel, by id or by idempotency key; of something unknown it waits for a while."""

    execution_id: int | None
    idempotency_key: str | None
    reason: str
    properties: str | None = None
    """Of its message, as JSON: `dead_letters.envelope.kept_properties`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelExecutions:
    """A cancel of known executions by an operator, in this order; unknown ones are left out."""

    execution_ids: tuple[int, ...]
    reason: str | None = None
    changed_by: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionCommand:
    """A change of a definition, as an operator asked for it; `definition` is None for a deletion.

    A key has the name `ref/key`, and both in its definition; a worker's is `{"is_draining": ...}`, or
    `{"no_reclaim": true}` to be told for how long nothing of it is reclaimed.
    """

    kind: Literal["action", "key", "resource", "pool", "schedule", "worker"]
    name: str
    definition: Mapping[str, Any] | None
    """Whole and checked, or with `is_patch` some fields as they were given."""
    is_patch: bool = False
    """The fields replace those of the stored definition; so also inside `retry` and `weights`."""
    if_match: str | None = None
    if_none_match: str | None = None
    """Headers with tags of definitions (`definition_tag`): what is stored must be in that state."""
    cancel_max: int = 1000
    """Most waiting executions that are cancelled with a deleted action."""
    changed_by: Mapping[str, Any] | None = None
    """`name`, `address`, `channel`."""


ExecutionCommand: TypeAlias = Request | RefusedRequest | CancelRequest | CancelExecutions
Command: TypeAlias = ExecutionCommand | DefinitionCommand


class InboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """A command that HTTP, CLI or `turnstile.submit` stored: `id` is its order, `command_id` its identity."""

    id: int
    command_id: UUID
    body: Command | None
    """None: it was decided before, and stored once more."""
    cancelled: int = 0
    """How many executions earlier turns have cancelled with the action that it deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A message of the leader to itself: what was sent to this queue before it has been received."""

    epoch: int
    number: int


class Delivery(msgspec.Struct, frozen=True):
    """One message that the leader has taken from a queue and not acknowledged."""

    queue: str
    tag: Any
    """Identifies it to the broker port."""
    body: Request | CancelRequest | FromWorker | Probe | RefusedRequest
    delivery_key: UUID
    """Of message id and body: the same for a copy of the same message."""
    reply_to: str | None = None
    correlation_id: str | None = None
    is_redelivered: bool = False
    key_identifies: bool = True
    """False: an equal message is another one (it has no message id), or an idempotency key identifies it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One message to publish: to a worker's session, to a client, to listeners, or to the leader itself."""

    to: str
    """`session <worker id> <number>`, `reply <queue>`, `event`, or the name of one of the leader's queues."""
    body: ToSession | Probe | Mapping[str, Any]
    of: Delivery | None = None
    """The message that a reply or a dead letter is about: it is acknowledged behind it."""


class StatusChanged(NamedTuple):
    """Advisory: the status of an execution changed. May be lost."""

    execution_id: int
    action_ref: str
    status: Status
    previous_status: Status | None
    """None: it was admitted."""
    attempt: int
    changed_at: datetime


class Broker(Protocol):
    """The broker, as the leader uses it. Its consumers are single active ones on one connection."""

    async def open(self) -> None:
        """Begin to consume the leader's queues. Raises BrokerUnavailable."""

    async def close(self) -> None:
        """Stop consuming; what was not acknowledged is redelivered to the next consumer."""

    def take(self, queue: str, count: int) -> list[Delivery]:
        """Return up to `count` deliveries that have arrived, in order; empty while not connected."""

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge; it is lost with the connection, and then they are delivered again."""

    async def publish(self, publications: Sequence[Publication]) -> list[bool]:
        """Publish in order; return for each whether it was routed, once all are confirmed.

        Raises BrokerUnavailable: each of them may have arrived or may arrive later.
        """

    async def publish_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Publish events to listeners, on a connection of its own; return once all are confirmed.

        The queue of a listener that hangs stops its whole connection. Raises BrokerUnavailable.
        """

    def announce_changes(self, changes: Iterable[StatusChanged]) -> None:
        """Publish status changes soon, on the connection of events; they may be lost, even unread."""

    @property
    def is_open(self) -> bool:
        """Whether the consuming connection stands."""


class BrokerUnavailable(Exception):
    """The broker did not answer in time, or the connection is gone."""


class Clock(Protocol):
    """A monotonic clock that also counts while the machine sleeps, in seconds."""

    def monotonic(self) -> float:
        """Return the present instant of this process's clock."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def wait(self, seconds: float) -> None:
        """Wait until something arrived for this process, at most so long."""
