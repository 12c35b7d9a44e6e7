"""The schemas of what the HTTP API shows of executions, queues, actions and workers (P10)."""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import AwareDatetime, Field, JsonValue

from turnstile.common.action_definition import ActionDefinition
from turnstile.common.domain.states import Status
from turnstile.common.schedules import ScheduleDefinition
from turnstile.common.schemas import EstimatedStart, Schema
from turnstile.executor.callers import Channel
from turnstile.executor.definitions import PoolDefinition, ResourceDefinition
from turnstile.executor.questions.explain import CAUSES_MAX, HOLDERS_MAX, POSITIONS_MAX
from turnstile.executor.questions.use import MINUTES

USERS_MAX = 100
"""Most users of a resource, or actions of a pool, in one answer."""
RUNS_MAX = 200
"""Most running attempts of a worker in one answer."""
SERVED_MAX = 500
"""Most actions of a worker in one answer."""
FAILURES_MAX = 20
"""Most failed attempts of a worker in one answer."""
FAILURES_READ = 10_000
"""Executions among which the failed attempts of a worker are searched."""
NAMED_MAX = 3
"""Most executions that a blocker names."""


class ErrorDetail(Schema):
    """What went wrong: a type and a message."""

    type: str
    message: str


class SubmissionDetail(Schema):
    """What became of a submission in a transaction."""

    request_id: UUID
    status: Literal["pending", "admitted", "rejected"]
    execution_id: int | None = Field(description="The execution, once it is admitted.")
    code: str | None = Field(description="Why it was rejected.")
    message: str | None


class ProgressDetail(Schema):
    """How far an attempt says that it has come."""

    done: float = Field(description="In units of the action's own.", examples=[3])
    total: float | None = Field(description="What `done` will be at the end, if the action knows it.")
    message: str | None
    updated_at: AwareDatetime


class AttemptDetail(Schema):
    """One attempt: a grant that its worker has started."""

    attempt: int = Field(description="Number of the grant, from 1.")
    worker_id: str
    outcome: str | None = Field(
        description="Its terminal status, or retried, reclaimed, returned; null while it runs."
    )
    error: ErrorDetail | None
    granted_at: AwareDatetime
    started_at: AwareDatetime
    ended_at: AwareDatetime | None
    progress: ProgressDetail | None = Field(description="The last that it has reported; null: none.")


class WaitingOnPause(Schema):
    """Its action is paused."""

    reason: Literal["paused"] = "paused"


class WaitingOnWorker(Schema):
    """No live worker of its pool serves its action.

    Start one; or, where workers of other pools have the action, let one of them serve this pool too, or
    change the pool of the action.
    """

    reason: Literal["no_worker"] = "no_worker"
    pool: str
    other_pools: list[str] = Field(
        default_factory=list,
        description="Other pools whose live workers have the action, by name, at most 10.",
    )


class OutOfReach(Schema):
    """Its grant or its offer, which needs a server or a leader that cannot be reached."""

    reason: Literal["unavailable"] = "unavailable"
    part: str = Field(description="broker or leader, as in /readyz.", examples=["broker"])
    message: str = Field(examples=["not connected"])


_HeldSince = Annotated[
    AwareDatetime | None,
    Field(description="Since when the one of these `holders` that came first is there; null: there is none."),
]


class WaitingOnPool(Schema):
    """The capacity of its pool is in use, or it is not its turn yet, or the pool is paused."""

    reason: Literal["pool"] = "pool"
    pool: str
    closed: Literal["paused"] | None = Field(default=None, description="paused: the pool is paused.")
    capacity: int = Field(description="Executions that the live workers of the pool run at once.")
    held: int = Field(description="Worker slots that executions of the pool have.")
    position: int | None = Field(
        default=None,
        description="Among the executions that wait only for a worker of the pool, from 1, in the order in "
        f"which they will start if nothing else arrives. Null: behind the first {POSITIONS_MAX:,}.",
    )
    waiting: int | None = Field(
        default=None, description="Executions that wait only for a worker of the pool."
    )
    holders: list[int] = Field(
        default_factory=list,
        description="Executions that hold slots of the workers that take the action, or of the worker that "
        f"was granted to it, by id, at most {HOLDERS_MAX}.",
    )
    held_since: _HeldSince = None


