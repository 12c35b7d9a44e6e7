-- actions: definitions in the order of their names.
-- $1 ref (only this one), $2 after ref, $3 rows
SELECT a.* FROM action a
WHERE a.deleted_at IS NULL
  AND ($1::text IS NULL OR a.ref = $1) AND ($2::text IS NULL OR a.ref COLLATE "C" > $2)
ORDER BY a.ref COLLATE "C" LIMIT $3
