"""Settle and grant as plain statements in one transaction: what the functions are weighed against.

The same work as `turnstile.settle` and `turnstile.grant_locked`, statement for statement, adapted by hand; a
test holds both to the same grants. Seven round trips where the function takes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from benchmarks.line import Attempt, Settle

if TYPE_CHECKING:
    from benchmarks.line import Session

ROUND_TRIPS: Final = 7
"""BEGIN, the five statements, COMMIT."""

# What the functions set for themselves.
_SESSION_SETTINGS: Final = """
SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off
"""
_QUEUE_IDS: Final = "SELECT DISTINCT e.queue_id FROM execution e WHERE e.id = ANY ($1::bigint[])"
_LOCK: Final = "SELECT 1 FROM action_queue q WHERE q.id = ANY ($1::bigint[]) ORDER BY q.id FOR NO KEY UPDATE"
_FREE: Final = """
WITH freed AS (
    DELETE FROM slot s USING unnest($1::bigint[], $2::integer[]) c(id, attempt)
    WHERE s.execution_id = c.id AND s.attempt = c.attempt AND s.finished_at IS NOT NULL
    RETURNING s.execution_id, s.queue_id
),
told AS (
    DELETE FROM untold_end u USING unnest($1::bigint[]) c(id)
    WHERE u.execution_id = c.id
    RETURNING u.execution_id, u.queue_id
),
ended AS (
    SELECT f.queue_id, f.execution_id FROM freed f
    JOIN execution e ON e.id = f.execution_id AND e.completed_at IS NOT NULL
    UNION ALL
    SELECT t.queue_id, t.execution_id FROM told t
),
counted AS (
    UPDATE action_queue q
    SET total_completed = q.total_completed + n.ends, updated_at = clock_timestamp()
    FROM (SELECT d.queue_id, count(*) AS ends FROM ended d GROUP BY d.queue_id) n
    WHERE q.id = n.queue_id
)
SELECT (SELECT count(*) FROM freed) + (SELECT count(*) FROM told)
"""
_EARLY: Final = """
SELECT array_agg(c.id) FILTER (WHERE e.id IS NOT NULL), array_agg(c.id) FILTER (WHERE e.id IS NULL)
FROM unnest($1::bigint[], $2::integer[]) c(id, attempt)
LEFT JOIN execution e ON e.id = c.id
LEFT JOIN slot s ON s.execution_id = c.id AND s.attempt = c.attempt
WHERE e.id IS NULL OR c.attempt > e.attempt OR s.execution_id IS NOT NULL
"""
_GRANT: Final = """
WITH
decided AS MATERIALIZED (SELECT clock_timestamp() AS at),
capacity AS MATERIALIZED (
    SELECT q.id AS queue_id, q.head_id, q.max_concurrent, held.slots AS held,
           least(q.depth, 1000, coalesce(q.max_concurrent - held.slots, 1000)) AS take
    FROM action_queue q
    CROSS JOIN LATERAL (
        SELECT count(*) AS slots FROM slot s WHERE s.queue_id = q.id AND q.max_concurrent IS NOT NULL
    ) held
    WHERE q.id = ANY ($1::bigint[]) AND NOT q.paused AND q.depth > 0
),
room AS MATERIALIZED (
    SELECT c.queue_id, c.head_id, c.take,
           CASE WHEN c.max_concurrent IS NOT NULL THEN ARRAY(
               SELECT n::integer FROM generate_series(1, c.held + c.take) n
               WHERE NOT EXISTS (SELECT FROM slot s WHERE s.queue_id = c.queue_id AND s.slot_number = n)
               ORDER BY n LIMIT c.take
           ) END AS numbers
    FROM capacity c WHERE c.take > 0
),
head AS MATERIALIZED (
    SELECT r.queue_id, w.execution_id, r.numbers[w.rank] AS slot_number
    FROM room r
    CROSS JOIN LATERAL (
        SELECT first.execution_id, row_number() OVER (ORDER BY first.execution_id) AS rank
        FROM (
            SELECT line.execution_id FROM waiting line
            WHERE line.queue_id = r.queue_id AND line.execution_id >= r.head_id
            ORDER BY line.execution_id LIMIT r.take
        ) first
    ) w
),
moved AS (
    UPDATE execution e
    SET status = 'scheduled', attempt = e.attempt + 1, scheduled_at = d.at, worker_id = NULL
    FROM head h CROSS JOIN decided d
    WHERE e.id = h.execution_id AND e.status = 'queued'
    RETURNING e.id AS execution_id, e.attempt, e.action_id, e.traceparent, h.queue_id, h.slot_number, d.at
),
left_line AS (
    DELETE FROM waiting w USING moved m WHERE w.queue_id = m.queue_id AND w.execution_id = m.execution_id
),
took_slot AS (
    INSERT INTO slot (execution_id, queue_id, slot_number, attempt, granted_at, offered_at)
    SELECT m.execution_id, m.queue_id, m.slot_number, m.attempt, m.at, m.at FROM moved m
),
counted AS (
    UPDATE action_queue q
    SET depth = q.depth - p.started, head_id = p.last_id + 1, updated_at = p.at
    FROM (
        SELECT m.queue_id, m.at, count(*) AS started, max(m.execution_id) AS last_id
        FROM moved m GROUP BY m.queue_id, m.at
    ) p
    WHERE q.id = p.queue_id
)
SELECT m.execution_id, m.attempt, a.ref, a.pool, m.traceparent,
       (SELECT array_agg(r.queue_id) FROM room r WHERE r.take = 1000)
FROM moved m JOIN action a ON a.id = m.action_id ORDER BY m.execution_id
"""


async def by_statements(session: Session) -> Settle:
    """Settle by prepared statements inside BEGIN and COMMIT, on a session of their own."""
    await session.execute(_SESSION_SETTINGS)
    queue_ids_of, lock, free, early, grant = [
        await session.prepare(text) for text in (_QUEUE_IDS, _LOCK, _FREE, _EARLY, _GRANT)
    ]

    async def settle(execution_ids: Sequence[int], attempts: Sequence[int]) -> list[Attempt]:
        async with session.transaction():
            queue_ids = [row["queue_id"] for row in await queue_ids_of.fetch(execution_ids)]
            await lock.fetch(queue_ids)
            await free.fetchval(execution_ids, attempts)
            await early.fetchrow(execution_ids, attempts)
            rows = await grant.fetch(queue_ids)
        return [(row["execution_id"], row["attempt"]) for row in rows]

    return settle