class RootCause(Schema):
    """What the holders of slots or units wait for themselves, or those that will be granted them first."""

    ids: list[int] = Field(
        description="Holders that do not run yet: their worker is about to start them, or they wait at a "
        f"later gate: the first, and those that wait for the same, at most {HOLDERS_MAX}. Empty: slots are "
        "free, and executions ahead in the queue wait."
    )
    on: Annotated[
        "WaitingOnPause | WaitingOnWorker | WaitingOnPool | OutOfReach | WaitingOnLimit | WaitingOnTotal"
        " | WaitingOnResource | WaitingOnRate",
        Field(
            discriminator="reason",
            description="What the first of them waits for. It may have a `root_cause` in turn, at most "
            f"{CAUSES_MAX} in all.",
        ),
    ]


class WaitingOnLimit(Schema):
    """All slots of its queue are held, or will be by executions ahead of it."""

    reason: Literal["limit"] = "limit"
    limit_of: Literal["action", "key"] = Field(
        default="action", description="key: its concurrency key has a limit of its own."
    )
    max_concurrent: int
    active_count: int = Field(description="Slots of its queue that are held.")
    holders: list[int] = Field(description=f"Executions that hold slots, at most {HOLDERS_MAX}.")
    held_since: _HeldSince = None
    root_cause: RootCause | None = Field(
        default=None,
        description="What holders that do not run yet, or executions ahead, wait for. Null: nothing, or only "
        "for their workers to start them.",
    )


class UnitHolder(Schema):
    """An execution that holds units of a gate, or needs them."""

    id: int
    units: int


class _WaitingAtGate(Schema):
    gate: str = Field(description="total, or resource NAME.", examples=["resource autocad"])
    closed: Literal["paused", "capacity_zero", "capacity_too_low"] | None = Field(
        description="Why no release of units can help: the resource is paused, the capacity is 0, or it is "
        "below the units that the execution needs. Null: the gate is open."
    )
    units: int = Field(description="Units that it needs.")
    free: int | None = Field(description="Units that are free; null without a capacity.")
    capacity: int | None
    position: int | None = Field(
        description="From 1, in the order in which executions will pass if nothing else arrives. Before a "
        "closed gate: its position in its queue, where it holds nothing.",
    )
    position_of: Literal["gate", "queue"] = Field(description="What the position counts in.")
    waiting: int | None = Field(description="Executions that wait there; null at a closed gate.")
    first: UnitHolder | None = Field(
        default=None,
        description="The execution that passes a resource first, and the units that it needs: while these "
        "are not free, none passes it. Null: it itself, or the gate is closed.",
    )
    holders: list[UnitHolder] = Field(
        description=f"Executions that hold units of the gate, by id, at most {HOLDERS_MAX}."
    )
    held_since: _HeldSince = None
    root_cause: RootCause | None = Field(
        default=None,
        description="What holders that do not run yet wait for. Null: all of them run or are about to "
        "start, or the gate is closed.",
    )


class WaitingOnTotal(_WaitingAtGate):
    """The total over all keys of its action is in use, or will be by executions ahead of it, or is 0."""

    reason: Literal["total"] = "total"


class WaitingOnResource(_WaitingAtGate):
    """Units of a resource are in use, or will be by executions ahead of it, or the resource is closed."""

    reason: Literal["resource"] = "resource"


class WaitingOnRate(Schema):
    """A rate of its action or of one of its resources is used up. It holds its units meanwhile."""

    reason: Literal["rate"] = "rate"
    gate: Literal["rate"] = "rate"
    rate_of: str = Field(description="action, or resource NAME.", examples=["resource partner-api"])
    starts: int = Field(description="Starts that the rate allows per `per_seconds`.")
    per_seconds: float
    next_start_at: AwareDatetime | None = Field(
        description="When the rate allows the next start. Null: it has one now, which is kept for an "
        "execution ahead or is about to be granted."
    )
    position: int | None = Field(
        description="Among the executions of its action that wait for a start, from 1."
    )
    position_of: Literal["action"] = "action"
    waiting: int | None = Field(description="Executions of its action that wait for a start.")


