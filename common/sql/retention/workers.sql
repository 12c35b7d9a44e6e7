-- prune_workers: deletes workers that stopped or were lost more than `in_keep_seconds` ago and that no slot
-- or cancel refers to. Their ids stay in the history of attempts.
CREATE FUNCTION turnstile.prune_workers(in_keep_seconds double precision, in_limit integer)
RETURNS integer
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    gone_since timestamptz := clock_timestamp() - make_interval(secs => in_keep_seconds);
    pruned integer;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT w.id FROM worker w
        -- The start time selects by the index; the time of leaving decides.
        WHERE (w.lost_at IS NOT NULL OR w.stopped_at IS NOT NULL) AND w.started_at < gone_since
          AND greatest(w.lost_at, w.stopped_at, w.renewed_at) < gone_since
          AND NOT EXISTS (SELECT FROM turnstile.live_slot s WHERE s.worker_id = w.id)
          AND NOT EXISTS (SELECT FROM turnstile.live_unpublished_cancel u WHERE u.worker_id = w.id)
        ORDER BY w.started_at LIMIT in_limit FOR UPDATE SKIP LOCKED
    )
    DELETE FROM worker w USING old o WHERE w.id = ANY (ARRAY[o.id]);
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN pruned;
END
$$;

-- prune_pools: deletes pools that no action names any more and of which no slot takes capacity, and notes
-- where nothing waits any more. The first pool stays: it says that an executor counts workers, so that a new
-- pool has a limit at once.
CREATE FUNCTION turnstile.prune_pools(in_limit integer)
RETURNS integer
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    unused_ids bigint[] := turnstile.unused_pools(in_limit);
    waiting_ids bigint[];
BEGIN
    waiting_ids := ARRAY(SELECT p.id FROM worker_pool p WHERE p.waits ORDER BY p.id
                         FOR NO KEY UPDATE SKIP LOCKED);
    UPDATE worker_pool p SET waits = false
    FROM turnstile.current_pool c WHERE p.id = ANY (waiting_ids) AND c.id = p.id AND c.depth = 0;
    IF unused_ids = '{}' THEN
        RETURN 0;
    END IF;
    -- Whatever gives an action its pool has written to this table before it reads the pools. The transactions
    -- that did are not waited for, since others would wait behind: the next call tries again.
    BEGIN
        LOCK TABLE action IN SHARE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RETURN 0;
    END;
    -- A grant in one of these pools holds its row. What it has granted shows in a later statement.
    unused_ids := ARRAY(SELECT p.id FROM worker_pool p WHERE p.id = ANY (unused_ids) ORDER BY p.id
                        FOR UPDATE SKIP LOCKED);
    unused_ids := ARRAY(SELECT u.id FROM unnest(unused_ids) u(id)
                        WHERE u.id = ANY (turnstile.unused_pools(in_limit)));
    DELETE FROM ready_queue r USING action a WHERE a.pool_id = ANY (unused_ids) AND r.action_id = a.id;
    DELETE FROM pool_turn t WHERE t.pool_id = ANY (unused_ids);
    DELETE FROM pool_state v WHERE v.pool_id = ANY (unused_ids);
    DELETE FROM worker_set_state v WHERE v.pool_id = ANY (unused_ids);
    DELETE FROM worker_pool p WHERE p.id = ANY (unused_ids);
    RETURN cardinality(unused_ids);
END
$$;

-- unused_pools: the next pools that no action names any more, of which no slot takes capacity, and which have
-- the default
-- settings.
CREATE FUNCTION turnstile.unused_pools(in_limit integer)
RETURNS bigint[]
LANGUAGE sql
STABLE
:settings_for_index_order
AS $$
    SELECT ARRAY(
        SELECT p.id FROM worker_pool p
        WHERE p.id > (SELECT min(f.id) FROM worker_pool f) AND p.id <> ALL (ARRAY(
                SELECT a.pool_id FROM action a
                WHERE a.pool_id IS NOT NULL
                  AND (a.deleted_at IS NULL OR EXISTS (
                      SELECT FROM turnstile.current_queue q
                      WHERE q.action_id = a.id AND q.depth + q.held > 0))))
          AND p.fair AND NOT p.paused AND p.weights = '{}'
          AND NOT EXISTS (SELECT FROM turnstile.live_slot s WHERE s.pool_id = p.id)
        ORDER BY p.id LIMIT in_limit)
$$;
