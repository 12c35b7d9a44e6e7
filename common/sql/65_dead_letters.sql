-- Dead letters: stored when they are drained from the broker, deleted when they are replayed or purged,
-- pruned by age, number and size.

-- store_dead_letters: stores a batch in order; returns the codes of the new ones. A dead letter that is
-- stored already, by this executor before a crash or by another one, is skipped.
--
-- `in_letters`: an array of objects with the names of the columns; `in_bodies`: their bodies in the same
-- order.
CREATE FUNCTION turnstile.store_dead_letters(in_letters jsonb, in_bodies bytea[])
RETURNS SETOF text
LANGUAGE sql
:settings
AS $$
    INSERT INTO dead_letter (
        fingerprint, code, error, type, message_id, correlation_id, app_id, reply_to, content_type, exchange,
        routing_key, original_routing_key, tries, published_at, died_at, stored_at, headers, body, body_bytes,
        stored_bytes
    )
    SELECT l.fingerprint, l.code, l.error, l.type, l.message_id, l.correlation_id, l.app_id, l.reply_to,
           l.content_type, l.exchange, l.routing_key, l.original_routing_key, l.tries, l.published_at,
           coalesce(l.died_at, clock_timestamp()), clock_timestamp(), l.headers, l.body, l.body_bytes,
           l.stored_bytes
    FROM ROWS FROM (
        jsonb_to_recordset(in_letters) AS (
            fingerprint text, code text, error text, type text, message_id text, correlation_id text,
            app_id text, reply_to text, content_type text, exchange text, routing_key text,
            original_routing_key text, tries integer, published_at timestamptz, died_at timestamptz,
            headers jsonb, body_bytes bigint, stored_bytes integer
        ),
        unnest(in_bodies)
    ) WITH ORDINALITY AS l (
        fingerprint, code, error, type, message_id, correlation_id, app_id, reply_to, content_type, exchange,
        routing_key, original_routing_key, tries, published_at, died_at, headers, body_bytes, stored_bytes,
        body, ord
    )
    ORDER BY l.ord
    ON CONFLICT (fingerprint) DO NOTHING
    RETURNING code
$$;

-- delete_dead_letters: deletes these; returns how many there were. In ascending order, like every other
-- writer. `in_verb`: why, for the audit log: 'replayed', after the broker confirmed the messages, or
-- 'purged'; `in_edited`: they were replayed with another body.
CREATE FUNCTION turnstile.delete_dead_letters(
    in_ids bigint[], in_verb text DEFAULT NULL, in_edited boolean DEFAULT false, in_caller jsonb DEFAULT NULL
)
RETURNS integer
LANGUAGE plpgsql
:settings
AS $$
DECLARE
    deleted integer;
BEGIN
    PERFORM 1 FROM dead_letter d WHERE d.id = ANY (in_ids) ORDER BY d.id FOR UPDATE;
    IF in_caller IS NOT NULL THEN
        PERFORM turnstile.note_caller(in_caller);
        PERFORM turnstile.log_operations(
            in_verb, 'dead_letter', array_agg(d.id::text ORDER BY d.id), NULL,
            array_agg(jsonb_strip_nulls(jsonb_build_object(
                'code', d.code, 'type', d.type, 'message_id', d.message_id, 'correlation_id',
                d.correlation_id))
                ORDER BY d.id),
            array_agg(jsonb_strip_nulls(jsonb_build_object('edited', nullif(in_edited, false)))
                      ORDER BY d.id))
        FROM dead_letter d WHERE d.id = ANY (in_ids);
    END IF;
    DELETE FROM dead_letter d WHERE d.id = ANY (in_ids);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END
$$;

-- prune_dead_letters: deletes, among the oldest `in_limit`, those that were stored more than
-- `in_keep_seconds` ago (null: none), and those above `in_keep_count` rows or `in_keep_bytes` in total.
-- Returns three nulls while another replica prunes: two replicas that count the same excess would both delete
-- it.
--
-- The oldest by id, which is the order of storing: the instant of dead-lettering comes from the sender.
CREATE FUNCTION turnstile.prune_dead_letters(
    in_keep_seconds double precision,
    in_keep_count bigint,
    in_keep_bytes bigint,
    in_limit integer,
    OUT by_age integer,
    OUT by_count integer,
    OUT by_bytes integer
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    kept_since timestamptz := clock_timestamp() - make_interval(secs => in_keep_seconds);
    excess_rows bigint;
    excess_bytes bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('turnstile.prune_dead_letters', 0)) THEN
        RETURN;
    END IF;
    SELECT count(*) - in_keep_count, coalesce(sum(d.stored_bytes), 0) - in_keep_bytes
    INTO excess_rows, excess_bytes FROM dead_letter d;

    WITH oldest AS MATERIALIZED (
        SELECT d.id, d.stored_at, d.stored_bytes FROM dead_letter d ORDER BY d.id LIMIT in_limit
    ),
    evaluated AS (
        SELECT o.id,
               CASE WHEN o.stored_at < kept_since THEN 'age'
                    WHEN row_number() OVER older <= excess_rows THEN 'count'
                    WHEN sum(o.stored_bytes) OVER older - o.stored_bytes < excess_bytes
                        THEN 'bytes' END AS reason
        FROM oldest o WINDOW older AS (ORDER BY o.id)
    ),
    deleted_rows AS (
        DELETE FROM dead_letter d USING evaluated j
        WHERE d.id = ANY (ARRAY[j.id]) AND j.reason IS NOT NULL RETURNING j.reason
    )
    SELECT count(*) FILTER (WHERE g.reason = 'age'), count(*) FILTER (WHERE g.reason = 'count'),
           count(*) FILTER (WHERE g.reason = 'bytes')
    INTO by_age, by_count, by_bytes FROM deleted_rows g;
END
$$;
