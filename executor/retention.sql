-- What is deleted beside the history, webhooks and dead letters.

-- prune_audit_log: deletes what was recorded long ago, with the rights of the owner of the table.
--
-- $1 seconds, $2 most
SELECT ledger.prune_audit_log($1, $2)

-- prune_history: deletes minutes that are over for long.
--
-- $1 seconds, $2 most
WITH old AS MATERIALIZED (
    SELECT m.action_ref, m.at, m.epoch FROM ledger.action_minute m
    WHERE m.at < clock_timestamp() - make_interval(secs => $1)
    ORDER BY m.at LIMIT $2 FOR UPDATE SKIP LOCKED
),
pruned AS (
    DELETE FROM ledger.action_minute m USING old o
    WHERE m.action_ref = o.action_ref AND m.at = o.at AND m.epoch = o.epoch RETURNING 1
)
SELECT count(*) FROM pruned

-- prune_workers: deletes workers that have been gone for long. Their ids stay in the history of attempts.
--
-- $1 seconds, $2 most
WITH old AS MATERIALIZED (
    SELECT w.worker_id FROM ledger.worker w
    -- The index selects by the registration, which was earlier.
    WHERE w.gone_at IS NOT NULL AND w.registered_at < clock_timestamp() - make_interval(secs => $1)
      AND w.gone_at < clock_timestamp() - make_interval(secs => $1)
    ORDER BY w.registered_at LIMIT $2 FOR UPDATE SKIP LOCKED
),
pruned AS (DELETE FROM ledger.worker w USING old o WHERE w.worker_id = o.worker_id RETURNING 1)
SELECT count(*) FROM pruned
