-- The current state of each queue.
SELECT a.ref AS action_ref, q.max_concurrent, q.depth AS waiting, q.total_completed AS settled,
       q.held
FROM turnstile.current_queue q
JOIN action a ON a.id = q.action_id
ORDER BY q.id
