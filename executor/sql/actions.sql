-- action: the definition of one action.
--
-- $1 ref
SELECT a.* FROM action a WHERE a.deleted_at IS NULL AND a.ref = $1

-- code_schemas: the schemas that workers derived from the code of one action and that count now, the newest
-- first.
--
-- $1 ref
SELECT s.parameters AS parameters_schema, s.result AS result_schema, s.registered_at, c.workers, c.takes_all
FROM turnstile.code_schemas($1) c JOIN action_schema s ON s.id = ANY (c.schema_ids)
ORDER BY s.registered_at DESC, s.id DESC

-- actions: definitions in the order of their names.
--
-- $1 after this name, $2 rows, $3 prefixes of their names, or null
SELECT a.* FROM action a
WHERE a.deleted_at IS NULL AND a.ref COLLATE "C" > $1 AND ($3::text[] IS NULL OR a.ref ^@ ANY ($3))
ORDER BY a.ref COLLATE "C" LIMIT $2

-- action_of: the name of the action of an execution.
--
-- $1 execution
SELECT a.ref FROM execution e JOIN action a ON a.id = e.action_id WHERE e.id = $1

-- definition_changes: the changes of an action, resource or pool, deleted or not, newest first.
--
-- $1 kind, $2 name, $3 before this id, $4 rows
SELECT l.id, l.recorded_at AS changed_at, l.actor AS changed_by, l.verb AS change, l.before AS old,
       l.after AS new
FROM audit_log l
WHERE l.subject_kind = $1 AND l.subject = $2 AND l.id < $3 ORDER BY l.id DESC LIMIT $4
