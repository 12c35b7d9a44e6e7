-- action_changes: what was done to an action, newest first. Of a deleted action too.
--
-- $1 action ref, $2 before id, $3 rows
SELECT c.id, c.changed_at, c.changed_by, c.change, c.old::text AS old, c.new::text AS new
FROM action_change c
WHERE c.action_ref = $1 AND c.id < $2
ORDER BY c.id DESC LIMIT $3
