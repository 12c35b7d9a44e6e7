-- Stuck links: what should have been seen to by now. Lateness counts from the latest instant from which the next
-- step was possible, and the bounds are generous: the watchdog's own, and a grace beside them. Costs what lives.

-- check offer of execution: what is granted and not claimed is offered again, where its pool's queue cannot hold it
-- It cannot where a later grant of the pool was claimed, nor where a worker that serves the action runs nothing for
-- long; an offer that was withheld is due from the instant from which somebody serves it.
SELECT s.execution_id AS id,
       served.since IS NOT NULL
       AND greatest(served.since, CASE WHEN s.offered_at < n.granted_at - interval '1 s'
                                       THEN greatest(s.offered_at + b.dispatch, n.claimed_at)
                                       WHEN n.pool IS NULL THEN s.offered_at + b.dispatch * 10
                                       WHEN s.offered_at IS NOT NULL THEN b.at END)
           < b.at - b.grace - b.pace * count(*) OVER () AS wrong,
       format('offered again within %s', b.dispatch) AS expected,
       format('granted %s, offered %s', s.granted_at, coalesce(s.offered_at::text, 'never')) AS found
FROM bound b
CROSS JOIN slot s
JOIN action_queue q ON q.id = s.queue_id
JOIN action a ON a.id = q.action_id
CROSS JOIN LATERAL (
    SELECT min(w.started_at) AS since FROM worker w
    WHERE a.pool = ANY (w.pools) AND w.lost_at IS NULL AND w.stopped_at IS NULL AND w.draining_at IS NULL
      AND w.lease_expires_at > b.at
      AND (a.runner <> 'python' OR a.entrypoint IS NOT NULL OR w.served_refs IS NULL OR a.ref = ANY (w.served_refs))
) served
LEFT JOIN (
    SELECT DISTINCT ON (a.pool) a.pool, s.granted_at, s.claimed_at
    FROM slot s JOIN action_queue q ON q.id = s.queue_id JOIN action a ON a.id = q.action_id
    WHERE s.claimed_at IS NOT NULL ORDER BY a.pool, s.granted_at DESC
) n ON n.pool = a.pool
WHERE s.claimed_at IS NULL AND s.finished_at IS NULL;

-- check completion of execution: an end that is not settled is told again
SELECT u.execution_id AS id, u.told_at < b.at - b.settle - b.grace - b.pace * count(*) OVER () AS wrong,
       format('told again within %s', b.settle) AS expected, format('last told %s', u.told_at) AS found
FROM bound b
CROSS JOIN (
    SELECT s.execution_id, greatest(s.told_at, s.finished_at) AS told_at FROM slot s WHERE s.finished_at IS NOT NULL
    UNION ALL
    SELECT u.execution_id, u.told_at FROM untold_end u
) u;

-- check settling of execution: an end that is told over and over is settled
SELECT u.execution_id AS id, u.ended_at < b.at - b.settle * 10 - b.grace - b.pace * count(*) OVER () AS wrong,
       format('settled within %s', b.settle * 10) AS expected, format('ended %s', u.ended_at) AS found
FROM bound b
CROSS JOIN (
    SELECT s.execution_id, s.finished_at AS ended_at FROM slot s WHERE s.finished_at IS NOT NULL
    UNION ALL
    SELECT u.execution_id, e.completed_at FROM untold_end u JOIN execution e ON e.id = ANY (ARRAY[u.execution_id])
) u;

-- check orphan of execution: what a worker held that left or was lost goes back
SELECT s.execution_id AS id,
       least(w.lost_at, w.stopped_at, w.lease_expires_at)
           < b.at - b.lease - b.grace - b.pace * count(*) OVER () AS wrong,
       format('taken back within %s', b.lease) AS expected,
       format('worker %s, gone since %s', w.id, least(w.lost_at, w.stopped_at, w.lease_expires_at)) AS found
FROM bound b CROSS JOIN slot s JOIN worker w ON w.id = s.worker_id WHERE s.finished_at IS NULL;

-- check overdue of execution: an attempt that should have stopped is told to, or ended
SELECT s.execution_id AS id, s.overdue_at < b.at - b.stop - b.grace - b.pace * count(*) OVER () AS wrong,
       format('told to stop within %s', b.stop) AS expected, format('overdue since %s', s.overdue_at) AS found
FROM bound b CROSS JOIN slot s WHERE s.finished_at IS NULL AND s.overdue_at IS NOT NULL;

-- check stop of execution: a lost worker is told to stop what was taken from it
SELECT u.execution_id AS id, u.noted_at < b.at - b.stop - b.grace - b.pace * count(*) OVER () AS wrong,
       format('worker %s told within %s', u.worker_id, b.stop) AS expected,
       format('taken back at %s', u.noted_at) AS found
FROM bound b CROSS JOIN untold_stop u;

-- check waking of execution: what is due takes its place in line
-- A retry takes it once its last slot is settled, which may have been a moment ago.
SELECT d.execution_id AS id,
       NOT EXISTS (SELECT FROM slot s WHERE s.execution_id = d.execution_id)
       AND d.due_at < b.at - b.grace - b.pace * count(*) OVER ()
                      - CASE WHEN e.attempt > 0 THEN b.settle * 10 ELSE interval '0' END AS wrong,
       'in line' AS expected, format('due at %s', d.due_at) AS found
FROM bound b CROSS JOIN delayed d JOIN execution e ON e.id = ANY (ARRAY[d.execution_id]) WHERE d.due_at < b.at;

-- check expiry of execution: a deadline that has passed is acted on
SELECT x.execution_id AS id, x.expires_at < b.at - b.grace - b.pace * count(*) OVER () AS wrong,
       'no deadline any more' AS expected, format('expired at %s', x.expires_at) AS found
FROM bound b CROSS JOIN expiring x WHERE x.expires_at < b.at;

-- check webhook of execution: the webhook that was due first of all to its receiver is under way
-- Behind it others may wait for long: a receiver gets so many at once. Each receiver's first may wait for a place.
SELECT f.execution_id AS id,
       greatest(f.due_at, f.claimed_until) < b.at - b.webhook * 2 - b.grace - b.webhook * count(*) OVER () / 32
           AS wrong,
       format('posted within %s', b.webhook) AS expected,
       format('due at %s, %s', f.due_at, coalesce('claimed until ' || f.claimed_until, 'never claimed')) AS found
FROM bound b
CROSS JOIN (
    SELECT DISTINCT ON (d.origin) d.execution_id, d.due_at, d.claimed_until
    FROM webhook_delivery d WHERE d.state = 'pending' ORDER BY d.origin, d.due_at
) f;

-- check idle_slot of queue: no free slot stands beside a waiting execution
-- Whatever makes a slot free or a line longer leaves its instant in the queue's row.
SELECT q.id,
       (q.max_concurrent IS NULL OR q.max_concurrent > coalesce(h.slots, 0))
       AND q.updated_at < b.at - b.grace - b.pace * count(*) OVER () AS wrong,
       coalesce(q.max_concurrent || ' slots held', 'nobody waits') AS expected,
       format('%s wait, %s slots held, since %s', q.depth, coalesce(h.slots, 0), q.updated_at) AS found
FROM bound b
CROSS JOIN action_queue q
LEFT JOIN (SELECT s.queue_id, count(*) AS slots FROM slot s GROUP BY s.queue_id) h ON h.queue_id = q.id
WHERE q.depth > 0 AND NOT q.paused;
