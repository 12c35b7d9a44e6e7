-- dead_letter: the letters with the ids $1, in the order of their deaths, with $2 bytes of each body.
SELECT d.id, d.fingerprint, d.code, d.error, d.type, d.message_id, d.correlation_id, d.app_id, d.reply_to, d.content_type,
       d.exchange, d.routing_key, d.original_routing_key, d.tries, d.published_at, d.died_at, d.stored_at, d.headers,
       substring(d.body FROM 1 FOR $2) AS body, d.body_bytes, d.stored_bytes,
       octet_length(d.body) < d.body_bytes AS body_truncated
FROM dead_letter d
WHERE d.id = ANY ($1::bigint[])
ORDER BY d.died_at, d.id
