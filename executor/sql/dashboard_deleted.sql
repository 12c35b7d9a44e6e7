-- dashboard_deleted: how many executions the deleted queues of idle keys counted, over all actions.
SELECT coalesce(sum(t.executions), 0)::bigint AS executions
FROM deleted_queue_total t JOIN action a ON a.id = t.action_id WHERE a.deleted_at IS NULL
