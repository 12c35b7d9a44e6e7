-- queue_line: who waits for an action, in ticket order, with exact places. Each key has a line of its own, so
-- places count within one key; the page runs over all lines, or over the one that $2 names.
--
-- $1 action ref, $2 concurrency key, $3 after id, $4 rows
WITH line AS MATERIALIZED (
    SELECT q.id, q.concurrency_key, q.head_id
    FROM action_queue q
    WHERE q.action_id = (SELECT a.id FROM action a WHERE a.ref = $1)
      AND ($2::text IS NULL OR q.concurrency_key = $2) AND q.depth > 0
),
page AS MATERIALIZED (
    SELECT l.id AS queue_id, l.concurrency_key, l.head_id, w.execution_id
    FROM line l
    CROSS JOIN LATERAL (
        SELECT w.execution_id FROM waiting w
        WHERE w.queue_id = l.id AND w.execution_id >= greatest(l.head_id, $3::bigint + 1)
        ORDER BY w.execution_id LIMIT $4::integer
    ) w
    ORDER BY w.execution_id LIMIT $4::integer
),
-- One count for each line on the page; the places within the page follow from it.
ahead AS MATERIALIZED (
    SELECT f.queue_id, (
        SELECT count(*) FROM waiting w
        WHERE w.queue_id = f.queue_id AND w.execution_id >= f.head_id AND w.execution_id < f.first_id
    ) AS places
    FROM (
        SELECT p.queue_id, p.head_id, min(p.execution_id) AS first_id FROM page p GROUP BY p.queue_id, p.head_id
    ) f
)
SELECT p.execution_id AS id, nullif(p.concurrency_key, '') AS concurrency_key, e.created_at, e.queued_at,
       b.places + row_number() OVER (PARTITION BY p.queue_id ORDER BY p.execution_id) AS position
FROM page p
JOIN ahead b ON b.queue_id = p.queue_id
JOIN execution e ON e.id = p.execution_id
ORDER BY p.execution_id
