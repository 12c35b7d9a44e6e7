-- ends: what is needed to tell again how executions ended. A result above $2 bytes is left out.
SELECT e.id, e.attempt, e.action_id, a.ref, e.status, e.error_type, e.error_message, e.completed_at,
       e.traceparent, CASE WHEN octet_length(e.result::text) <= $2 THEN e.result END AS result
FROM execution e
JOIN action a ON a.id = e.action_id
WHERE e.id = ANY ($1)
