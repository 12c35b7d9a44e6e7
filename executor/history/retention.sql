-- What deletes old executions. Off the hot path: a bounded number of rows per call, no row that a turn
-- writes, and no waiting for locks.

-- try_turn: whether this transaction is the only one that prunes.
SELECT pg_try_advisory_xact_lock(1953853038, 3) AS is_own

-- next_action: the first action after a name that has executions, with its own retention, if it has one.
--
-- $1 name
SELECT e.action_ref, (d.body ->> 'keep_for_seconds')::double precision AS keep_seconds
FROM (
    SELECT x.action_ref FROM ledger.execution x WHERE x.action_ref > $1 ORDER BY x.action_ref LIMIT 1
) e
LEFT JOIN ledger.definition d ON d.kind = 'action' AND d.name = e.action_ref

-- excess_up_to: the newest ended execution of an action beyond the newest $2; null: there are not so many.
--
-- $1 action
SELECT e.id FROM ledger.execution e
WHERE e.action_ref BETWEEN $1 AND $1 AND e.completed_at IS NOT NULL
ORDER BY e.action_ref DESC, e.id DESC OFFSET $2 LIMIT 1

-- prune: deletes among the next $6 executions of an action after $2 those that have ended and are too old, or
-- too many. `next_id`: where to continue; null: none is left, or all further ones are too young.
--
-- Keeps what ended less than $5 seconds ago: a late copy of a message may name it. The action as bounds: as a
-- constant it would not be part of the order, and executions of other actions would be read one by one.
--
-- $1 action, $2 after this id, $3 kept for so many seconds or null, $4 excess up to this id or null
WITH scanned AS MATERIALIZED (
    SELECT e.id, e.created_at, e.completed_at FROM ledger.execution e
    WHERE e.action_ref BETWEEN $1 AND $1 AND e.id > $2
    ORDER BY e.action_ref, e.id LIMIT $6
),
locked AS MATERIALIZED (
    SELECT e.id FROM scanned s JOIN ledger.execution e ON e.id = s.id
    WHERE s.completed_at < now() - make_interval(secs => $5)
      AND (s.completed_at < now() - make_interval(secs => $3) OR s.id <= $4)
    FOR UPDATE OF e SKIP LOCKED
),
attempts AS (DELETE FROM ledger.attempt a USING locked k WHERE a.execution_id = k.id),
logs AS (DELETE FROM ledger.log l USING locked k WHERE l.execution_id = k.id),
progress AS (DELETE FROM ledger.progress p USING locked k WHERE p.execution_id = k.id),
pruned AS (DELETE FROM ledger.execution e USING locked k WHERE e.id = k.id RETURNING e.id)
SELECT (SELECT count(*) FROM pruned) AS pruned,
       -- Ids and instants of creation have the same order.
       (SELECT max(s.id) FROM scanned s
        HAVING count(*) = $6
           AND (max(s.created_at) < now() - make_interval(secs => $3) OR max(s.id) < $4)) AS next_id
