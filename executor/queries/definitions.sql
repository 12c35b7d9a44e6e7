-- is_defined: a row if there is such a definition.
--
-- $1 kind, $2 name
SELECT FROM ledger.definition d WHERE d.kind = $1 AND d.name = $2

-- action: the definition of one action.
--
-- $1 ref
SELECT i.id, d.body::text AS body, d.created_at, d.updated_at
FROM ledger.definition d JOIN ledger.action_id i ON i.ref = d.name
WHERE d.kind = 'action' AND d.name = $1

-- actions: definitions in the order of their names.
--
-- $1 after this name, $2 rows, $3 prefixes of their names, or null
SELECT i.id, d.body::text AS body, d.created_at, d.updated_at
FROM ledger.definition d JOIN ledger.action_id i ON i.ref = d.name
WHERE d.kind = 'action' AND d.name > $1 AND ($3::text[] IS NULL OR d.name ^@ ANY ($3))
ORDER BY d.name LIMIT $2

-- code_schemas: the schemas of the code of one action that count now, the newest first: those of the live
-- workers that take its new executions, else the one that was registered last. `takes_all`: one of these
-- workers has no schema for it.
--
-- $1 ref
WITH taking AS MATERIALIZED (
    SELECT w.about -> 'schemas' ->> $1 AS hash
    FROM ledger.definition d
    JOIN ledger.worker w ON d.body ->> 'pool' = ANY (w.pools) AND w.gone_at IS NULL AND NOT w.is_draining
        AND (d.body ->> 'entrypoint' IS NOT NULL OR w.actions IS NULL OR d.name = ANY (w.actions))
    WHERE d.kind = 'action' AND d.name = $1
)
SELECT v.version -> 'parameters' AS parameters_schema, v.version -> 'result' AS result_schema,
       (v.version ->> 'registered_at')::timestamptz AS registered_at,
       EXISTS (SELECT FROM taking t WHERE t.hash IS NULL) AS takes_all
FROM ledger.definition a
JOIN ledger.definition c ON c.kind = 'code' AND c.name = a.name
CROSS JOIN LATERAL jsonb_array_elements(c.body -> 'versions') WITH ORDINALITY v(version, ord)
WHERE a.kind = 'action' AND a.name = $1 AND a.body ->> 'runner' = 'python'
  AND CASE WHEN EXISTS (SELECT FROM taking t WHERE t.hash IS NOT NULL)
               THEN v.version ->> 'hash' IN (SELECT t.hash FROM taking t)
           ELSE v.ord = jsonb_array_length(c.body -> 'versions') END
ORDER BY v.ord DESC

-- keys: the concurrency keys of an action that have settings, in order.
--
-- $1 ref, $2 after this key, $3 rows. The name of a key is that of its action, a slash and the key; a 0 comes
-- behind the slash.
SELECT k.body::text AS body, a.body ->> 'max_concurrent' AS max_concurrent
FROM ledger.definition a JOIN ledger.definition k ON k.kind = 'key'
    AND k.name > concat($1::text, '/', $2::text) AND k.name < concat($1::text, '0')
WHERE a.kind = 'action' AND a.name = $1
ORDER BY k.name LIMIT $3

-- key: the settings of one concurrency key of an action.
--
-- $1 ref, $2 key
SELECT k.body::text AS body, a.body ->> 'max_concurrent' AS max_concurrent
FROM ledger.definition a
JOIN ledger.definition k ON k.kind = 'key' AND k.name = concat($1::text, '/', $2::text)
WHERE a.kind = 'action' AND a.name = $1

-- resources: definitions in the order of their names, of one or of those after a name; and the actions that
-- use them.
--
-- $1 name or null, $2 after this name, $3 rows, $4 most users of each
SELECT d.id, d.body::text AS body, d.created_at, d.updated_at, u.users, u.used_by
FROM (
    SELECT r.* FROM ledger.definition r
    WHERE r.kind = 'resource' AND (r.name = $1 OR $1::text IS NULL AND r.name > $2) ORDER BY r.name LIMIT $3
) d
CROSS JOIN LATERAL (
    SELECT count(*) AS users,
           json_agg(json_build_object('action_ref', n.name, 'units', n.units, 'weight', n.weight)
                    ORDER BY n.name) FILTER (WHERE n.number <= $4) AS used_by
    FROM (
        SELECT a.name, (use ->> 'units')::integer AS units, (use ->> 'weight')::integer AS weight,
               row_number() OVER (ORDER BY a.name) AS number
        FROM ledger.definition a CROSS JOIN LATERAL jsonb_array_elements(a.body -> 'uses') AS e(use)
        WHERE a.kind = 'action' AND use ->> 'resource' = d.name
    ) n
) u
ORDER BY d.name

