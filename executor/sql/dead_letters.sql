-- dead_letters: letters of the code $1 (null: of any) after the instant $2 and the id $3 (null: from the
-- oldest on), oldest first, $4 of them, with $5 bytes of each body.
SELECT d.id, d.fingerprint, d.code, d.error, d.type, d.message_id, d.correlation_id, d.app_id, d.reply_to,
       d.content_type, d.exchange, d.routing_key, d.original_routing_key, d.tries, d.published_at, d.died_at,
       d.stored_at, d.headers,
       substring(d.body FROM 1 FOR $5) AS body, d.body_bytes, d.stored_bytes,
       octet_length(d.body) < d.body_bytes AS body_truncated
FROM dead_letter d
WHERE ($1::text IS NULL OR d.code = $1) AND ($2::timestamptz IS NULL OR (d.died_at, d.id) > ($2, $3::bigint))
ORDER BY d.died_at, d.id LIMIT $4

-- dead_letters_newest: letters of the code $1 (null: of any) before the instant $2 and the id $3 (null: from
-- the newest on), newest first, $4 of them, with $5 bytes of each body.
SELECT d.id, d.fingerprint, d.code, d.error, d.type, d.message_id, d.correlation_id, d.app_id, d.reply_to,
       d.content_type, d.exchange, d.routing_key, d.original_routing_key, d.tries, d.published_at, d.died_at,
       d.stored_at, d.headers,
       substring(d.body FROM 1 FOR $5) AS body, d.body_bytes, d.stored_bytes,
       octet_length(d.body) < d.body_bytes AS body_truncated
FROM dead_letter d
WHERE ($1::text IS NULL OR d.code = $1) AND ($2::timestamptz IS NULL OR (d.died_at, d.id) < ($2, $3::bigint))
ORDER BY d.died_at DESC, d.id DESC LIMIT $4

-- dead_letter: the letters with the ids $1, oldest first, with $2 bytes of each body.
SELECT d.id, d.fingerprint, d.code, d.error, d.type, d.message_id, d.correlation_id, d.app_id, d.reply_to,
       d.content_type, d.exchange, d.routing_key, d.original_routing_key, d.tries, d.published_at, d.died_at,
       d.stored_at, d.headers,
       substring(d.body FROM 1 FOR $2) AS body, d.body_bytes, d.stored_bytes,
       octet_length(d.body) < d.body_bytes AS body_truncated
FROM dead_letter d
WHERE d.id = ANY ($1::bigint[])
ORDER BY d.died_at, d.id

-- dead_letter_names: the letters that the names $1 identify, oldest first; a name without one is left out.
-- $2, for each name: the id that it is, or null if it is a fingerprint or a message id.
SELECT n.name, d.id, d.stored_bytes
FROM unnest($1::text[], $2::bigint[]) n(name, id)
JOIN dead_letter d ON d.id = CASE
    WHEN n.id IS NOT NULL THEN n.id
    ELSE coalesce(
        (SELECT f.id FROM dead_letter f WHERE f.fingerprint = n.name),
        (SELECT m.id FROM dead_letter m WHERE m.message_id = n.name ORDER BY m.died_at, m.id LIMIT 1))
END
ORDER BY d.died_at, d.id

-- dead_letter_sizes: the oldest $2 letters of the code $1 (null: of any), their sizes, and how many there are
-- in all.
SELECT d.id, d.stored_bytes,
       (SELECT count(*) FROM dead_letter c WHERE $1::text IS NULL OR c.code = $1) AS total
FROM dead_letter d
WHERE $1::text IS NULL OR d.code = $1
ORDER BY d.died_at, d.id LIMIT $2