class NotDue(Schema):
    """It is not due before `run_at`, or before the backoff of a retry ends."""

    reason: Literal["not_due"] = "not_due"
    run_at: AwareDatetime | None


class HandingOver(Schema):
    """Nothing: it is granted and about to start at its worker, or the next turn grants it."""

    reason: Literal["handing_over"] = "handing_over"
    pool: str
    granted_at: AwareDatetime | None = Field(
        default=None,
        description="When its slot was granted; null: not yet. If that was long ago, see the log of its "
        "`worker_id`.",
    )


WaitingOn = Annotated[
    WaitingOnLimit
    | WaitingOnPause
    | WaitingOnWorker
    | WaitingOnTotal
    | WaitingOnResource
    | WaitingOnRate
    | WaitingOnPool
    | NotDue
    | HandingOver
    | OutOfReach,
    Field(discriminator="reason"),
]


class Stopping(Schema):
    """A running execution has been asked to stop."""

    reason: Literal["cancel", "timeout"] = Field(
        description="cancel: its cancellation was requested; timeout: it has run for longer than its timeout."
    )
    since: AwareDatetime
    kill_at: AwareDatetime = Field(
        description="When its worker kills it, if it still runs; or when the leader ends it without its "
        "worker, if that is earlier or the grace period of the worker is unknown: TURNSTILE_STOP_TIMEOUT "
        "after a cancel, twice that time after a timeout, and up to 2 s later."
    )
    cancel_reason: str | None = Field(description="As given with the request.")


class StoredExecution(Schema):
    """An execution as it is stored."""

    id: int = Field(description="Ids are in the order of admission.")
    action_ref: str
    concurrency_key: str | None
    idempotency_key: str | None
    priority: int = Field(description="1 is first, 5 is last.")
    status: Status
    attempt: int = Field(description="Number of its latest grant; 0 before the first.")
    parameters: dict[str, JsonValue]
    result: JsonValue
    error: ErrorDetail | None
    metadata: dict[str, JsonValue]
    worker_id: str | None
    created_at: AwareDatetime
    queued_at: AwareDatetime | None = Field(description="When it last entered its queue.")
    scheduled_at: AwareDatetime | None = Field(description="When its latest slot was granted.")
    started_at: AwareDatetime | None
    completed_at: AwareDatetime | None
    run_at: AwareDatetime | None
    expires_at: AwareDatetime | None
    retry_of: int | None = Field(description="The ended execution that it retries.")


class ExecutionRecord(StoredExecution):
    """An execution in a list."""

    stopping: bool = Field(
        description="Whether it runs although it has been asked to stop: `GET /executions/{id}` says why and "
        "until when."
    )


class GateStep(Schema):
    """One gate that an execution has passed, or for which it waits."""

    gate: str = Field(description="queue, total, resource NAME or rate.", examples=["resource autocad"])
    units: int
    arrived_at: AwareDatetime | None = Field(
        description="Null: it waits in its queue for this gate, and passes both together."
    )
    passed_at: AwareDatetime | None = Field(
        description="Null: not yet. It waits at the last of the list, or waited there when it ended."
    )


class GatedExecutionRecord(ExecutionRecord):
    """An execution that has ended, and passed more gates than its queue, or would have."""

    gates: list[GateStep] = Field(description="The gates of its latest attempt, in order.")


