-- dead_letter_names: the letters that the names $1 mean, the oldest deaths first; a name without one is left out.
-- $2, beside each name: the id that it is, or null where it is a fingerprint or a message id.
SELECT n.name, d.id, d.stored_bytes
FROM unnest($1::text[], $2::bigint[]) n(name, id)
JOIN dead_letter d ON d.id = CASE
    WHEN n.id IS NOT NULL THEN n.id
    ELSE coalesce(
        (SELECT f.id FROM dead_letter f WHERE f.fingerprint = n.name),
        (SELECT m.id FROM dead_letter m WHERE m.message_id = n.name ORDER BY m.died_at, m.id LIMIT 1))
END
ORDER BY d.died_at, d.id
