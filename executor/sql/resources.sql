-- resource: the definition of one resource, and the actions that use it.
--
-- $1 name, $2 most users
SELECT g.*, u.users, u.used_by
FROM gate g
CROSS JOIN LATERAL turnstile.used_by(g.name, $2) u
WHERE g.kind = 'resource' AND g.name = $1

-- resources: definitions in the order of their names, and the actions that use them.
--
-- $1 after this name, $2 rows, $3 most users of each
SELECT g.*, u.users, u.used_by
FROM (
    SELECT r.* FROM gate r
    WHERE r.kind = 'resource' AND r.name COLLATE "C" > $1 ORDER BY r.name COLLATE "C" LIMIT $2
) g
CROSS JOIN LATERAL turnstile.used_by(g.name, $3) u
ORDER BY g.name COLLATE "C"

-- action_keys: the concurrency keys of an action that have settings, in order.
--
-- $1 ref, $2 after this key, $3 rows
SELECT k.concurrency_key,
       CASE WHEN k.has_limit THEN k.max_concurrent ELSE a.max_concurrent END AS max_concurrent,
       k.has_limit, coalesce(k.weight, 1) AS weight
FROM action a JOIN key_override k ON k.action_id = a.id
WHERE a.ref = $1 AND a.deleted_at IS NULL AND k.concurrency_key COLLATE "C" > $2
ORDER BY k.concurrency_key COLLATE "C" LIMIT $3

-- action_key: the settings of one concurrency key of an action.
--
-- $1 ref, $2 key
SELECT k.concurrency_key,
       CASE WHEN k.has_limit THEN k.max_concurrent ELSE a.max_concurrent END AS max_concurrent,
       k.has_limit, coalesce(k.weight, 1) AS weight
FROM action a JOIN key_override k ON k.action_id = a.id
WHERE a.ref = $1 AND a.deleted_at IS NULL AND k.concurrency_key = $2