class PathStep(Schema):
    """One gate on the way of a waiting execution to its start."""

    gate: str = Field(
        description="queue, total, resource NAME, rate of OWNER, or pool NAME.", examples=["resource autocad"]
    )
    state: Literal["passed", "waiting", "not_reached", "elsewhere"] = Field(
        description="waiting: here; passed: it holds it, or could; not_reached: it is behind that gate; "
        "elsewhere: only `waiting_holders` pass it."
    )
    is_blocker: bool = Field(description="Only a change here helps.")
    units: int = Field(description="Units that it needs.")
    held: int = Field(description="Units, slots or starts in use.")
    capacity: int | None = Field(description="null: no limit.")
    waiting_holders: list[int] = Field(
        description="Executions that hold what it waits for, or a gate before, and wait here themselves, at "
        f"most {NAMED_MAX}."
    )


class Blocker(Schema):
    """What keeps an execution waiting in the end: only a change there helps."""

    why: str = Field(description="A sentence.", examples=["4 of 4 slots in use"])
    held_by: list[int] = Field(description=f"Executions that hold it, at most {NAMED_MAX}.")
    holders: int = Field(description=f"How many hold it, counted up to {HOLDERS_MAX}.")
    since: AwareDatetime | None = Field(
        description="Since when the first of them holds it, or since when it is granted; null: neither."
    )
    until: AwareDatetime | None = Field(description="When it ends by itself, where that is known.")
    help: str = Field(
        description="What helps.", examples=["Raise the limit of the action, or wait until a holder ends"]
    )
    command: str | None = Field(
        description="A command for it; null: none.", examples=["executor actions limit reports.render NUMBER"]
    )


class ExecutionDetail(StoredExecution):
    """An execution with its position, the reason why it waits, and its attempts."""

    position: int | None = Field(description="Position in its queue, from 1; null if it is not queued.")
    queue_length: int | None = Field(description="Executions in its queue; null if it is not queued.")
    waiting_on: WaitingOn | None = Field(description="Why it has not started; null if it does not wait.")
    blocker: Blocker | None = Field(
        description="What keeps it waiting in the end: what `waiting_on` says, or the end of its chain of "
        "`root_cause`. Null if it does not wait."
    )
    path: list[PathStep] = Field(
        default_factory=list,
        description="The gates before its start, in order, then those where only holders wait; empty if it "
        "does not wait.",
    )
    estimated_start: EstimatedStart | None = Field(
        description="Estimated from the recent starts of its queue, or of the gate where it waits. Null if "
        "there is no basis: no run of the action has ended yet (a rate needs none), the action or a gate is "
        "paused, the action has no worker or a limit of 0, or a server is unreachable."
    )
    stopping: Stopping | None = Field(description="Set while it runs although it has been asked to stop.")
    progress: ProgressDetail | None = Field(description="The last that its latest attempt has reported.")
    attempts: list[AttemptDetail] = Field(description="Attempts, oldest first.")


class GatedExecutionDetail(ExecutionDetail):
    """An execution that passes more gates than its queue.

    `position` is null while it holds units and waits at a later gate: `waiting_on` has the position there.
    """

    gates: list[GateStep] = Field(description="The gates of its latest attempt, in order.")


class QueuedExecution(Schema):
    """One queued execution."""

    id: int
    position: int = Field(description="Position in the queue of its key, from 1.")
    concurrency_key: str | None
    priority: int = Field(description="1 is first, 5 is last.")
    created_at: AwareDatetime
    queued_at: AwareDatetime


class SlotHolder(Schema):
    """One slot that is held."""

    id: int = Field(description="The execution that holds it.")
    concurrency_key: str | None
    attempt: int
    status: str = Field(
        description="An execution that has ended holds its slot until its end is committed; a queued one "
        "waits at a gate after its queue."
    )
    stopping: bool = Field(description="Whether it runs although it has been asked to stop.")
    worker_id: str | None
    granted_at: AwareDatetime = Field(description="When it got the slot.")
    started_at: AwareDatetime | None
    finished_at: AwareDatetime | None


class ActionQueuePage(Schema):
    """The queues of an action: executions in order, and the slot holders ahead of them."""

    action_ref: str
    items: list[QueuedExecution]
    holders: list[SlotHolder] = Field(description=f"Oldest execution first, at most {HOLDERS_MAX}.")
    next_cursor: str | None


