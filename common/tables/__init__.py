"""The tables. Live state is slim, history is wide.

`actions`: definitions and their queues. `gates`: limits after the queue. `pools`: capacity of workers.
`live`: what is queued, held, unpublished, delayed or about to expire. `executions`: executions, attempts,
logs and the counts of pruned ones. `workers`: leases. `webhooks`: deliveries and receivers. `dead_letters`:
messages that no service could process. `submissions`: requests of database sessions. `security`: the audit
log and API tokens.

The live tables have no foreign keys, because each would lock its parent row at every insert, and the
functions in `common.sql` are the only writers. Every invariant of a single row is a named CHECK or UNIQUE
constraint.
"""

from sqlmodel import SQLModel

from turnstile.common.tables.actions import Action, ActionQueue, ActionSchema
from turnstile.common.tables.dead_letters import DeadLetter
from turnstile.common.tables.executions import (
    AttemptLogPiece,
    AttemptProgress,
    AttemptRecord,
    DeletedQueueTotal,
    Execution,
    PrunedCount,
)
from turnstile.common.tables.gates import (
    FlowTurn,
    Gate,
    GateFlow,
    GateReturn,
    GateState,
    GateWindow,
    KeyOverride,
    RateStart,
)
from turnstile.common.tables.live import (
    Delayed,
    EarlyCancel,
    Expiring,
    QueueState,
    Slot,
    SlotWindow,
    UnpublishedCancel,
    UnpublishedCompletion,
    Waiting,
)
from turnstile.common.tables.pools import PoolState, PoolTurn, ReadyQueue, WorkerPool, WorkerSetState
from turnstile.common.tables.security import AuditLog, StoredApiToken
from turnstile.common.tables.submissions import Submission, SubmissionLine, SubmissionOutcome
from turnstile.common.tables.webhooks import WebhookDelivery, WebhookReceiver
from turnstile.common.tables.workers import Worker

metadata = SQLModel.metadata

__all__ = [
    "Action",
    "ActionQueue",
    "ActionSchema",
    "AttemptLogPiece",
    "AttemptProgress",
    "AttemptRecord",
    "AuditLog",
    "DeadLetter",
    "Delayed",
    "DeletedQueueTotal",
    "EarlyCancel",
    "Execution",
    "Expiring",
    "FlowTurn",
    "Gate",
    "GateFlow",
    "GateReturn",
    "GateState",
    "GateWindow",
    "KeyOverride",
    "PoolState",
    "PoolTurn",
    "PrunedCount",
    "QueueState",
    "RateStart",
    "ReadyQueue",
    "Slot",
    "SlotWindow",
    "StoredApiToken",
    "Submission",
    "SubmissionLine",
    "SubmissionOutcome",
    "UnpublishedCancel",
    "UnpublishedCompletion",
    "Waiting",
    "WebhookDelivery",
    "WebhookReceiver",
    "Worker",
    "WorkerPool",
    "WorkerSetState",
    "metadata",
]
