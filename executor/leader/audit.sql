-- The rows of the ledger in a few sums, as `audit.digest_of` sums up the memory. One snapshot for all.

-- audit_waiting: what waits and holds nothing, by action and priority.
SELECT w.action_ref, w.priority, count(*) AS executions, sum(w.id)::text AS ids, count(DISTINCT w.key) AS keys
FROM (
    SELECT u.id, e.action_ref, e.key, e.priority
    FROM ledger.unfinished u
    JOIN ledger.execution e ON e.id = u.id
    WHERE NOT EXISTS (SELECT FROM ledger.live l WHERE l.id = u.id)
      AND NOT EXISTS (SELECT FROM ledger.first_grant g WHERE g.id = u.id)
    UNION ALL
    SELECT l.id, l.action_ref, l.key, l.priority FROM ledger.live l
    WHERE l.status = 'queued' AND NOT l.is_holding
) w
GROUP BY w.action_ref, w.priority

-- audit_recorded: what has a row of its own, by status.
SELECT l.status::text AS status, count(*) AS executions, sum(l.id)::text AS ids, sum(l.attempt) AS attempts,
       sum(l.failures) AS failures, sum(l.reclaims) AS reclaims, count(l.cancel_reason) AS cancels
FROM ledger.live l GROUP BY l.status

-- audit_held: what is at each worker.
SELECT h.worker_id, count(*) AS executions, sum(h.id)::text AS ids
FROM (
    SELECT l.worker_id, l.id FROM ledger.live l WHERE l.worker_id IS NOT NULL
    UNION ALL
    SELECT g.worker_id, g.id FROM ledger.first_grant g
    JOIN ledger.unfinished u ON u.id = g.id
    WHERE NOT EXISTS (SELECT FROM ledger.live l WHERE l.id = g.id)
) h
GROUP BY h.worker_id

-- audit_units: units of resources that are held.
SELECT u.unit ->> 0 AS resource, sum((u.unit ->> 1)::bigint)::bigint AS units
FROM ledger.live l CROSS JOIN LATERAL jsonb_array_elements(l.held) AS u(unit)
GROUP BY u.unit ->> 0
