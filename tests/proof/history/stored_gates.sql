-- What an installation has stored of its gates, for the replay of P11 to P14.

-- executions: all of actions that have or had gates, with the grants of their earlier attempts.
SELECT e.id, a.ref, e.concurrency_key, e.priority, e.created_at,
       -- Cancelled while it waited for a retry, it held nothing since the end of its last attempt.
       coalesce((SELECT t.ended_at FROM attempt t
                 WHERE t.execution_id = e.id AND t.attempt = e.attempt AND t.outcome = 'retried'),
                e.completed_at) AS completed_at,
       e.attempt, e.gates::text AS gates,
       ARRAY(SELECT t.granted_at FROM attempt t
             WHERE t.execution_id = e.id AND t.attempt < e.attempt AND t.granted_at IS NOT NULL
             ORDER BY t.attempt) AS granted_ats
FROM execution e
JOIN action a ON a.id = e.action_id
WHERE e.gates IS NOT NULL OR a.route IS NOT NULL
   OR EXISTS (SELECT FROM execution o WHERE o.action_id = e.action_id AND o.gates IS NOT NULL)
ORDER BY e.id

-- actions: the definitions in force, with the settings of their keys.
SELECT a.ref AS name,
       (turnstile.definition_of(a) || coalesce((
           SELECT jsonb_object_agg('keys.' || k.concurrency_key,
                                   turnstile.written_key(k) -> ('keys.' || k.concurrency_key))
           FROM key_override k WHERE k.action_id = a.id), '{}'))::text AS definition
FROM action a WHERE a.deleted_at IS NULL

-- resources: the definitions in force.
SELECT g.name, turnstile.definition_of_resource(g)::text AS definition FROM gate g WHERE g.kind = 'resource'

-- action_changes: all recorded changes.
SELECT c.action_ref AS name, c.changed_at, c.old::text AS old, c.new::text AS new FROM action_change c
ORDER BY c.id

-- resource_changes: all recorded changes.
SELECT c.resource AS name, c.changed_at, c.old::text AS old, c.new::text AS new FROM resource_change c
ORDER BY c.id

-- pools: the settings in force.
SELECT p.name, turnstile.definition_of_pool(p)::text AS definition FROM worker_pool p

-- pool_changes: all recorded changes.
SELECT l.subject AS name, l.recorded_at AS changed_at, l.before::text AS old, l.after::text AS new
FROM audit_log l WHERE l.subject_kind = 'pool'
ORDER BY l.id
