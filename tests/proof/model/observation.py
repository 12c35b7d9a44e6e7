"""What stands in the tables, in one query, and what the model says should stand there."""

import json
from dataclasses import dataclass
from typing import Any

import asyncpg

from tests.proof.model.model import Model

_QUERY = """
WITH line AS (
    SELECT q.*, a.ref, q.concurrency_key AS key FROM action_queue q JOIN action a ON a.id = q.action_id
)
SELECT json_build_object(
    'runs', (SELECT json_agg(json_build_array(id, status, attempt, failures, reclaims, worker_id,
                                              cancel_requested_at IS NOT NULL) ORDER BY id) FROM execution),
    'ends', (SELECT json_object_agg(id, concat_ws(' ', status, result, error_type, error_message,
                                                       completed_at))
             FROM execution WHERE completed_at IS NOT NULL),
    'lines', (SELECT json_agg(json_build_array(
                  l.ref, l.key, l.max_concurrent, l.paused, l.depth, l.total_enqueued, l.total_completed,
                  ARRAY(SELECT execution_id FROM waiting w WHERE w.queue_id = l.id ORDER BY 1),
                  ARRAY(SELECT execution_id FROM slot s WHERE s.queue_id = l.id ORDER BY 1)
              ) ORDER BY l.ref, l.key) FROM line l),
    'slots', (SELECT json_agg(json_build_array(execution_id, attempt, worker_id, finished_at IS NOT NULL)
                              ORDER BY execution_id) FROM slot),
    'beside', json_build_array(
        ARRAY(SELECT execution_id FROM delayed ORDER BY 1),
        ARRAY(SELECT execution_id FROM expiring ORDER BY 1),
        ARRAY(SELECT execution_id FROM untold_end ORDER BY 1), (SELECT count(*) FROM attempt)),
    'deleted', (SELECT json_object_agg(a.ref, t.executions)
                FROM deleted_queue_total t JOIN action a ON a.id = t.action_id WHERE t.executions > 0),
    'overshot_heads', (SELECT count(*) FROM line l JOIN waiting w ON w.queue_id = l.id
                       WHERE w.execution_id < l.head_id)
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything that one step may change, in the words of the tables."""

    runs: list[Any]
    lines: list[Any]
    slots: list[Any]
    beside: list[Any]
    """Delayed, with a deadline, ended and untold, and the number of rows of history."""
    deleted: dict[str, int]
    """What deleted queues counted, by action."""


async def observe(connection: "asyncpg.Connection[asyncpg.Record]") -> tuple[Observation, dict[str, str]]:
    """Return what stands in the tables, and the ends in full."""
    found = json.loads(await connection.fetchval(_QUERY))
    assert found["overshot_heads"] == 0, "somebody waits before the place where a grant starts to read"
    observation = Observation(
        runs=found["runs"] or [],
        lines=found["lines"] or [],
        slots=found["slots"] or [],
        beside=found["beside"],
        deleted=found["deleted"] or {},
    )
    return observation, found["ends"] or {}


def expected(model: Model) -> Observation:
    """Return what should stand there."""
    return Observation(
        runs=[
            [i, run.status, run.attempt, run.failures, run.reclaims, run.worker, run.stop_asked]
            for i, run in sorted(model.runs.items())
        ],
        lines=[
            [
                *line,
                q.limit,
                q.paused,
                len(q.waiting),
                q.enqueued,
                q.completed,
                sorted(q.waiting),
                sorted(q.slots),
            ]
            for line, q in sorted(model.queues.items())
        ],
        slots=[
            [i, model.runs[i].attempt, model.runs[i].worker, ended]
            for i, ended in sorted(model.slots().items())
        ],
        beside=[sorted(model.delayed), sorted(model.deadlines), sorted(model.untold), model.attempts],
        deleted={ref: count for ref, count in model.deleted.items() if count},
    )
