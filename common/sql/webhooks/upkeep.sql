-- replay_webhooks: makes these settled deliveries due again; without ids, the oldest failed ones, at most `in_limit`.
-- The event id stays. `left_count`: number of deliveries that remain failed.
--
-- Locks the executions first, so that they are not pruned: a delivery without its execution has no content.
CREATE FUNCTION turnstile.replay_webhooks(
    in_execution_ids bigint[],
    in_limit integer,
    OUT replayed_ids bigint[],
    OUT pending_ids bigint[],
    OUT left_count bigint
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    wanted_ids bigint[] := coalesce(in_execution_ids, ARRAY(
        SELECT d.execution_id FROM webhook_delivery d WHERE d.state = 'failed' ORDER BY d.execution_id LIMIT in_limit));
BEGIN
    PERFORM 1 FROM execution e WHERE e.id = ANY (wanted_ids) ORDER BY e.id FOR KEY SHARE;
    pending_ids := ARRAY(
        SELECT d.execution_id FROM webhook_delivery d WHERE d.execution_id = ANY (wanted_ids) AND d.state = 'pending');
    WITH settled AS MATERIALIZED (
        SELECT d.execution_id FROM webhook_delivery d
        WHERE d.execution_id = ANY (wanted_ids) AND d.state <> 'pending'
          AND (SELECT e.id FROM execution e WHERE e.id = d.execution_id) IS NOT NULL
        ORDER BY d.execution_id FOR NO KEY UPDATE
    ),
    again AS (
        UPDATE webhook_delivery d
        SET state = 'pending', attempts = 0, due_at = clock_timestamp(), created_at = clock_timestamp(),
            settled_at = NULL
        FROM settled s WHERE d.execution_id = ANY (ARRAY[s.execution_id])
        RETURNING d.execution_id
    )
    SELECT coalesce(array_agg(a.execution_id ORDER BY a.execution_id), '{}') INTO replayed_ids FROM again a;
    left_count := (SELECT count(*) FROM webhook_delivery d WHERE d.state = 'failed');
END
$$;

-- give_up_webhooks: of the next `in_limit` pending deliveries after `in_after_id`, makes those 'failed' whose
-- execution ended, or that were last replayed, more than `in_age_seconds` ago: the queue of a receiver that never
-- answers must not grow for ever. `next_id`: where to continue; 0: no more deliveries.
--
-- Skips deliveries that are being sent, and those that became due less than a minute ago: a receiver that requested a
-- delay gets one more request.
CREATE FUNCTION turnstile.give_up_webhooks(
    in_after_id bigint, in_age_seconds double precision, in_limit integer, OUT given_up integer, OUT next_id bigint
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    checked_at timestamptz := clock_timestamp();
    created_before timestamptz := checked_at - make_interval(secs => in_age_seconds);
BEGIN
    -- The state as bounds: as a constant it would not be part of the order.
    WITH scanned AS MATERIALIZED (
        SELECT d.execution_id, d.created_at FROM webhook_delivery d
        WHERE d.state BETWEEN 'pending' AND 'pending' AND d.execution_id > in_after_id
        ORDER BY d.state, d.execution_id LIMIT in_limit
    ),
    old AS MATERIALIZED (
        -- Checked again on the locked row: it may have been claimed in between.
        SELECT d.execution_id
        FROM scanned l JOIN webhook_delivery d ON d.execution_id = ANY (ARRAY[l.execution_id])
        WHERE l.created_at < created_before AND d.state = 'pending' AND d.created_at < created_before
          AND d.due_at < checked_at - interval '1 min'
          AND (d.claimed_until IS NULL OR d.claimed_until < checked_at)
        FOR NO KEY UPDATE OF d SKIP LOCKED
    ),
    failed AS (
        UPDATE webhook_delivery d
        SET state = 'failed', claimed_until = NULL, settled_at = checked_at,
            last_error = format('given up after %s s (TURNSTILE_WEBHOOK_AGE_MAX); %s', in_age_seconds,
                CASE WHEN d.attempts > 0 THEN 'last attempt: ' || coalesce(d.last_error, 'no outcome recorded')
                     ELSE 'never attempted' END)
        FROM old o WHERE d.execution_id = ANY (ARRAY[o.execution_id])
        RETURNING d.execution_id
    )
    SELECT (SELECT count(*) FROM failed),
           (SELECT CASE WHEN count(*) >= in_limit THEN max(l.execution_id) ELSE 0 END FROM scanned l)
    INTO given_up, next_id;
END
$$;

-- clean_webhooks: deletes deliveries that were settled more than `in_keep_seconds` ago.
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
    RETURN cleaned;
END
$$;
