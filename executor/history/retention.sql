-- What deletes old executions. Off the hot path: a bounded number of rows per call, no row that a turn
-- writes, and no waiting for locks.

-- try_turn: whether this transaction is the only one that prunes.
SELECT pg_try_advisory_xact_lock(1953853038, 5) AS is_own

-- next_action: the first action after a name that has executions, with its own retention or the given one.
-- `has_old`: its oldest execution was created before what is kept. Ids and instants of creation have the same
-- order, so otherwise none was.
--
-- $1 name, $2 kept for so many seconds or null, $3 so many are kept or null
SELECT e.action_ref, k.keep_seconds, k.keep_count,
       coalesce(e.created_at < now() - make_interval(secs => k.keep_seconds), false) AS has_old
FROM (
    SELECT x.action_ref, x.created_at FROM ledger.execution x
    WHERE x.action_ref > $1 ORDER BY x.action_ref, x.id LIMIT 1
) e
LEFT JOIN ledger.definition d ON d.kind = 'action' AND d.name = e.action_ref
CROSS JOIN LATERAL (
    SELECT coalesce((d.body ->> 'keep_for')::double precision, $2::double precision) AS keep_seconds,
           coalesce((d.body ->> 'keep_count')::bigint, $3::bigint) AS keep_count
) k

-- excess_up_to: the newest ended execution of an action beyond the newest $2; null: there are not so many.
--
-- $1 action
SELECT e.id FROM ledger.execution e
WHERE e.action_ref BETWEEN $1 AND $1 AND e.completed_at IS NOT NULL
ORDER BY e.action_ref DESC, e.id DESC OFFSET $2 LIMIT 1

-- prune: deletes among the next $6 executions of an action after $2 those that have ended and are too old, or
-- too many. `next_id`: where to continue; null: none is left, or all further ones are too young.
--
-- Keeps what ended less than $5 seconds ago: a late copy of a message may name it; and what has a webhook
-- that was not delivered: a replay posts it. The action as bounds: as a constant it would not be part of the
-- order, and executions of other actions would be read one by one.
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
delivered AS MATERIALIZED (
    -- As the locked row is: it may have been replayed just now.
    SELECT d.execution_id AS id FROM locked k
    JOIN ledger.webhook d ON d.execution_id = ANY (ARRAY[k.id])
    WHERE d.state = 'delivered' FOR UPDATE OF d SKIP LOCKED
),
prunable AS MATERIALIZED (
    SELECT k.id FROM locked k
    WHERE NOT EXISTS (SELECT FROM ledger.webhook d WHERE d.execution_id = ANY (ARRAY[k.id]))
       OR EXISTS (SELECT FROM delivered d WHERE d.id = k.id)
),
attempts AS (DELETE FROM ledger.attempt a USING prunable k WHERE a.execution_id = k.id),
logs AS (DELETE FROM ledger.log l USING prunable k WHERE l.execution_id = k.id),
progress AS (DELETE FROM ledger.progress p USING prunable k WHERE p.execution_id = k.id),
webhooks AS (DELETE FROM ledger.webhook d USING prunable k WHERE d.execution_id = k.id),
pruned AS (DELETE FROM ledger.execution e USING prunable k WHERE e.id = k.id RETURNING e.id)
SELECT (SELECT count(*) FROM pruned) AS pruned,
       -- Ids and instants of creation have the same order.
       (SELECT max(s.id) FROM scanned s
        HAVING count(*) = $6
           AND (max(s.created_at) < now() - make_interval(secs => $3) OR max(s.id) < $4)) AS next_id
