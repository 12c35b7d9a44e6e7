-- dead_letters: letters of the code $1 (null: of any) behind the death at $2 of the id $3 (null: from the oldest on),
-- the oldest deaths first, $4 of them, with $5 bytes of each body.
SELECT d.id, d.fingerprint, d.code, d.error, d.type, d.message_id, d.correlation_id, d.app_id, d.reply_to, d.content_type,
       d.exchange, d.routing_key, d.original_routing_key, d.tries, d.published_at, d.died_at, d.stored_at, d.headers,
       substring(d.body FROM 1 FOR $5) AS body, d.body_bytes, d.stored_bytes,
       octet_length(d.body) < d.body_bytes AS body_truncated
FROM dead_letter d
WHERE ($1::text IS NULL OR d.code = $1) AND ($2::timestamptz IS NULL OR (d.died_at, d.id) > ($2, $3::bigint))
ORDER BY d.died_at, d.id LIMIT $4
