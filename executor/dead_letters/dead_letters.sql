-- The statements on dead letters. All may be repeated after an unknown outcome.

-- store: stores a batch in order; returns the codes of the new ones. A dead letter that is stored already, by
-- this executor before a crash or by another one, is skipped.
--
-- $1 an array of objects with the names of the columns, $2 their bodies in the same order
INSERT INTO ledger.dead_letter (
    fingerprint, code, error, type, message_id, correlation_id, app_id, reply_to, content_type, exchange,
    routing_key, original_routing_key, tries, published_at, died_at, stored_at, headers, body, body_bytes,
    stored_bytes
)
SELECT l.fingerprint, l.code, l.error, l.type, l.message_id, l.correlation_id, l.app_id, l.reply_to,
       l.content_type, l.exchange, l.routing_key, l.original_routing_key, l.tries, l.published_at,
       coalesce(l.died_at, clock_timestamp()), clock_timestamp(), l.headers, l.body, l.body_bytes,
       l.stored_bytes
FROM ROWS FROM (
    jsonb_to_recordset($1::jsonb) AS (
        fingerprint text, code text, error text, type text, message_id text, correlation_id text,
        app_id text, reply_to text, content_type text, exchange text, routing_key text,
        original_routing_key text, tries integer, published_at timestamptz, died_at timestamptz,
        headers jsonb, body_bytes bigint, stored_bytes integer
    ),
    unnest($2::bytea[])
) WITH ORDINALITY AS l (
    fingerprint, code, error, type, message_id, correlation_id, app_id, reply_to, content_type, exchange,
    routing_key, original_routing_key, tries, published_at, died_at, headers, body_bytes, stored_bytes, body,
    ord
)
ORDER BY l.ord
ON CONFLICT (fingerprint) DO NOTHING
RETURNING code

-- oldest: letters of the code $1 (null: of any) after the instant $2 and the id $3 (null: from the oldest
-- on), oldest first, $4 of them, with $5 bytes of each body.
SELECT d.id, d.fingerprint, d.code, d.error, d.type, d.message_id, d.correlation_id, d.app_id, d.reply_to,
       d.content_type, d.exchange, d.routing_key, d.original_routing_key, d.tries, d.published_at, d.died_at,
       d.stored_at, d.headers,
       substring(d.body FROM 1 FOR $5) AS body, d.body_bytes, d.stored_bytes,
       octet_length(d.body) < d.body_bytes AS body_truncated
FROM ledger.dead_letter d
WHERE ($1::text IS NULL OR d.code = $1) AND ($2::timestamptz IS NULL OR (d.died_at, d.id) > ($2, $3::bigint))
ORDER BY d.died_at, d.id LIMIT $4

-- newest: letters of the code $1 (null: of any) before the instant $2 and the id $3 (null: from the newest
-- on), newest first, $4 of them, with $5 bytes of each body.
SELECT d.id, d.fingerprint, d.code, d.error, d.type, d.message_id, d.correlation_id, d.app_id, d.reply_to,
       d.content_type, d.exchange, d.routing_key, d.original_routing_key, d.tries, d.published_at, d.died_at,
       d.stored_at, d.headers,
       substring(d.body FROM 1 FOR $5) AS body, d.body_bytes, d.stored_bytes,
       octet_length(d.body) < d.body_bytes AS body_truncated
FROM ledger.dead_letter d
WHERE ($1::text IS NULL OR d.code = $1) AND ($2::timestamptz IS NULL OR (d.died_at, d.id) < ($2, $3::bigint))
ORDER BY d.died_at DESC, d.id DESC LIMIT $4

-- total: how many there are.
SELECT count(*) FROM ledger.dead_letter

-- some: the letters with the ids $1, oldest first, with $2 bytes of each body.
SELECT d.id, d.fingerprint, d.code, d.error, d.type, d.message_id, d.correlation_id, d.app_id, d.reply_to,
       d.content_type, d.exchange, d.routing_key, d.original_routing_key, d.tries, d.published_at, d.died_at,
       d.stored_at, d.headers,
       substring(d.body FROM 1 FOR $2) AS body, d.body_bytes, d.stored_bytes,
       octet_length(d.body) < d.body_bytes AS body_truncated
FROM ledger.dead_letter d
WHERE d.id = ANY ($1::bigint[])
ORDER BY d.died_at, d.id

