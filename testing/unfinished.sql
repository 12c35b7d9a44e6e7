-- unfinished: executions that have not ended, ends that are not written yet, and requests.
SELECT u.id, u.action_ref AS ref FROM ledger.unfinished u
UNION ALL
SELECT NULL, e.action_ref FROM ledger.pending_end p JOIN ledger.execution e ON e.id = p.execution_id
UNION ALL
SELECT NULL, coalesce(i.body ->> 'action_ref', i.kind) FROM ledger.inbox i
