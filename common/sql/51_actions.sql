-- Definitions. `in_definitions` is a JSON array of objects with the columns of `action` as keys.

-- register_actions: store what is lacking, change nothing that is there: the limit in the database wins
-- over what a worker declares. Returns the definitions now in force.
CREATE FUNCTION turnstile.register_actions(in_definitions jsonb)
RETURNS SETOF action
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = public, pg_temp
AS $$
BEGIN
    INSERT INTO action (
        ref, runner, entrypoint, max_concurrent, concurrency_key, concurrency_key_path, timeout_seconds, ttl_seconds,
        retry_max_attempts, retry_delay_seconds, retry_factor, retry_max_delay_seconds, retry_jitter,
        on_worker_lost, max_reclaims, pool, when_full, max_queued, paused
    )
    SELECT d.ref, d.runner, d.entrypoint, d.max_concurrent, d.concurrency_key, d.concurrency_key_path,
           d.timeout_seconds, d.ttl_seconds, d.retry_max_attempts, d.retry_delay_seconds, d.retry_factor,
           d.retry_max_delay_seconds, d.retry_jitter, d.on_worker_lost, d.max_reclaims, d.pool, d.when_full,
           d.max_queued, d.paused
    FROM jsonb_populate_recordset(NULL::action, in_definitions) d
    ORDER BY d.ref
    ON CONFLICT (ref) DO NOTHING;

    RETURN QUERY
    SELECT a.* FROM action a
    WHERE a.ref IN (SELECT d.ref FROM jsonb_populate_recordset(NULL::action, in_definitions) d);
END
$$;

-- put_actions: store these definitions, and let a changed limit or pause act at once.
--
-- Order: the action's row, then its queues' rows, then, in a later statement, the grant. A queue that is
-- being born waits for the action's row (see admit), so none keeps an old limit.
CREATE FUNCTION turnstile.put_actions(
    in_definitions jsonb,
    OUT granted turnstile.granted[],
    OUT more_queue_ids bigint[]
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
AS $$
DECLARE
    action_ids bigint[];
    queue_ids bigint[];
BEGIN
    WITH stored AS (
        INSERT INTO action AS a (
            ref, runner, entrypoint, max_concurrent, concurrency_key, concurrency_key_path, timeout_seconds,
            ttl_seconds, retry_max_attempts, retry_delay_seconds, retry_factor, retry_max_delay_seconds, retry_jitter,
            on_worker_lost, max_reclaims, pool, when_full, max_queued, paused
        )
        SELECT d.ref, d.runner, d.entrypoint, d.max_concurrent, d.concurrency_key, d.concurrency_key_path,
               d.timeout_seconds, d.ttl_seconds, d.retry_max_attempts, d.retry_delay_seconds, d.retry_factor,
               d.retry_max_delay_seconds, d.retry_jitter, d.on_worker_lost, d.max_reclaims, d.pool, d.when_full,
               d.max_queued, d.paused
        FROM jsonb_populate_recordset(NULL::action, in_definitions) d
        ORDER BY d.ref
        ON CONFLICT (ref) DO UPDATE SET
            runner = excluded.runner, entrypoint = excluded.entrypoint, max_concurrent = excluded.max_concurrent,
            concurrency_key = excluded.concurrency_key, concurrency_key_path = excluded.concurrency_key_path,
            timeout_seconds = excluded.timeout_seconds, ttl_seconds = excluded.ttl_seconds,
            retry_max_attempts = excluded.retry_max_attempts, retry_delay_seconds = excluded.retry_delay_seconds,
            retry_factor = excluded.retry_factor, retry_max_delay_seconds = excluded.retry_max_delay_seconds,
            retry_jitter = excluded.retry_jitter, on_worker_lost = excluded.on_worker_lost,
            max_reclaims = excluded.max_reclaims, pool = excluded.pool, when_full = excluded.when_full,
            max_queued = excluded.max_queued, paused = excluded.paused, updated_at = clock_timestamp()
        RETURNING a.id
    )
    SELECT array_agg(id) INTO action_ids FROM stored;

    queue_ids := ARRAY(SELECT q.id FROM action_queue q WHERE q.action_id = ANY (action_ids));
    PERFORM 1 FROM action_queue q WHERE q.id = ANY (queue_ids) ORDER BY q.id FOR NO KEY UPDATE;
    UPDATE action_queue q
    SET max_concurrent = a.max_concurrent, paused = a.paused, updated_at = clock_timestamp()
    FROM action a
    WHERE q.id = ANY (queue_ids) AND a.id = q.action_id
      AND (q.max_concurrent IS DISTINCT FROM a.max_concurrent OR q.paused <> a.paused);
    SELECT g.granted, g.more_queue_ids INTO granted, more_queue_ids FROM turnstile.grant_locked(queue_ids) g;
END
$$;
