"""The contents of the tables, read in one query, and the contents that the model expects."""

import json
from dataclasses import dataclass
from typing import Any

import asyncpg

from tests.proof.model.model import Model

_QUERY = """
WITH queue AS (
    SELECT q.*, a.ref, q.concurrency_key AS key
    FROM turnstile.current_queue q JOIN action a ON a.id = q.action_id
)
SELECT json_build_object(
    'runs', (SELECT json_agg(json_build_array(id, status, attempt, failures, reclaims, worker_id,
                                              cancel_requested_at IS NOT NULL) ORDER BY id)
             FROM turnstile.current_execution),
    'ends', (SELECT json_object_agg(id, concat_ws(' ', status, result, error_type, error_message,
                                                       completed_at))
             FROM turnstile.current_execution WHERE completed_at IS NOT NULL),
    'queues', (SELECT json_agg(json_build_array(
                  l.ref, l.key, l.max_concurrent, l.paused, l.depth, l.held, l.total_enqueued,
                  l.total_completed,
                  ARRAY(SELECT place FROM waiting w WHERE w.line_id = l.id ORDER BY 1),
                  ARRAY(SELECT execution_id FROM slot s WHERE s.queue_id = l.id ORDER BY 1)
              ) ORDER BY l.ref, l.key) FROM queue l),
    'slots', (SELECT json_agg(json_build_array(execution_id, attempt, worker_id, finished_at IS NOT NULL)
                              ORDER BY execution_id) FROM slot),
    'rest', json_build_array(
        ARRAY(SELECT execution_id FROM delayed ORDER BY 1),
        ARRAY(SELECT execution_id FROM expiring ORDER BY 1),
        ARRAY(SELECT execution_id FROM unpublished_completion ORDER BY 1),
        (SELECT count(*) FROM turnstile.ended_attempt)),
    'deleted', (SELECT json_object_agg(a.ref, t.executions)
                FROM deleted_queue_total t JOIN action a ON a.id = t.action_id WHERE t.executions > 0),
    'waiting_below_head', (SELECT count(*) FROM queue l JOIN waiting w ON w.line_id = l.id
                       WHERE w.place < l.head_id)
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything that one step may change."""

    runs: list[Any]
    queues: list[Any]
    slots: list[Any]
    rest: list[Any]
    """Delayed ids, ids with a deadline, unpublished completions, number of attempts."""
    deleted: dict[str, int]
    """Totals of deleted queues, by action."""


async def observe(connection: "asyncpg.Connection[asyncpg.Record]") -> tuple[Observation, dict[str, str]]:
    """Return the contents of the tables, and the terminal executions in full."""
    found = json.loads(await connection.fetchval(_QUERY))
    assert found["waiting_below_head"] == 0, "an execution waits below the id where a grant starts to read"
    observation = Observation(
        runs=found["runs"] or [],
        queues=found["queues"] or [],
        slots=found["slots"] or [],
        rest=found["rest"],
        deleted=found["deleted"] or {},
    )
    return observation, found["ends"] or {}


def expected(model: Model) -> Observation:
    """Return the contents that the model expects."""
    return Observation(
        runs=[
            [i, run.status, run.attempt, run.failures, run.reclaims, run.worker, run.cancel_requested]
            for i, run in sorted(model.runs.items())
        ],
        queues=[
            [
                *queue_key,
                q.limit,
                q.paused,
                len(q.waiting),
                len(q.slots),
                q.enqueued,
                q.completed,
                sorted(q.waiting),
                sorted(q.slots),
            ]
            for queue_key, q in sorted(model.queues.items())
        ],
        slots=[
            [i, model.runs[i].attempt, model.runs[i].worker, ended]
            for i, ended in sorted(model.slots().items())
        ],
        rest=[sorted(model.delayed), sorted(model.deadlines), sorted(model.unpublished), model.attempts],
        deleted={ref: count for ref, count in model.deleted.items() if count},
    )
