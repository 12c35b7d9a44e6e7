-- dead_letter_sizes: the oldest $2 letters of the code $1 (null: of any), their sizes, and how many there are in all.
SELECT d.id, d.stored_bytes, (SELECT count(*) FROM dead_letter c WHERE $1::text IS NULL OR c.code = $1) AS total
FROM dead_letter d
WHERE $1::text IS NULL OR d.code = $1
ORDER BY d.died_at, d.id LIMIT $2
