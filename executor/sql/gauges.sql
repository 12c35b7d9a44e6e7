-- gauges: the state of queues and workers, in one snapshot, for /metrics.
--
-- Steps from queue to queue by the index, past all entries of each: the cost follows the queues that are not empty, at
-- most $1 of them, and the held slots. Actions without queued executions and held slots are left out.
--
-- Dead letters are counted by the index on their codes; the retention bounds their number.
--
-- $1 queues read, $2 codes of dead letters; those of any other code are counted together
WITH RECURSIVE line(queue_id, head_id, rank) AS (
    (SELECT w.queue_id, w.execution_id, 1 FROM waiting w ORDER BY w.queue_id, w.execution_id LIMIT 1)
    UNION ALL
    SELECT next.queue_id, next.execution_id, l.rank + 1
    FROM line l
    CROSS JOIN LATERAL (
        SELECT w.queue_id, w.execution_id FROM waiting w WHERE w.queue_id > l.queue_id
        ORDER BY w.queue_id, w.execution_id LIMIT 1
    ) next
    WHERE l.rank < $1
),
held AS (
    SELECT s.queue_id, count(*) AS slots FROM slot s GROUP BY s.queue_id
),
standing AS (
    SELECT q.action_id, sum(q.depth)::bigint AS depth, coalesce(sum(h.slots), 0)::bigint AS slots,
           min(l.head_id) AS head_id
    FROM line l
    FULL JOIN held h ON h.queue_id = l.queue_id
    JOIN action_queue q ON q.id = ANY (ARRAY[coalesce(l.queue_id, h.queue_id)])
    GROUP BY q.action_id
)
SELECT (
           SELECT json_agg(json_build_object(
               'action_ref', a.ref, 'depth', s.depth, 'slots', s.slots, 'slot_limit', a.max_concurrent,
               'oldest_seconds', (
                   SELECT extract(epoch FROM now() - e.queued_at)
                   FROM execution e WHERE e.id = ANY (ARRAY[s.head_id])
               )
           ) ORDER BY a.id)
           FROM standing s JOIN action a ON a.id = ANY (ARRAY[s.action_id])
       ) AS actions,
       (
           SELECT json_object_agg(state.name, state.processes)
           FROM (
               SELECT CASE WHEN w.lease_expires_at <= now() THEN 'overdue'
                           WHEN w.draining_at IS NOT NULL THEN 'draining'
                           ELSE 'live' END AS name,
                      count(*) AS processes
               FROM worker w WHERE w.lost_at IS NULL AND w.stopped_at IS NULL GROUP BY 1
           ) state
       ) AS workers,
       (
           SELECT json_object_agg(counted.code, counted.letters)
           FROM (
               SELECT CASE WHEN d.code = ANY ($2) THEN d.code ELSE 'other' END AS code, sum(d.letters) AS letters
               FROM (SELECT d.code, count(*) AS letters FROM dead_letter d GROUP BY d.code) d GROUP BY 1
           ) counted
       ) AS dead_letters
