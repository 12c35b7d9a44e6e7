-- ends: what is needed to tell again how executions ended. A result above $2 bytes is left out, and a text longer
-- than any that a worker of ours reports is cut: the message must reach whoever frees the slot.
SELECT e.id, e.attempt, e.action_id, a.ref, e.status, left(e.error_type, 200) AS error_type,
       left(e.error_message, 5000) AS error_message, e.completed_at, e.traceparent,
       CASE WHEN octet_length(e.result::text) <= $2 THEN e.result END AS result
FROM execution e
JOIN action a ON a.id = e.action_id
WHERE e.id = ANY ($1)
