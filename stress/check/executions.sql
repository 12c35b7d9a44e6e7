-- Every execution in the order of ids, and whether it still holds a slot.
SELECT e.id AS execution_id, a.ref AS action_ref, (e.metadata ->> 'number')::integer AS number,
       e.status::text AS status, e.result::text AS result, e.error_message, e.created_at, e.completed_at,
       EXISTS (SELECT FROM slot s WHERE s.execution_id = e.id) AS holds_slot
FROM turnstile.current_execution e
JOIN action a ON a.id = e.action_id
ORDER BY e.id
