"""Who stood in line, and from when to when.

In: a recording. Out: one row for each stay in a line: each grant, and whoever was still waiting in the end.
Next: `order` and `idle`.
"""

from dataclasses import dataclass

import numpy as np

from turnstile.common.domain.states import Status
from turnstile.stress.check.columns import column, rows_of
from turnstile.stress.recording import Recording
from turnstile.stress.tables import NEVER, NONE, Instants, status_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Stays:
    """Columns of the same length."""

    execution_ids: Instants
    queues: Instants
    since: Instants
    granted_at: Instants
    """NEVER: still waiting in the end."""
    ended_at: Instants


def stays(recording: Recording) -> Stays:
    """Return every stay in a line of the stage: those of the attempts in their order, then the rest."""
    attempts = recording.attempts[recording.attempts["queue"] != NONE]
    executions = recording.executions[recording.executions["queue"] != NONE]
    ids = column(attempts, "execution_id")
    waits = (executions["status"] == status_code(Status.QUEUED)) & (executions["completed_at"] == NEVER)
    left = executions[waits]
    open_ids = ids[attempts["ended_at"] == NEVER]
    left = left[rows_of(open_ids, column(left, "execution_id")) == NONE]
    since = column(left, "created_at")
    # Whoever was granted before stands in line again from the end of that attempt.
    latest = np.lexsort((column(attempts, "attempt"), ids))[::-1]
    rows = rows_of(ids[latest], column(left, "execution_id")) if len(left) else np.empty(0, np.int64)
    again = rows != NONE
    since[again] = column(attempts, "ended_at")[latest[rows[again]]]
    never = np.full(len(left), NEVER, np.int64)
    return Stays(
        execution_ids=np.concatenate([ids, column(left, "execution_id")]),
        queues=np.concatenate([column(attempts, "queue"), column(left, "queue")]),
        since=np.concatenate([column(attempts, "waiting_since"), since]),
        granted_at=np.concatenate([column(attempts, "granted_at"), never]),
        ended_at=np.concatenate([column(attempts, "ended_at"), never]),
    )
