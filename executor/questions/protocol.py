"""The questions that only the leader can answer, and their answers, as values and as JSON.

In: what the API, the dashboard, the CLI and the metrics need of what lives. Out: bytes for a carrier
(`executor.asking`), and the same values on its other side. Executors of two versions may meet: unknown fields
are ignored, and what cannot be read counts as no answer. Instants are seconds since 1970, a key of "" means
none, and None means that a field does not apply.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from turnstile.common.domain.states import Status
from turnstile.executor.questions.estimate import Interval
from turnstile.executor.questions.explain import Bound, Bounds, Closed, Counted, Explanation, Step

EXPLAINED_MAX: Final = 100
"""Most executions in one `Explain`."""
LIVE_MAX: Final = 1000
"""Most executions in one `Live`."""
PAGE_MAX: Final = 1000
"""Most items in any other answer."""

A = TypeVar("A")


class InvalidQuestion(ValueError):
    """A question that no executor can answer."""


# Answers.


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """An execution as its row names it: this finds it also where the leader knows only that it waits."""

    id: int
    action_ref: str
    key: str = ""
    priority: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveExecution:
    """An execution that has not ended."""

    id: int
    status: Status
    action_ref: str
    key: str
    priority: int
    attempt: int = 0
    """Number of its latest grant."""
    failures: int = 0
    reclaims: int = 0
    queued_at: float
    """Its first enqueue; of one that was never due: its admission."""
    expires_at: float | None = None
    due_at: float | None = None
    """While it is delayed."""
    worker_id: str | None = None
    granted_at: float | None = None
    started_at: float | None = None
    cancel_reason: str | None = None
    """It was asked to stop, for this reason."""
    cancel_requested_at: float | None = None
    timeout_seconds: float | None = None
    gates: tuple[tuple[str, int, float, float], ...] = ()
    """The gates that it passed: name, units, and the instants of arrival and passage."""
    is_gated: bool = False
    """It passes more gates than its queue and its pool: a total or resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One execution and why it waits. Without `live` it has ended, or its admission is not committed."""

    id: int
    live: LiveExecution | None = None
    explanation: Explanation | None = None
    estimate: Interval | None = None


class KeyStats(NamedTuple):
    """The queue of one key."""

    key: str
    queue_length: int
    active_count: int
    held_waiting: int
    max_concurrent: int | None
    """Its own limit, or that of the action."""


class QueueStats(NamedTuple):
    """The queues of an action. `queue_length` has what waits at later gates.

    It is the sum of `waiting`, and of `why`.

    `active_count` has at most the limit of each queue: what waits in a run is in neither (`runs`).
    """

    queue_length: int
    active_count: int
    held_waiting: int
    delayed: int
    max_concurrent: int | None
    oldest_enqueued_at: float | None
    """Of the smallest id that waits."""
    total_enqueued: int
    total_completed: int
    paused: bool
    waiting: dict[Counted, int]
    """How many wait for what first."""
    why: list[tuple[Bound, int]]
    """How many wait for what in the end, the most first."""
    gates: tuple[Step, ...]
    """What is held of its gates, but for its queues."""
    by_key: tuple[KeyStats, ...]
    """The longest queues of keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionStats:
    """The counts of one action; None: it is unknown."""

    action_ref: str
    stats: QueueStats | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsPage:
    """The counts of actions, in the order of their names; `next_ref`: the next page begins behind it."""

    items: tuple[ActionStats, ...]
    next_ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPlace:
    """An execution that waits in an order."""

    id: int
    position: int
    """In the queue of its key, or in the order of the resource or pool."""
    action_ref: str
    key: str
    priority: int
    units: int = 1
    queued_at: float
    arrived_at: float | None = None
    """At a resource; None: it waits there for its queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHolder:
    """An execution that holds a slot, units or a worker slot."""

    id: int
    action_ref: str
    key: str
    status: Status
    attempt: int
    units: int = 1
    worker_id: str | None
    granted_at: float | None
    """None: it waits at a later gate."""
    started_at: float | None
    passed_at: float | None = None
    """At the resource; else in its queue."""
    is_stopping: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePage:
    """What waits in the queues of an action; None in place of this: there is no such action."""

    items: tuple[WaitingPlace, ...]
    holders: tuple[SlotHolder, ...]
    next: tuple[int, int] | None = None
    """The next page begins behind this priority and id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePage:
    """A resource or pool: who waits for it, in order, and who holds it."""

    name: str
    capacity: int
    paused: bool
    order: Literal["arrival", "fair"]
    held: int
    held_waiting: int
    waiting: int
    wanted: int
    items: tuple[WaitingPlace, ...]
    holders: tuple[SlotHolder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """A worker process that the leader knows."""

    worker_id: str
    name: str
    session: int
    pools: tuple[str, ...]
    actions: tuple[str, ...] | None
    concurrency: int
    running: int
    """Executions that it has reported as started."""
    is_taking: bool
    is_draining: bool
    is_answered: bool
    """It has answered the welcome of this epoch."""
    is_lost: bool = False
    """It is told so, and its work begins again when that is confirmed."""
    lease_seconds: float
    lease_left_seconds: float
    """Below 0: it is overdue."""
    heard_seconds_ago: float | None
    """None: not by this leader."""
    registered_at: float
    draining_at: float | None = None
    draining_count: int | None = None
    """What it held when it was asked to drain."""
    not_ready: str | None = None
    """Why it takes nothing, other than that it drains."""
    about: Mapping[str, Any]
    """As in its hello, but for lists: host, pid, version and durations. Its row has all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersPage:
    """Workers in the order of their ids; `next_id`: the next page begins behind it."""

    items: tuple[WorkerState, ...]
    next_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDetail:
    """A worker and what it holds, by id, at most `PAGE_MAX`; None in place of this: it is unknown."""

    worker: WorkerState
    held: tuple[LiveExecution, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceGauge:
    """A resource in numbers."""

    name: str
    capacity: int
    held: int
    held_waiting: int
    waiting: int
    paused: bool
    use: tuple[float | None, ...] = ()
    """Units held, of each of the last minutes the mean, the oldest first; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGauge:
    """A pool in numbers."""

    name: str
    capacity: int
    held: int
    waiting: int
    wanted: int
    waiting_queues: int
    """Queues with executions that wait only for a worker."""
    paused: bool
    served: tuple[str, ...]
    """Actions that a worker of the pool takes, by name, at most `PAGE_MAX`."""
    use: tuple[float | None, ...] = ()
    """Worker slots held, of each of the last minutes the mean, the oldest first; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateGauges:
    """All resources and pools, by name, at most `PAGE_MAX` of each."""

    resources: tuple[ResourceGauge, ...]
    pools: tuple[PoolGauge, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StarvedKey:
    """The key that waits longest without a slot while other keys hold the total of its action."""

    key: str
    waiting: int
    oldest_enqueued_at: float
    holder: str
    """The key that holds most slots."""
    holder_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionStop:
    """What keeps the next execution of an action from its start; a limit only where it is 0."""

    action_ref: str
    pool: str
    reason: Counted
    closed: Closed | None
    resource: str
    """The resource, or the owner of the rate; "": the action or its pool."""
    units: int
    """What one execution needs of it."""
    capacity: int
    """Slots, units, worker slots, or starts per `per_seconds`."""
    held: int
    per_seconds: float
    waiting: int
    """What the limits of the queues let start; if nothing can start, all that waits in them."""
    oldest_enqueued_at: float
    starved: StarvedKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleUnits:
    """A resource whose units are held by executions that wait at a later gate."""

    resource: str
    rank: int
    capacity: int
    held_waiting: int
    reason: Counted
    """What the first of them waits for."""
    later: str
    """The resource for which it waits; "": none."""
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopsOfActions:
    """At most `PAGE_MAX` of each; of the actions those whose work has waited longest."""

    actions: tuple[ActionStop, ...]
    idle: tuple[IdleUnits, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """One queue as the dashboard lists it. All zero: nothing waits there or is held any more."""

    action_ref: str
    key: str
    length: int = 0
    """With what waits at later gates."""
    active: int = 0
    held_waiting: int = 0
    oldest_enqueued_at: float | None = None
    head_id: int | None = None
    """The smallest id that waits."""
    max_concurrent: int | None = None
    startable: int = 0
    """How many of those that hold no units its limit lets start."""
    limited: int = 0
    """How many of them wait for nothing but a slot."""
    enqueued: int = 0
    """Since changes are noted: with a new cursor it begins anew."""
    completed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    """What the queues of an action share."""

    action_ref: str
    pool: str
    paused: bool
    enqueued: int
    completed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesPage:
    """The queues that changed since the cursor, at most as many as were asked for, and their actions."""

    cursor: str
    """Ask with this one next."""
    is_new: bool
    """The cursor was unknown: the pages from this one on list every queue, and what is not among them is
    idle."""
    has_more: bool
    queues: tuple[QueueRow, ...]
    actions: tuple[ActionRow, ...]
    deleted: tuple[str, ...]
    """Actions that are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderState:
    """The leader itself."""

    executor_id: str
    epoch: int
    turn: int
    led_seconds: float
    has_broker: bool
    actions: int
    waiting: int
    at_workers: int
    delayed: int
    workers: int
    unfinished: bool
    """The last turn reached its bound: more can be decided at once."""
    events_stored: int
    """Events for listeners that are not published yet."""
    batches_unpublished: int
    """Batches of messages that the broker has not taken yet."""
    parameters_bytes: int
    """Of requests that are kept in memory."""
    messages_refused: int
    """Messages without the secret of their worker."""
    comparisons: int = 0
    """How often this process compared its memory with the rows."""
    differences: tuple[str, ...] = ()
    """What differed the last time that something did, in sentences, a bounded number."""


# Questions: each is a subclass of `Question` of its answer.


class Question(Generic[A]):
    """A question whose answer is an A."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explain(Question[tuple[Explained, ...]]):
    """Why these executions wait, where they stand, and when they will start; in the order asked."""

    executions: tuple[Execution, ...]
    with_estimate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Live(Question[tuple[LiveExecution | None, ...]]):
    """What these executions do now, in the order asked; None: ended, so read its row again."""

    executions: tuple[Execution, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats(Question[StatsPage]):
    """The counts of these actions, or of all, a page at a time."""

    action_refs: tuple[str, ...] | None = None
    after_ref: str = ""
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundsOf(Question[tuple[Bounds, ...]]):
    """What keeps the executions of these actions waiting; an unknown one is left out."""

    action_refs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOf(Question[QueuePage | None]):
    """What waits in the queues of an action, or in that of one key, and who holds their slots."""

    action_ref: str
    key: str | None = None
    after: tuple[int, int] = (0, 0)
    """Behind this priority and id."""
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceQueue(Question[GatePage | None]):
    """Who waits for a resource, and who holds it."""

    name: str
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolQueue(Question[GatePage | None]):
    """Who waits only for a worker of a pool, and who holds worker slots."""

    name: str
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers(Question[WorkersPage]):
    """All workers, or those that serve an action, a page at a time."""

    after_id: str = ""
    limit: int = 100
    action_ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOf(Question[WorkerDetail | None]):
    """One worker, and what it holds."""

    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates(Question[GateGauges]):
    """All resources and pools in numbers."""

    with_use: bool = False
    """Also their use over the last hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops(Question[StopsOfActions]):
    """What keeps the actions with waiting work from their next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes(Question[ChangesPage]):
    """The queues that changed since the last answer; "" to begin."""

    cursor: str = ""
    limit: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Leading(Question[LeaderState]):
    """Who leads, and in what state."""


_ANSWERS: Final[Mapping[type[Any], Any]] = {
    Explain: tuple[Explained, ...],
    Live: tuple[LiveExecution | None, ...],
    Stats: StatsPage,
    BoundsOf: tuple[Bounds, ...],
    QueueOf: QueuePage | None,
    ResourceQueue: GatePage | None,
    PoolQueue: GatePage | None,
    Workers: WorkersPage,
    WorkerOf: WorkerDetail | None,
    Gates: GateGauges,
    Stops: StopsOfActions,
    Changes: ChangesPage,
    Leading: LeaderState,
}
_DECODERS: Final = {kind: msgspec.json.Decoder(answer) for kind, answer in _ANSWERS.items()}
_QUESTIONS: Final = {kind.__name__: msgspec.json.Decoder(kind) for kind in _ANSWERS}
_encode: Final = msgspec.json.Encoder().encode

# Replies.


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Generic[A]):
    """An answer, true after the commit of this turn."""

    epoch: int
    turn: int
    at: float
    """By the database's clock, as the leader carries it forward."""
    body: A


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """There is no answer now: what the database knows is all that can be said."""

    why: Literal["not_leading", "no_answer", "overloaded", "failed"]
    """The executor that was asked does not lead; there was no answer in time, or something unreadable; too
    many questions wait already; the leader failed to answer this one."""
    message: str


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    ask: str
    question: msgspec.Raw


class _Reply(msgspec.Struct, frozen=True, kw_only=True):
    epoch: int = 0
    turn: int = 0
    at: float = 0.0
    body: msgspec.Raw = msgspec.Raw(b"null")
    unanswered: Unanswered | None = None


_ASKED: Final = msgspec.json.Decoder(_Asked)
_REPLIES: Final = msgspec.json.Decoder(_Reply)


def pack_question(question: Question[Any]) -> bytes:
    """Return a question as JSON."""
    return _encode(_Asked(ask=type(question).__name__, question=msgspec.Raw(_encode(question))))


def read_question(data: bytes) -> Question[Any]:
    """Return a question whose bounds hold. Raises InvalidQuestion."""
    try:
        asked = _ASKED.decode(data)
        question: Question[Any] = _QUESTIONS[asked.ask].decode(asked.question)
    except KeyError as error:
        raise InvalidQuestion(f"unknown question {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidQuestion(str(error)) from error
    check(question)
    return question


def check(question: Question[Any]) -> None:
    """Raise InvalidQuestion where an answer would have no bound."""
    match question:
        case Explain(executions=executions) if len(executions) > EXPLAINED_MAX:
            raise InvalidQuestion(f"{len(executions)} executions; expected at most {EXPLAINED_MAX}")
        case Live(executions=executions) if len(executions) > LIVE_MAX:
            raise InvalidQuestion(f"{len(executions)} executions; expected at most {LIVE_MAX}")
        case Stats(action_refs=refs) | BoundsOf(action_refs=refs) if (
            refs is not None and len(refs) > PAGE_MAX
        ):
            raise InvalidQuestion(f"{len(refs)} actions; expected at most {PAGE_MAX}")
        case ResourceQueue(offset=offset) | PoolQueue(offset=offset) if offset < 0:
            raise InvalidQuestion(f"offset {offset}; expected 0 or more")
    limit = getattr(question, "limit", 1)
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidQuestion(f"limit {limit}; expected 1 to {PAGE_MAX}")


def pack_answer(answered: Answered[object]) -> bytes:
    """Return an answer as JSON."""
    body = msgspec.Raw(_encode(answered.body))
    return _encode(_Reply(epoch=answered.epoch, turn=answered.turn, at=answered.at, body=body))


def pack_unanswered(unanswered: Unanswered) -> bytes:
    """Return the reply without an answer as JSON."""
    return _encode(_Reply(unanswered=unanswered))


def read_reply(question: Question[A], data: bytes) -> Answered[A] | Unanswered:
    """Return the reply to a question; one that cannot be read is no answer."""
    try:
        reply = _REPLIES.decode(data)
        if reply.unanswered is not None:
            return reply.unanswered
        body: A = _DECODERS[type(question)].decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Unanswered(why="no_answer", message=f"the leader's answer cannot be read: {error}")
    return Answered(epoch=reply.epoch, turn=reply.turn, at=reply.at, body=body)