-- named: the letters that the names $1 identify, oldest first; a name without one is left out.
--
-- $2, for each name: the id that it is, or null if it is a fingerprint or a message id
SELECT n.name, d.id, d.stored_bytes
FROM unnest($1::text[], $2::bigint[]) n(name, id)
JOIN ledger.dead_letter d ON d.id = CASE
    WHEN n.id IS NOT NULL THEN n.id
    ELSE coalesce(
        (SELECT f.id FROM ledger.dead_letter f WHERE f.fingerprint = n.name),
        (SELECT m.id FROM ledger.dead_letter m WHERE m.message_id = n.name ORDER BY m.died_at, m.id LIMIT 1))
END
ORDER BY d.died_at, d.id

-- sizes: the oldest $2 letters of the code $1 (null: of any), their sizes, and how many there are in all.
SELECT d.id, d.stored_bytes,
       (SELECT count(*) FROM ledger.dead_letter c WHERE $1::text IS NULL OR c.code = $1) AS total
FROM ledger.dead_letter d
WHERE $1::text IS NULL OR d.code = $1
ORDER BY d.died_at, d.id LIMIT $2

-- delete: deletes these, with the change in the audit log; returns how many there were.
--
-- $1 to $3 name, address and channel of the caller, $4 ids, $5 why: 'replayed', after the broker confirmed
-- the messages, or 'purged', $6 whether they were replayed with another body
WITH locked AS MATERIALIZED (
    SELECT d.id FROM ledger.dead_letter d WHERE d.id = ANY ($4::bigint[]) ORDER BY d.id FOR UPDATE
),
deleted AS (
    DELETE FROM ledger.dead_letter d USING locked k WHERE d.id = k.id
    RETURNING d.id, d.code, d.type, d.message_id, d.correlation_id
),
noted AS (
    INSERT INTO ledger.audit_log (actor, address, channel, verb, subject_kind, subject, before, after)
    SELECT left($1::text, 200), left($2::text, 200), $3::text, $5::text, 'dead_letter', d.id::text,
           jsonb_strip_nulls(jsonb_build_object(
               'code', d.code, 'type', d.type, 'message_id', d.message_id, 'correlation_id',
               d.correlation_id)),
           jsonb_strip_nulls(jsonb_build_object('edited', nullif($6::boolean, false)))
    FROM deleted d ORDER BY d.id
)
SELECT count(*) FROM deleted

-- prune: deletes, among the oldest $4, those that were stored more than $1 seconds ago (null: none), and
-- those above $2 rows or $3 bytes in total. Returns how many by age, by count and by bytes.
--
-- The oldest by id, which is the order of storing: the instant of dead-lettering comes from the sender. Two
-- executors at once delete the same ones: what one has chosen, the other does not choose in its place.
WITH total AS MATERIALIZED (
    SELECT count(*) - $2::bigint AS excess_rows,
           coalesce(sum(d.stored_bytes), 0) - $3::bigint AS excess_bytes
    FROM ledger.dead_letter d
),
oldest AS MATERIALIZED (
    SELECT d.id, d.stored_at, d.stored_bytes FROM ledger.dead_letter d ORDER BY d.id LIMIT $4
),
evaluated AS MATERIALIZED (
    SELECT o.id,
           CASE WHEN o.stored_at < clock_timestamp() - make_interval(secs => $1) THEN 'age'
                WHEN row_number() OVER older <= t.excess_rows THEN 'count'
                WHEN sum(o.stored_bytes) OVER older - o.stored_bytes < t.excess_bytes THEN 'bytes'
           END AS reason
    FROM oldest o CROSS JOIN total t WINDOW older AS (ORDER BY o.id)
),
locked AS MATERIALIZED (
    SELECT d.id, v.reason FROM evaluated v JOIN ledger.dead_letter d ON d.id = v.id
    WHERE v.reason IS NOT NULL FOR UPDATE OF d SKIP LOCKED
),
deleted AS (
    DELETE FROM ledger.dead_letter d USING locked k WHERE d.id = k.id RETURNING k.reason
)
SELECT count(*) FILTER (WHERE g.reason = 'age') AS age, count(*) FILTER (WHERE g.reason = 'count') AS count,
       count(*) FILTER (WHERE g.reason = 'bytes') AS bytes
FROM deleted g
