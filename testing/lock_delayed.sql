-- lock_delayed: what `advance` moves, before it does. The sweeps lock an execution before its delay, too; and
-- an instant that is made earlier needs a transaction that has written before (see due_bound).
SELECT e.id FROM execution e
WHERE e.id IN (SELECT d.execution_id FROM delayed d UNION SELECT x.execution_id FROM expiring x)
ORDER BY e.id FOR UPDATE
