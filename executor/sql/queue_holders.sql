-- queue_holders: who holds the slots of an action's queues, or of the queue that $2 names, oldest ticket first.
-- A slot whose execution has ended is held until its completion is settled.
--
-- $1 action ref, $2 concurrency key, $3 rows
SELECT s.execution_id AS id, nullif(q.concurrency_key, '') AS concurrency_key, s.attempt, e.status::text AS status,
       s.worker_id, s.granted_at, s.claimed_at, s.finished_at
FROM action_queue q
JOIN slot s ON s.queue_id = q.id
JOIN execution e ON e.id = s.execution_id
WHERE q.action_id = (SELECT a.id FROM action a WHERE a.ref = $1) AND ($2::text IS NULL OR q.concurrency_key = $2)
ORDER BY s.execution_id LIMIT $3
