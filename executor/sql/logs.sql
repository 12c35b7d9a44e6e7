-- logs: what the attempts of an execution have logged, in order, behind a place in it.
-- $1 execution id, $2 attempt or null for all, $3 attempt and $4 characters of it that were read before,
-- $5 most pieces, $6 most characters (one piece is read in any case).
-- No row: there is no such execution. One row with a null attempt: there is nothing (more) to read, yet.
WITH piece AS (
    SELECT l.attempt, l.start, l.at, l.text
    FROM attempt_log l
    WHERE l.execution_id = $1 AND ($2::integer IS NULL OR l.attempt = $2) AND l.attempt >= $3
    UNION ALL
    SELECT t.attempt, t.log_start, t.ended_at, t.log
    FROM attempt t
    WHERE t.execution_id = $1 AND ($2::integer IS NULL OR t.attempt = $2) AND t.attempt >= $3 AND t.log IS NOT NULL
),
-- A flush whose answer was lost comes again with the attempt's end: what was read of it is left out.
fresh AS (
    SELECT p.attempt, p.at, greatest(p.start, seen.chars) AS start, greatest(p.start - seen.chars, 0) AS missing,
           substr(p.text, (greatest(p.start, seen.chars) - p.start + 1)::integer) AS text
    FROM (
        SELECT p.*, max(p.start + length(p.text)) OVER (
            PARTITION BY p.attempt ORDER BY p.start, p.at ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS told FROM piece p
    ) p
    CROSS JOIN LATERAL (
        SELECT greatest(coalesce(p.told, 0), CASE WHEN p.attempt = $3 THEN $4::bigint ELSE 0 END) AS chars
    ) seen
    WHERE p.start + length(p.text) > seen.chars
),
page AS (
    SELECT f.*, row_number() OVER place AS number, sum(length(f.text)) OVER place - length(f.text) AS before
    FROM fresh f
    WINDOW place AS (ORDER BY f.attempt, f.start ROWS UNBOUNDED PRECEDING)
)
SELECT p.attempt, p.at, p.start, p.missing, p.text,
       coalesce(p.number, 0) = (SELECT count(*) FROM page) AS is_last,
       e.completed_at IS NOT NULL
       OR EXISTS (SELECT FROM attempt t WHERE t.execution_id = e.id AND t.attempt = $2)
       OR coalesce($2 < e.attempt, false) AS is_over
FROM execution e
LEFT JOIN page p ON p.number <= $5 AND p.before < $6
WHERE e.id = $1
ORDER BY p.number