class WaitingForUnits(Schema):
    """One execution that waits at a resource."""

    id: int
    position: int = Field(description="In the order in which executions will pass, from 1.")
    action_ref: str
    concurrency_key: str | None
    priority: int
    units: int = Field(description="Units that it needs.")
    arrived_at: AwareDatetime | None = Field(description="When it came to this resource.")
    queued_at: AwareDatetime


class ResourceHolder(Schema):
    """One execution that holds units of a resource."""

    id: int
    action_ref: str
    concurrency_key: str | None
    units: int
    status: str = Field(description="queued: it waits at a later gate; ended: its end is not committed yet.")
    passed_at: AwareDatetime | None = Field(description="When it acquired the units.")


class ResourceQueuePage(Schema):
    """A resource: the executions that wait for it, in order, and those that hold its units."""

    resource: str
    capacity: int | None = Field(description="Units; null: no limit.")
    paused: bool
    order: Literal["arrival", "fair"]
    held: int = Field(description="Units that are held.")
    held_waiting: int = Field(
        description="Those of them that are idle: their executions wait at later gates."
    )
    free: int | None = Field(description="Units that are free; null without a capacity.")
    waiting: int = Field(
        description="Executions that wait at it. Those before a closed gate wait in their queues."
    )
    items: list[WaitingForUnits]
    holders: list[ResourceHolder] = Field(description=f"By id, at most {HOLDERS_MAX}.")
    next_cursor: str | None


class StoredAction(ActionDefinition):
    """An action as it is stored. Durations are seconds."""

    id: int
    callback_url: str | None = Field(
        default=None, description="Default URL for webhooks about ended executions."
    )
    """As it is stored: it is checked before each POST."""
    parameters_schema: dict[str, JsonValue] | None = Field(
        default=None, description="JSON Schema of the parameters; null: see `code_schemas`."
    )
    result_schema: dict[str, JsonValue] | None = Field(default=None, description="JSON Schema of the result.")
    created_at: AwareDatetime
    updated_at: AwareDatetime


class CodeSchemas(Schema):
    """JSON Schemas that workers derived from one version of the code of an action."""

    parameters_schema: dict[str, JsonValue] | None = Field(description="null: everything fits.")
    result_schema: dict[str, JsonValue] | None
    registered_at: AwareDatetime = Field(description="When a worker last registered them.")


class ActionDetail(StoredAction):
    """An action, and the schemas of its code."""

    code_schemas: list[CodeSchemas] = Field(
        description="The schemas that its live workers derived from their code, newest first: one for each "
        "version of the code. Without a live worker: those that were registered last."
    )
    parameters_checked_by: Literal["definition", "code", "worker"] = Field(
        description="What parameters have to fit when they are submitted. definition: `parameters_schema`; "
        "code: one of `code_schemas`; worker: nothing, because a live worker has no schema for the action, "
        "or none was registered. The worker checks them again before the run."
    )


class StoredKey(Schema):
    """The settings of one concurrency key of an action."""

    concurrency_key: str = Field(examples=["7"])
    max_concurrent: int | None = Field(description="The limit of its queue; null: no limit.")
    has_limit: bool = Field(description="Whether the key has a limit of its own; false: it is the action's.")
    weight: int = Field(description="Its share of `max_concurrent_total` with `order: fair`.")


class ResourceUser(Schema):
    """An action that uses a resource."""

    action_ref: str
    units: int
    weight: int


class StoredResource(ResourceDefinition):
    """A resource as it is stored. Durations are seconds."""

    id: int
    held: int | None = Field(
        description="Units that are held. Null, like the next two: no leader answers now."
    )
    held_waiting: int | None = Field(
        description="Those of them that are idle: their executions wait at later gates."
    )
    waiting: int | None = Field(description="Executions that wait at it.")
    use: list[float | None] = Field(
        description=f"Units held, in each of the last {MINUTES} minutes on average, the oldest first. "
        "Null: not known, like what was before the present leader. Empty: no leader answers now."
    )
    users: int = Field(description="Number of actions that use it.")
    used_by: list[ResourceUser] = Field(description=f"These actions, by name, at most {USERS_MAX}.")
    warnings: list[str] = Field(
        description="Sentences about actions that cannot start: they take more units than the capacity.",
        examples=[["drawings.render takes 2 units, the capacity is 1: its executions wait"]],
    )
    created_at: AwareDatetime
    updated_at: AwareDatetime


