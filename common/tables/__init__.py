"""The schema, one room per concern (DESIGN: what lives is small, what is recorded is wide).

`definition`: actions, their changes and their queues. `record`: executions and their attempts, wide, kept.
`log`: what running attempts wrote. `live`: the line, the slots and the ends not yet told, slim, only what is
live. `webhook`: calls back. `retention`: what was pruned or deleted. `worker`: leases.
`dead_letter`: messages that no service could use.

There are no foreign keys on the live tables: each would lock its parent row at every insert, and the
statements in `common.sql` are the only writers. Every invariant that a row can state is a CHECK or a
UNIQUE constraint here, by name.
"""

from sqlmodel import SQLModel

from turnstile.common.tables.dead_letter import DeadLetter
from turnstile.common.tables.definition import Action, ActionChange, ActionQueue
from turnstile.common.tables.live import Delayed, EarlyCancel, Expiring, Slot, UntoldEnd, UntoldStop, Waiting
from turnstile.common.tables.log import AttemptLogPiece
from turnstile.common.tables.record import AttemptRecord, Execution
from turnstile.common.tables.retention import DeletedQueueTotal, PrunedCount
from turnstile.common.tables.webhook import WebhookDelivery
from turnstile.common.tables.worker import Worker

metadata = SQLModel.metadata

__all__ = [
    "Action",
    "ActionChange",
    "ActionQueue",
    "AttemptLogPiece",
    "AttemptRecord",
    "DeadLetter",
    "Delayed",
    "DeletedQueueTotal",
    "EarlyCancel",
    "Execution",
    "Expiring",
    "PrunedCount",
    "Slot",
    "UntoldEnd",
    "UntoldStop",
    "Waiting",
    "WebhookDelivery",
    "Worker",
    "metadata",
]
