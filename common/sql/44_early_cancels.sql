-- Early cancels: requests to stop executions that are not in the record, kept aside until they are, or until
-- their time is over. So they pass the request queue once, and are a load neither to it nor to the broker (P9).

-- keep_early_cancels: keep these while there are fewer than `in_rows_max`; returns how many, the first so many.
--
-- One that is delivered again, which its message key tells, is kept once. Two executors that write at the same
-- time may exceed the bound by one batch.
CREATE FUNCTION turnstile.keep_early_cancels(
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
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    kept_at timestamptz := clock_timestamp();
    room integer := in_rows_max - (SELECT count(*) FROM (SELECT FROM early_cancel LIMIT in_rows_max) c);
BEGIN
    INSERT INTO early_cancel (execution_id, idempotency_key, reason, message_key, messages, kept_until)
    SELECT c.execution_id, c.idempotency_key, c.reason, c.message_key, c.messages,
           kept_at + make_interval(secs => c.keep_seconds)
    FROM unnest(in_execution_ids, in_idempotency_keys, in_reasons, in_message_keys, in_messages, in_keep_seconds)
         WITH ORDINALITY c(execution_id, idempotency_key, reason, message_key, messages, keep_seconds, ord)
    WHERE c.ord <= room
    ORDER BY c.ord
    ON CONFLICT DO NOTHING;
    RETURN least(greatest(room, 0), cardinality(in_messages));
END
$$;

-- known_early_cancels: the kept ones whose execution is in the record now, the oldest first.
CREATE FUNCTION turnstile.known_early_cancels(in_limit integer)
RETURNS TABLE (id bigint, execution_id bigint, reason text)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    RETURN QUERY
    SELECT c.id, k.id, c.reason
    FROM early_cancel c
    CROSS JOIN LATERAL (
        SELECT e.id FROM execution e WHERE e.id = ANY (ARRAY[c.execution_id])
        UNION ALL
        SELECT e.id FROM execution e WHERE e.idempotency_key = ANY (ARRAY[c.idempotency_key])
    ) k
    ORDER BY c.id LIMIT in_limit;
END
$$;

-- overdue_early_cancels: those that were kept long enough and whose execution is still unknown, with what is to be
-- published about them. They are the caller's for `in_lease_seconds`: if it dies before it has published and
-- forgotten them, they are overdue again.
CREATE FUNCTION turnstile.overdue_early_cancels(in_lease_seconds double precision, in_limit integer)
RETURNS TABLE (id bigint, messages bytea)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    looked_at timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH overdue AS MATERIALIZED (
        SELECT c.id FROM early_cancel c
        WHERE c.kept_until <= looked_at
          AND NOT EXISTS (SELECT FROM execution e WHERE e.id = ANY (ARRAY[c.execution_id]))
          AND NOT EXISTS (SELECT FROM execution e WHERE e.idempotency_key = ANY (ARRAY[c.idempotency_key]))
        ORDER BY c.kept_until LIMIT in_limit FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE early_cancel c SET kept_until = looked_at + make_interval(secs => in_lease_seconds)
    FROM overdue o WHERE c.id = ANY (ARRAY[o.id])
    RETURNING c.id, c.messages;
END
$$;

-- forget_early_cancels: these were acted on.
CREATE FUNCTION turnstile.forget_early_cancels(in_ids bigint[])
RETURNS void
LANGUAGE sql
SET search_path = public, pg_temp
SET enable_seqscan = off
AS $$
    DELETE FROM early_cancel c WHERE c.id = ANY (in_ids);
$$;