class PoolAction(Schema):
    """An action of a pool."""

    action_ref: str
    weight: int
    served: bool = Field(description="A live worker of the pool serves it.")


class StoredPool(PoolDefinition):
    """A pool as it is stored, and its state."""

    id: int
    capacity: int | None = Field(
        description="Executions that the live workers of the pool run at once. Null, like the next three: no "
        "leader answers now."
    )
    held: int | None = Field(description="Worker slots that executions of the pool have.")
    waiting: int | None = Field(description="Executions that wait only for a worker of the pool.")
    wanted: int | None = Field(
        description="Executions that could run now with enough workers: `held`, and those that wait for a "
        "worker, also of actions that no live worker serves. Of a paused pool only `held`. For autoscalers."
    )
    use: list[float | None] = Field(
        description=f"Worker slots held, in each of the last {MINUTES} minutes on average, the oldest first. "
        "Null: not known, like what was before the present leader. Empty: no leader answers now."
    )
    actions: int = Field(description="Number of actions in the pool.")
    action_weights: list[PoolAction] = Field(description=f"These actions, by name, at most {USERS_MAX}.")
    warnings: list[str] = Field(
        description="Sentences about weights of actions that are not in the pool.",
        examples=[["reports.render has a weight, and is not in this pool"]],
    )
    created_at: AwareDatetime
    updated_at: AwareDatetime


class StoredSchedule(ScheduleDefinition):
    """A schedule as it is stored, and what became of its occurrences. Durations are seconds."""

    id: int
    next_at: AwareDatetime | None = Field(
        description="When the next execution is admitted, jitter included. Null: it is paused, or has ended."
    )
    last_execution_id: int | None = Field(description="The execution of the last occurrence that ran.")
    admitted: int = Field(description="Occurrences that became an execution.")
    skipped: int = Field(description="Occurrences that `overlap: skip` left out.")
    refused: int = Field(description="Occurrences whose request was refused; `problem` says why.")
    missed_at: AwareDatetime | None = Field(description="The last occurrence that `catch_up` left out.")
    problem: str | None = Field(description="Why the last occurrence was refused, or why there is none.")
    created_at: AwareDatetime
    updated_at: AwareDatetime

    def definition(self) -> ScheduleDefinition:
        """Return the schedule alone."""
        return ScheduleDefinition(**{name: getattr(self, name) for name in ScheduleDefinition.model_fields})


class WaitingForWorker(Schema):
    """One execution that waits only for a worker of a pool."""

    id: int
    position: int = Field(description="In the order in which executions will start, from 1.")
    action_ref: str
    concurrency_key: str | None
    priority: int
    queued_at: AwareDatetime


class PoolHolder(Schema):
    """One execution that holds a worker slot of a pool."""

    id: int
    action_ref: str
    concurrency_key: str | None
    status: Literal["scheduled", "running", "ended"] = Field(
        description="scheduled: its worker has not started it; ended: its end is not committed yet."
    )
    worker_id: str | None
    granted_at: AwareDatetime


class PoolQueuePage(Schema):
    """A pool: the executions that wait only for a worker, in order, and those that hold its worker slots."""

    pool: str
    capacity: int = Field(description="Executions that the live workers of the pool run at once.")
    paused: bool
    order: Literal["fair", "arrival"]
    held: int = Field(description="Worker slots that executions of the pool have.")
    waiting: int = Field(
        description="Executions that wait only for a worker of the pool. Those of actions that have other "
        "gates wait in their queues while the pool is paused, and are not counted."
    )
    items: list[WaitingForWorker]
    holders: list[PoolHolder] = Field(description=f"By id, at most {HOLDERS_MAX}.")
    next_cursor: str | None


