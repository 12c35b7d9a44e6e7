-- action: the definition of one action.
--
-- $1 ref
SELECT a.* FROM action a WHERE a.deleted_at IS NULL AND a.ref = $1

-- actions: definitions in the order of their names.
--
-- $1 after this name, $2 rows
SELECT a.* FROM action a WHERE a.deleted_at IS NULL AND a.ref COLLATE "C" > $1 ORDER BY a.ref COLLATE "C" LIMIT $2

-- action_changes: the changes of an action, deleted or not, newest first.
--
-- $1 ref, $2 before this id, $3 rows
SELECT c.* FROM action_change c WHERE c.action_ref = $1 AND c.id < $2 ORDER BY c.id DESC LIMIT $3
