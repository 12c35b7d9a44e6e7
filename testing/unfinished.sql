-- unfinished: executions that have not ended, hold a slot or have an unpublished completion, and submissions.
SELECT e.id, a.ref
FROM execution e JOIN action a ON a.id = e.action_id
WHERE e.completed_at IS NULL OR EXISTS (SELECT FROM slot s WHERE s.execution_id = e.id)
   OR EXISTS (SELECT FROM unpublished_completion u WHERE u.execution_id = e.id)
UNION ALL
SELECT NULL, s.request ->> 'action_ref' FROM submission s