DefinitionChange = Literal["created", "changed", "limit_changed", "paused", "resumed", "deleted"]


class ChangeEntry(Schema):
    """One change of an action, resource or pool: who, when and what."""

    id: int
    changed_at: AwareDatetime
    changed_by: str | None = Field(
        description="The name of the token; local: no token was required; worker: a worker registered it.",
        examples=["alice"],
    )
    change: DefinitionChange
    old: dict[str, JsonValue] = Field(
        description="The changed fields before; durations in seconds. Empty if it was created.",
        examples=[{"max_concurrent": 2}],
    )
    new: dict[str, JsonValue] = Field(
        description="The changed fields after. Empty if it was deleted.",
        examples=[{"max_concurrent": 5}],
    )


Verb = Literal[
    DefinitionChange,
    "cancelled",
    "retried",
    "drained",
    "acknowledged",
    "replayed",
    "purged",
    "revoked",
    "rotated",
    "migrated",
    "restored",
]
SubjectKind = Literal[
    "action",
    "resource",
    "pool",
    "schedule",
    "execution",
    "executions",
    "worker",
    "dead_letter",
    "webhook",
    "token",
    "token_file",
    "account",
    "database",
]


class AuditLogEntry(Schema):
    """What one operator did to one subject."""

    id: int
    recorded_at: AwareDatetime
    user: str | None = Field(
        description="The name of the token; local: no token was required; worker: a worker registered an "
        "action; database: a command with access to the database. Null: not known.",
        examples=["alice"],
    )
    address: str | None = Field(
        description="The client's address as the executor saw it; behind a proxy, that of the proxy.",
        examples=["192.0.2.17"],
    )
    channel: Channel | None = Field(
        description="How it came; cli and dashboard are what the client says of itself. Null: recorded by an "
        "earlier version."
    )
    verb: Verb
    subject_kind: SubjectKind = Field(description="executions: all that a filter selects.")
    subject: str = Field(
        description="Id or name; of a webhook, the id of its execution; of a token file, the host of the "
        "executor. Empty for a filter.",
        examples=["reports.render"],
    )
    action_ref: str | None = Field(description="The action that the subject is or belongs to.")
    before: dict[str, JsonValue] = Field(
        description="What changed, before it; durations in seconds.", examples=[{"max_concurrent": 2}]
    )
    after: dict[str, JsonValue] = Field(
        description="The same after it; for a filter, the filter.", examples=[{"max_concurrent": 5}]
    )


TokenRole = Literal["read", "submit", "operate", "admin"]


class TokenDetail(Schema):
    """An API token in the database; never the token itself."""

    id: int
    name: str = Field(description="Appears in the audit log; several tokens may share it.", examples=["ci"])
    role: TokenRole
    scope: list[str] | None = Field(
        description="It is only for actions whose names begin with one of these. Null: for all.",
        examples=[["reports."]],
    )
    state: Literal["valid", "expired", "revoked"]
    created_at: AwareDatetime
    created_by: str | None
    expires_at: AwareDatetime | None = Field(description="Null: it does not expire.")
    last_used_at: AwareDatetime | None = Field(description="Within a minute. Null: not used yet.")
    revoked_at: AwareDatetime | None
    revoked_by: str | None


class CreatedToken(TokenDetail):
    """A new token."""

    token: str = Field(description="Shown only here: the service stores a digest.")


WorkerState = Literal["live", "draining", "overdue", "lost", "stopped"]


