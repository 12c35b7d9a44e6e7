-- queue_pace: how fast the queue of one execution has moved of late, and who holds its slots since when.
--
-- It looks at the latest executions of the action that were granted before the head of that line: those of the
-- key itself first, then those of the action's other keys. Bounded in all: neither the depth of the line nor
-- the length of the record shows. What has a retry before it is left out, its grant is not known any more.
-- Seconds are counted back from now. But for one that is not due, nothing here reads the line but its head.
--
-- To be planned for its values (`plan_cache_mode`): by the index on the action and the ticket.
--
-- $1 execution id, $2 executions looked at, $3 grants taken, $4 holders
WITH line AS MATERIALIZED (
    SELECT e.id, e.action_id, e.queue_id, e.concurrency_key, e.status, q.head_id,
           coalesce((
               SELECT w.execution_id FROM waiting w
               WHERE w.queue_id = q.id AND w.execution_id >= q.head_id ORDER BY w.execution_id LIMIT 1
           ), 9223372036854775807) AS first_id
    FROM execution e JOIN action_queue q ON q.id = e.queue_id WHERE e.id = $1
),
latest AS MATERIALIZED (
    SELECT x.* FROM line l
    CROSS JOIN LATERAL (
        -- By its key: its queue may have been deleted as idle, and be a new one now.
        SELECT e.id, e.concurrency_key IS NOT DISTINCT FROM l.concurrency_key AS own, e.status,
               e.queued_at, e.scheduled_at, e.started_at, e.completed_at
        FROM execution e WHERE e.action_id = l.action_id AND e.id < l.first_id
        ORDER BY e.id DESC LIMIT $2::integer
    ) x
),
granted AS (
    SELECT g.own, extract(epoch FROM now() - g.queued_at)::float8 AS queued_ago,
           extract(epoch FROM now() - g.scheduled_at)::float8 AS granted_ago,
           -- A claim of an earlier attempt is none of this grant.
           CASE WHEN g.started_at >= g.scheduled_at THEN extract(epoch FROM g.started_at - g.scheduled_at)::float8 END
               AS claimed_after,
           extract(epoch FROM g.completed_at - g.scheduled_at)::float8 AS lasted
    FROM (
        SELECT * FROM latest
        WHERE scheduled_at IS NOT NULL AND status IN ('scheduled', 'running', 'completed', 'failed', 'timeout')
        ORDER BY own DESC, id DESC LIMIT $3::integer
    ) g
)
SELECT now() AS looked_at,
       (SELECT json_agg(json_build_array(g.own, g.queued_ago, g.granted_ago, g.claimed_after, g.lasted))
        FROM granted g) AS grants,
       -- Free numbers are given lowest first, so the lowest are all held in a full queue, and tell of all.
       (SELECT array_agg(h.age) FROM (
            SELECT CASE WHEN s.finished_at IS NULL THEN
                       greatest(extract(epoch FROM now() - s.granted_at), 0)::float8 END AS age
            FROM slot s WHERE s.queue_id = l.queue_id ORDER BY s.slot_number LIMIT $4::integer
        ) h) AS ages,
       CASE WHEN l.status = 'delayed' THEN (
           SELECT count(*) FROM waiting w
           WHERE w.queue_id = l.queue_id AND w.execution_id >= l.head_id AND w.execution_id < l.id
       ) END AS ahead
FROM line l
