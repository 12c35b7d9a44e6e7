-- audit_live: the rows that a leader would load, against the records of their executions. The cost follows
-- what has not ended.
--
-- A check yields one row for each subject that it reads: its id, whether it is wrong, what was expected and
-- what was found.

-- check kept_row of execution: what is kept as waiting or live has not ended
SELECT k.id, (e.id IS NOT NULL AND e.completed_at IS NULL AND p.execution_id IS NULL) IS NOT TRUE AS wrong,
       'an execution that has not ended' AS expected,
       CASE WHEN e.id IS NULL THEN 'no execution'
            ELSE format('%s at %s', coalesce(p.status, e.status),
                        coalesce(p.completed_at, e.completed_at)) END AS found
FROM (SELECT l.id FROM ledger.live l UNION SELECT w.id FROM ledger.waiting w) k
LEFT JOIN ledger.execution e ON e.id = k.id
LEFT JOIN ledger.pending_end p ON p.execution_id = k.id;

-- check granted_row of execution: a row of grants is kept while one of its executions has not ended
SELECT g.execution_ids[1] AS id, x.open_ones = 0 AS wrong, 'an execution that has not ended' AS expected,
       format('%s ended ones of worker %s', cardinality(g.execution_ids), g.worker_id) AS found
FROM ledger.granted g
CROSS JOIN LATERAL (
    SELECT count(*) AS open_ones
    FROM unnest(g.execution_ids) u(id)
    JOIN ledger.execution e ON e.id = u.id AND e.completed_at IS NULL
    WHERE NOT EXISTS (SELECT FROM ledger.pending_end p WHERE p.execution_id = e.id)
) x;

-- check held_worker of execution: what is at a worker is at one that lives
SELECT h.id, (w.gone_at IS NULL AND w.worker_id IS NOT NULL) IS NOT TRUE AS wrong,
       format('worker %s', h.worker_id) AS expected, coalesce(w.gone_why, 'no such worker') AS found
FROM (
    SELECT l.id, l.worker_id FROM ledger.live l WHERE l.worker_id IS NOT NULL
    UNION ALL
    SELECT g.id, g.worker_id
    FROM ledger.first_grant g
    JOIN ledger.execution e ON e.id = g.id AND e.completed_at IS NULL
    WHERE NOT EXISTS (SELECT FROM ledger.live l WHERE l.id = g.id)
      AND NOT EXISTS (SELECT FROM ledger.pending_end p WHERE p.execution_id = g.id)
) h
LEFT JOIN ledger.worker w ON w.worker_id = h.worker_id;

-- check known_action of execution: what has not ended is of a defined action
SELECT u.id, d.name IS NULL AS wrong, format('action %s', u.action_ref) AS expected, 'no such action' AS found
FROM ledger.unfinished u
LEFT JOIN ledger.definition d ON d.kind = 'action' AND d.name = u.action_ref;

-- check pending_end of execution: an end that waits for a locked row has an execution without an end
SELECT p.execution_id AS id, (e.id IS NOT NULL AND e.completed_at IS NULL) IS NOT TRUE AS wrong,
       'an execution without an end' AS expected,
       CASE WHEN e.id IS NULL THEN 'no execution' ELSE format('%s at %s', e.status, e.completed_at) END
           AS found
FROM ledger.pending_end p LEFT JOIN ledger.execution e ON e.id = p.execution_id;

-- check due of execution: a delayed execution is queued when it is due
SELECT l.id, l.due_at < now() - :late AS wrong, format('queued at %s', l.due_at) AS expected,
       'delayed' AS found
FROM ledger.live l WHERE l.status = 'delayed';

-- check expiry of execution: a queued execution ends when it expires
SELECT x.id, x.expires_at < now() - :late AS wrong, format('expired at %s', x.expires_at) AS expected,
       'queued' AS found
FROM (
    SELECT l.id, l.expires_at FROM ledger.live l WHERE l.status = 'queued'
    UNION ALL
    SELECT w.id, w.expires_at FROM ledger.waiting w
    WHERE NOT EXISTS (SELECT FROM ledger.first_grant g WHERE g.id = w.id)
) x WHERE x.expires_at IS NOT NULL;

-- check undecided of command: a command is decided soon after its commit
SELECT i.id, i.submitted_at < now() - :late AS wrong,
       format('decided soon after %s', i.submitted_at) AS expected,
       format('undecided %s', i.kind) AS found
FROM ledger.inbox i WHERE i.id IS NOT NULL;
