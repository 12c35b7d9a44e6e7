-- replay_webhooks: makes these settled deliveries due again; without ids, the oldest failed ones, at most
-- `in_limit`. The event id stays. `left_count`: number of deliveries that remain failed.
--
-- Locks the executions first, so that they are not pruned: a delivery without its execution has no content.
CREATE FUNCTION turnstile.replay_webhooks(
    in_execution_ids bigint[],
    in_limit integer,
    in_caller jsonb DEFAULT NULL,
    OUT replayed_ids bigint[],
    OUT pending_ids bigint[],
    OUT left_count bigint
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    wanted_ids bigint[] := coalesce(in_execution_ids, ARRAY(
        SELECT d.execution_id FROM webhook_delivery d WHERE d.state = 'failed' ORDER BY d.execution_id
        LIMIT in_limit));
    due_from timestamptz;
    previous text[];
BEGIN
    PERFORM 1 FROM execution e WHERE e.id = ANY (wanted_ids) ORDER BY e.id FOR KEY SHARE;
    PERFORM pg_current_xact_id();
    PERFORM turnstile.keep_receivers(ARRAY(
        SELECT d.origin FROM webhook_delivery d WHERE d.execution_id = ANY (wanted_ids)));
    due_from := greatest(clock_timestamp(), (SELECT b.next_at FROM turnstile.due_bound b));
    pending_ids := ARRAY(
        SELECT d.execution_id FROM webhook_delivery d
        WHERE d.execution_id = ANY (wanted_ids) AND d.state = 'pending');
    WITH settled AS MATERIALIZED (
        SELECT d.execution_id, d.state FROM webhook_delivery d
        WHERE d.execution_id = ANY (wanted_ids) AND d.state <> 'pending'
          AND (SELECT e.id FROM execution e WHERE e.id = d.execution_id) IS NOT NULL
        ORDER BY d.execution_id FOR NO KEY UPDATE
    ),
    again AS (
        UPDATE webhook_delivery d
        SET state = 'pending', attempts = 0, due_at = due_from, created_at = clock_timestamp(),
            settled_at = NULL
        FROM settled s WHERE d.execution_id = ANY (ARRAY[s.execution_id])
        RETURNING d.execution_id, s.state
    )
    SELECT coalesce(array_agg(a.execution_id ORDER BY a.execution_id), '{}'),
           array_agg(a.state ORDER BY a.execution_id)
    INTO replayed_ids, previous FROM again a;
    IF in_caller IS NOT NULL THEN
        PERFORM turnstile.note_caller(in_caller);
        PERFORM turnstile.log_operations(
            'replayed', 'webhook', array_agg(r.id::text ORDER BY r.id), array_agg(a.ref ORDER BY r.id),
            array_agg(jsonb_build_object('state', r.state) ORDER BY r.id),
            array_agg('{"state": "pending"}'::jsonb ORDER BY r.id))
        FROM unnest(replayed_ids, previous) r(id, state)
        LEFT JOIN execution e ON e.id = ANY (ARRAY[r.id])
        LEFT JOIN action a ON a.id = ANY (ARRAY[e.action_id]);
    END IF;
    left_count := (SELECT count(*) FROM webhook_delivery d WHERE d.state = 'failed');
END
$$;

-- give_up_webhooks: of the next `in_limit` pending deliveries after `in_after_id`, makes those 'failed' whose
-- execution ended, or that were last replayed, more than `in_age_seconds` ago: the queue of a receiver that
-- never answers must not grow for ever. `next_id`: where to continue; 0: no more deliveries.
--
-- Skips deliveries that are being sent, and those that became due less than a minute ago: a receiver that
-- requested a delay gets one more request. Adds receivers that are missing: a settle of the previous version
-- may have run on during the migration.
CREATE FUNCTION turnstile.give_up_webhooks(
    in_after_id bigint, in_age_seconds double precision, in_limit integer, OUT given_up integer,
    OUT next_id bigint
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    checked_at timestamptz := clock_timestamp();
    created_before timestamptz := checked_at - make_interval(secs => in_age_seconds);
    receivers text[];
    settled_receivers text[];
BEGIN
    -- The state as bounds: as a constant it would not be part of the order.
    WITH scanned AS MATERIALIZED (
        SELECT d.execution_id, d.origin, d.created_at FROM webhook_delivery d
        WHERE d.state BETWEEN 'pending' AND 'pending' AND d.execution_id > in_after_id
        ORDER BY d.state, d.execution_id LIMIT in_limit
    ),
    old AS MATERIALIZED (
        -- Checked again on the locked row: it may have been claimed in between.
        SELECT d.execution_id
        FROM scanned l JOIN webhook_delivery d ON d.execution_id = ANY (ARRAY[l.execution_id])
        WHERE l.created_at < created_before
          AND CASE WHEN d.state = 'pending' AND d.created_at < created_before
                   THEN d.due_at < checked_at - interval '1 min'
                        AND (d.claimed_until IS NULL OR d.claimed_until < checked_at) END
        FOR NO KEY UPDATE OF d SKIP LOCKED
    ),
    failed AS (
        UPDATE webhook_delivery d
        SET state = 'failed', claimed_until = NULL, settled_at = checked_at,
            last_error = format('given up after %s s (TURNSTILE_WEBHOOK_AGE_MAX); %s', in_age_seconds,
                CASE WHEN d.attempts > 0
                         THEN 'last attempt: ' || coalesce(d.last_error, 'no outcome recorded')
                     ELSE 'never attempted' END)
        FROM old o WHERE d.execution_id = ANY (ARRAY[o.execution_id])
        RETURNING d.origin
    )
    SELECT (SELECT count(*) FROM failed),
           (SELECT CASE WHEN count(*) >= in_limit THEN max(l.execution_id) ELSE 0 END FROM scanned l),
           (SELECT array_agg(DISTINCT l.origin) FROM scanned l),
           (SELECT array_agg(DISTINCT f.origin) FROM failed f)
    INTO given_up, next_id, receivers, settled_receivers;
    receivers := ARRAY(
        SELECT o.origin FROM unnest(receivers) o(origin)
        WHERE (SELECT w.version FROM webhook_receiver w WHERE w.origin = o.origin ORDER BY w.version
               LIMIT 1) IS NULL);
    IF cardinality(receivers) > 0 THEN
        PERFORM turnstile.keep_receivers(receivers);
    END IF;
    PERFORM turnstile.raise_receivers(settled_receivers);
END
$$;

-- delete_idle_receivers: deletes receivers for which nothing is pending, and whose bound did not change for
-- `in_idle_seconds`. Does nothing while a transaction that needs its receivers is open (see keep_receivers):
-- under the lock all deliveries have committed.
CREATE FUNCTION turnstile.delete_idle_receivers(in_idle_seconds double precision DEFAULT 600)
RETURNS integer
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    idle_since timestamptz := clock_timestamp() - make_interval(secs => in_idle_seconds);
    idle_origins text[];
    deleted integer;
BEGIN
    idle_origins := ARRAY(
        WITH RECURSIVE receiver(origin, moved_at) AS (
            (SELECT w.origin, w.moved_at FROM webhook_receiver w ORDER BY w.origin, w.version LIMIT 1)
            UNION ALL
            SELECT n.origin, n.moved_at
            FROM receiver r
            CROSS JOIN LATERAL (
                SELECT w.origin, w.moved_at FROM webhook_receiver w
                WHERE w.origin > r.origin ORDER BY w.origin, w.version LIMIT 1
            ) n
        )
        SELECT r.origin FROM receiver r WHERE r.moved_at < idle_since LIMIT 1000);
    IF cardinality(idle_origins) = 0
       OR NOT pg_try_advisory_xact_lock(hashtextextended('turnstile.webhook_receivers', 0))
    THEN
        RETURN 0;
    END IF;
    DELETE FROM webhook_receiver w
    WHERE w.origin = ANY (idle_origins)
      AND (SELECT d.execution_id FROM webhook_delivery d
           WHERE d.state = 'pending' AND d.origin = w.origin AND d.due_at >= w.first_at
           ORDER BY d.due_at LIMIT 1) IS NULL;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;

-- clean_webhooks: deletes deliveries that were settled more than `in_keep_seconds` ago, and idle receivers.
CREATE FUNCTION turnstile.clean_webhooks(in_keep_seconds double precision, in_limit integer)
RETURNS integer
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    settled_before timestamptz := clock_timestamp() - make_interval(secs => in_keep_seconds);
    cleaned integer;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT d.execution_id FROM webhook_delivery d
        WHERE d.settled_at < settled_before
        ORDER BY d.settled_at LIMIT in_limit FOR UPDATE SKIP LOCKED
    )
    DELETE FROM webhook_delivery d USING old o WHERE d.execution_id = ANY (ARRAY[o.execution_id]);
    GET DIAGNOSTICS cleaned = ROW_COUNT;
    PERFORM turnstile.delete_idle_receivers();
    RETURN cleaned;
END
$$;
