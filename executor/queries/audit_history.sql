-- audit_history: all executions, against what is kept of them. Reads the whole history.

-- check unfinished_kept of execution: what has not ended would be loaded by the next leader
SELECT e.id, b.low_id > e.id AND w.id IS NULL AND l.id IS NULL AND p.execution_id IS NULL AS wrong,
       'a row that says that it has not ended' AS expected,
       format('none, and the low id is %s', b.low_id) AS found
FROM ledger.execution e
CROSS JOIN (
    SELECT t.low_id FROM ledger.turn t ORDER BY t.epoch DESC, t.number DESC LIMIT 1
) b
LEFT JOIN ledger.waiting w ON w.id = e.id
LEFT JOIN ledger.live l ON l.id = e.id
LEFT JOIN ledger.pending_end p ON p.execution_id = e.id
WHERE e.completed_at IS NULL;

-- check attempts of execution: every attempt before the latest one is recorded, and no later one
SELECT n.id, (n.earlier = greatest(n.attempt - 1, 0) AND n.last <= n.attempt) IS NOT TRUE AS wrong,
       format('attempts 1 to %s', greatest(n.attempt - 1, 0)) AS expected,
       format('%s of these, the last one is %s', n.earlier, n.last) AS found
FROM (
    SELECT e.id, e.attempt, count(a.attempt) FILTER (WHERE a.attempt < e.attempt) AS earlier,
           coalesce(max(a.attempt), 0) AS last
    FROM (
        SELECT e.id, CASE WHEN e.completed_at IS NOT NULL THEN e.attempt
                          ELSE coalesce(p.attempt, l.attempt, 0) END AS attempt
        FROM ledger.execution e
        LEFT JOIN ledger.pending_end p ON p.execution_id = e.id
        LEFT JOIN ledger.live l ON l.id = e.id
    ) e
    LEFT JOIN ledger.attempt a ON a.execution_id = e.id
    GROUP BY e.id, e.attempt
) n;

-- check orphan of execution: attempts, logs and progress are those of an execution
SELECT o.id, e.id IS NULL AS wrong, 'an execution' AS expected, format('none, but its %s', o.rows_of) AS found
FROM (
    SELECT DISTINCT a.execution_id AS id, 'attempts' AS rows_of FROM ledger.attempt a
    UNION ALL
    SELECT DISTINCT l.execution_id, 'log' FROM ledger.log l
    UNION ALL
    SELECT DISTINCT p.execution_id, 'progress' FROM ledger.progress p
) o
LEFT JOIN ledger.execution e ON e.id = o.id;