class WorkerDetail(Schema):
    """One worker process."""

    id: str
    name: str
    host: str
    pid: int
    pools: list[str]
    concurrency: int = Field(description="Most concurrent attempts.")
    running: int = Field(description="Attempts that it has started and not finished.")
    state: WorkerState = Field(
        description="overdue: its lease expired, and its work is about to be reclaimed; lost: it was."
    )
    started_at: AwareDatetime
    renewed_at: AwareDatetime
    lease_expires_at: AwareDatetime
    draining_at: AwareDatetime | None
    stopped_at: AwareDatetime | None
    lost_at: AwareDatetime | None
    acknowledged_at: AwareDatetime | None = Field(
        description="When an operator said that its loss needs no more attention."
    )
    held_count: int = Field(description="Executions that it held when it was lost or stopped.")
    held_ids: list[int] = Field(description=f"These executions, at most {NAMED_MAX}.")
    version: str | None = Field(
        description="Version of Turnstile; null of a worker of an earlier version.",
        examples=["1.0.0"],
    )
    draining_count: int | None = Field(
        description="While it drains: attempts that it held at the request; `running` of these still run."
    )
    draining_until: AwareDatetime | None = Field(
        description="While it drains: what runs at this instant returns to the head of its queue. Null: the "
        "worker did not say how long it waits."
    )
    not_ready: str | None = Field(
        description="Why it could run nothing at its last heartbeat. Null: it could, or it has gone.",
        examples=["broker: connection refused"],
    )


class NoReclaim(Schema):
    """For how long nothing that a worker runs is reclaimed."""

    seconds: float = Field(description="From the sending of the request; 0: no promise.", examples=[30.0])


class PoolCapacity(Schema):
    """The capacity of a pool that a worker serves, over all its workers."""

    pool: str
    capacity: int = Field(description="Executions that the live workers of the pool run at once.")
    held: int = Field(description="Worker slots that executions of the pool have.")
    waiting_queues: int = Field(description="Queues with executions that wait for capacity.")


class WorkerRun(Schema):
    """An attempt that a worker runs."""

    id: int = Field(description="The execution.")
    action_ref: str
    concurrency_key: str | None
    attempt: int
    started_at: AwareDatetime
    stopping: Stopping | None


class HeldExecution(Schema):
    """An execution that a worker held when it was lost or stopped."""

    id: int
    action_ref: str
    concurrency_key: str | None
    attempt: int | None = Field(description="The attempt there. Null, like the next: it had none.")
    started_at: AwareDatetime | None = Field(description="When that had started; null: it had not.")
    status: Status = Field(description="What the execution does now.")


class ServedAction(Schema):
    """An action whose code a worker has. The other fields are those of the stored definition."""

    action_ref: str
    pool: str | None = Field(description="Null, like the rest: the action was deleted.")
    max_concurrent: int | None
    paused: bool | None
    updated_at: AwareDatetime | None


class FailedAttempt(Schema):
    """An attempt that failed."""

    execution_id: int
    action_ref: str
    attempt: int
    outcome: str = Field(description="failed, timeout, abandoned, retried or reclaimed.")
    error: ErrorDetail | None
    started_at: AwareDatetime
    ended_at: AwareDatetime


class WorkerPage(WorkerDetail):
    """One worker with what it runs, its last failures and what it said at its start."""

    runs: list[WorkerRun] = Field(description=f"The longest running first, at most {RUNS_MAX}.")
    held: list[HeldExecution] = Field(
        description=f"What it held when it was lost or stopped, by id, at most {RUNS_MAX}."
    )
    pool_capacities: list[PoolCapacity] = Field(description="In the order of `pools`.")
    actions: list[ServedAction] | None = Field(
        description=f"By name, at most {SERVED_MAX}. Null: it named none, and counts for all of its pools."
    )
    failures: list[FailedAttempt] = Field(
        description=f"Its last failed attempts, newest first, at most {FAILURES_MAX}, among the "
        f"{FAILURES_READ} newest executions."
    )
    start_notes: list[str] | None = Field(
        description="Warnings and errors that it logged before it registered. Null: it sent no list.",
        examples=[["WARNING action_differs action_ref=reports.render fields=max_concurrent"]],
    )


class LogEntry(Schema):
    """A piece of what an attempt has logged and printed."""

    attempt: int = Field(description="Number of the attempt, from 1.")
    at: AwareDatetime = Field(description="When it was stored: about a second after it was written.")
    text: str = Field(description="Text of this piece. All pieces, concatenated, are the log.")
