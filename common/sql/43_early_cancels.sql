-- Early cancels: cancel requests for executions that do not exist yet, stored until the execution exists or
-- their time is over. So each passes the request queue once, and loads neither that queue nor the broker
-- (P9).

-- store_early_cancels: stores the first of these, while there are fewer than `in_rows_max` rows; returns how
-- many.
--
-- A redelivered request, recognised by its message key, is stored once. Two executors that write at the same
-- time may exceed the bound by one batch.
CREATE FUNCTION turnstile.store_early_cancels(
    in_execution_ids bigint[],
    in_idempotency_keys text[],
    in_reasons text[],
    in_message_keys uuid[],
    in_messages bytea[],
    in_keep_seconds double precision[],
    in_rows_max integer
)
RETURNS integer
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    kept_at timestamptz := clock_timestamp();
    capacity integer := in_rows_max - (SELECT count(*)
                                       FROM (SELECT FROM turnstile.live_early_cancel LIMIT in_rows_max) c);
BEGIN
    -- An id before the tickets are drawn, see move_slot_window.
    PERFORM pg_current_xact_id();
    INSERT INTO early_cancel (execution_id, idempotency_key, reason, message_key, messages, kept_until)
    SELECT c.execution_id, c.idempotency_key, c.reason, c.message_key, c.messages,
           kept_at + make_interval(secs => c.keep_seconds)
    FROM unnest(in_execution_ids, in_idempotency_keys, in_reasons, in_message_keys, in_messages,
                in_keep_seconds)
         WITH ORDINALITY c(execution_id, idempotency_key, reason, message_key, messages, keep_seconds, ord)
    WHERE c.ord <= capacity
    ORDER BY c.ord
    ON CONFLICT DO NOTHING;
    RETURN least(greatest(capacity, 0), cardinality(in_messages));
END
$$;

-- known_early_cancels: those whose execution exists now, the oldest first.
CREATE FUNCTION turnstile.known_early_cancels(in_limit integer)
RETURNS TABLE (id bigint, execution_id bigint, reason text)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
BEGIN
    RETURN QUERY
    SELECT c.id, k.id, c.reason
    FROM turnstile.live_early_cancel c
    CROSS JOIN LATERAL (
        SELECT e.id FROM execution e WHERE e.id = ANY (ARRAY[c.execution_id])
        UNION ALL
        SELECT e.id FROM execution e WHERE e.idempotency_key = ANY (ARRAY[c.idempotency_key])
    ) k
    ORDER BY c.ticket LIMIT in_limit;
END
$$;

-- overdue_early_cancels: those whose time is over and whose execution is still unknown, with the messages to
-- publish about them. The caller has them for `in_lease_seconds`: if it dies before it has published the
-- messages and deleted the rows, they are overdue again.
CREATE FUNCTION turnstile.overdue_early_cancels(in_lease_seconds double precision, in_limit integer)
RETURNS TABLE (id bigint, messages bytea)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    checked_at timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH overdue AS MATERIALIZED (
        SELECT c.id FROM turnstile.live_early_cancel c
        WHERE c.kept_until <= checked_at
          AND NOT EXISTS (SELECT FROM execution e WHERE e.id = ANY (ARRAY[c.execution_id]))
          AND NOT EXISTS (SELECT FROM execution e WHERE e.idempotency_key = ANY (ARRAY[c.idempotency_key]))
        ORDER BY c.ticket LIMIT in_limit FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE early_cancel c SET kept_until = checked_at + make_interval(secs => in_lease_seconds)
    FROM overdue o WHERE c.id = ANY (ARRAY[o.id])
    RETURNING c.id, c.messages;
END
$$;

-- delete_early_cancels: deletes requests that were handled.
CREATE FUNCTION turnstile.delete_early_cancels(in_ids bigint[])
RETURNS void
LANGUAGE sql
:settings_for_index_lookups
AS $$
    DELETE FROM early_cancel c WHERE c.id = ANY (in_ids);
$$;