-- pools: settings in the order of their names, of one or of those after a name; and the actions in them.
-- `strangers`: actions that have a weight, and are not in the pool.
--
-- $1 name or null, $2 after this name, $3 rows, $4 most actions of each
SELECT d.id, d.name, d.body::text AS body, d.created_at, d.updated_at, n.actions, n.listed,
       ARRAY(SELECT w.ref FROM jsonb_object_keys(d.body -> 'weights') w(ref)
             WHERE NOT EXISTS (SELECT FROM ledger.definition a
                               WHERE a.kind = 'action' AND a.name = w.ref AND a.body ->> 'pool' = d.name)
             ORDER BY w.ref COLLATE "C") AS strangers
FROM (
    SELECT p.* FROM ledger.definition p
    WHERE p.kind = 'pool' AND (p.name = $1 OR $1::text IS NULL AND p.name > $2) ORDER BY p.name LIMIT $3
) d
CROSS JOIN LATERAL (
    SELECT count(*) AS actions,
           json_agg(json_build_object(
               'action_ref', l.name, 'weight', coalesce((d.body -> 'weights' ->> l.name)::integer, 1),
               'served', EXISTS (
                   SELECT FROM ledger.worker w
                   WHERE d.name = ANY (w.pools) AND w.gone_at IS NULL AND w.is_taking AND NOT w.is_draining
                     AND (l.has_entrypoint OR w.actions IS NULL OR l.name = ANY (w.actions)))
           ) ORDER BY l.name) FILTER (WHERE l.number <= $4) AS listed
    FROM (
        SELECT a.name, a.body ->> 'entrypoint' IS NOT NULL AS has_entrypoint,
               row_number() OVER (ORDER BY a.name) AS number
        FROM ledger.definition a WHERE a.kind = 'action' AND a.body ->> 'pool' = d.name
    ) l
) n
ORDER BY d.name

-- schedules: definitions in the order of their names, of one or of those after a name; and what was decided.
--
-- $1 name or null, $2 after this name, $3 rows
SELECT d.id, d.body::text AS body, d.created_at, d.updated_at, s.wake_at AS next_at,
       s.execution_id AS last_execution_id, s.admitted, s.skipped, s.refused, s.missed_at, s.problem
FROM ledger.definition d JOIN ledger.schedule s ON s.name = d.name
WHERE d.kind = 'schedule' AND (d.name = $1 OR $1::text IS NULL AND d.name > $2)
ORDER BY d.name LIMIT $3

-- changes: the changes of an action, resource or pool, deleted or not, newest first.
--
-- $1 kind, $2 name, $3 before this id, $4 rows
SELECT l.id, l.recorded_at AS changed_at, l.actor AS changed_by, l.verb AS change, l.before::text AS old,
       l.after::text AS new
FROM ledger.audit_log l
WHERE l.subject_kind = $1 AND l.subject = $2 AND l.id < $3 ORDER BY l.id DESC LIMIT $4

-- audit_log: what operators did, newest first.
--
-- $1 before this id, $2 kind of subject, $3 subject, $4 action, $5 verb, $6 actor, $7 from this instant on,
-- $8 before this instant, $9 prefixes of actions, $10 rows; null: no condition
SELECT l.id, l.recorded_at, l.actor AS user, l.address, l.channel, l.verb, l.subject_kind, l.subject,
       l.action_ref, l.before::text AS before, l.after::text AS after
FROM ledger.audit_log l
WHERE l.id < $1
  AND ($2::text IS NULL OR l.subject_kind = $2)
  AND ($3::text IS NULL OR l.subject = $3)
  AND ($4::text IS NULL OR l.action_ref = $4)
  AND ($5::text IS NULL OR l.verb = $5)
  AND ($6::text IS NULL OR l.actor = $6)
  AND ($7::timestamptz IS NULL OR l.recorded_at >= $7)
  AND ($8::timestamptz IS NULL OR l.recorded_at < $8)
  AND ($9::text[] IS NULL OR l.action_ref ^@ ANY ($9))
ORDER BY l.id DESC LIMIT $10

-- created: when these executions were admitted.
--
-- $1 ids
SELECT e.id, e.created_at FROM ledger.execution e WHERE e.id = ANY ($1::bigint[])

-- held: what these executions of one action were granted, and whether they were asked to stop.
--
-- $1 ids
SELECT e.id, e.status::text AS status, e.created_at, e.started_at, e.completed_at, e.timeout_seconds,
       e.cancel_requested_at, e.cancel_reason, now() AS read_at
FROM ledger.current_execution e WHERE e.id = ANY ($1::bigint[])
