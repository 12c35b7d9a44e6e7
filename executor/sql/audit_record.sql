-- audit_record: all executions against the live tables and their attempts. Reads the whole history.

-- check queue_totals of queue: its totals are its executions, and those that have ended and were settled
SELECT q.id,
       (q.total_enqueued = coalesce(r.enqueued, 0) + coalesce(p.executions, 0)
        AND q.total_completed = coalesce(r.ended, 0) - coalesce(n.unsettled, 0) + coalesce(p.executions, 0))
           IS NOT TRUE AS wrong,
       format('%s enqueued, %s completed, with %s pruned', coalesce(r.enqueued, 0) + coalesce(p.executions, 0),
              coalesce(r.ended, 0) - coalesce(n.unsettled, 0) + coalesce(p.executions, 0),
              coalesce(p.executions, 0)) AS expected,
       format('%s enqueued, %s completed', q.total_enqueued, q.total_completed) AS found
FROM action_queue q
LEFT JOIN (
    SELECT r.queue_id, count(*) AS enqueued, count(*) FILTER (WHERE r.has_ended) AS ended
    FROM record r GROUP BY r.queue_id
) r ON r.queue_id = q.id
-- Pruned executions had ended and were settled.
LEFT JOIN pruned_count p ON p.queue_id = q.id
LEFT JOIN (
    SELECT e.queue_id, count(*) AS unsettled
    FROM (SELECT s.execution_id FROM slot s UNION SELECT u.execution_id FROM unpublished_completion u) live
    JOIN execution e ON e.id = ANY (ARRAY[live.execution_id]) AND e.completed_at IS NOT NULL
    GROUP BY e.queue_id
) n ON n.queue_id = q.id;

-- check deleted_totals of action: the executions of its deleted queues have ended, were settled, and are stored or pruned
SELECT coalesce(t.action_id, r.action_id) AS id,
       (coalesce(t.executions, 0) = coalesce(r.settled, 0) + coalesce(t.pruned, 0)
        AND coalesce(r.settled, 0) = coalesce(r.recorded, 0)) IS NOT TRUE AS wrong,
       format('%s stored without a queue, all settled, and %s pruned', coalesce(r.recorded, 0),
              coalesce(t.pruned, 0)) AS expected,
       format('%s settled, %s counted', coalesce(r.settled, 0), coalesce(t.executions, 0)) AS found
FROM deleted_queue_total t
FULL JOIN (
    SELECT r.action_id, count(*) AS recorded,
           count(*) FILTER (WHERE r.has_ended AND s.execution_id IS NULL AND u.execution_id IS NULL) AS settled
    FROM record r
    LEFT JOIN slot s ON s.execution_id = r.id
    LEFT JOIN unpublished_completion u ON u.execution_id = r.id
    WHERE NOT EXISTS (SELECT FROM action_queue q WHERE q.id = r.queue_id)
    GROUP BY r.action_id
) r ON r.action_id = t.action_id;

-- check pruned_queue of queue: pruned executions are counted for an existing queue
SELECT p.queue_id AS id, q.id IS NULL AS wrong, 'a queue' AS expected,
       format('none, with %s executions pruned', p.executions) AS found
FROM pruned_count p LEFT JOIN action_queue q ON q.id = p.queue_id;

-- check execution_queue of execution: one that has not ended belongs to a queue of its action and key
SELECT r.id, (q.action_id = r.action_id AND q.concurrency_key = coalesce(r.concurrency_key, '')) IS NOT TRUE AS wrong,
       format('a queue of action %s, key %s', r.action_id, coalesce(r.concurrency_key, 'none')) AS expected,
       CASE WHEN q.id IS NULL THEN format('queue %s, which does not exist', r.queue_id)
            ELSE format('queue %s of action %s, key %s', q.id, q.action_id,
                        coalesce(nullif(q.concurrency_key, ''), 'none'))
       END AS found
FROM record r LEFT JOIN action_queue q ON q.id = r.queue_id WHERE NOT r.has_ended;

-- check queued_in_line of execution: a queued one is in the line of its queue
SELECT r.id, w.execution_id IS NULL AS wrong, format('in the line of queue %s', r.queue_id) AS expected,
       'not there' AS found
FROM record r LEFT JOIN waiting w ON w.queue_id = r.queue_id AND w.execution_id = r.id WHERE r.status = 'queued';

-- check started_in_slot of execution: a scheduled or running one holds a slot for its attempt
SELECT r.id, (s.attempt = r.attempt AND s.finished_at IS NULL) IS NOT TRUE AS wrong,
       format('a slot for attempt %s', r.attempt) AS expected,
       CASE WHEN s.execution_id IS NULL THEN 'none'
            ELSE format('a slot for attempt %s, %s', s.attempt,
                        CASE WHEN s.finished_at IS NULL THEN 'held' ELSE 'ended' END) END AS found
FROM record r LEFT JOIN slot s ON s.execution_id = r.id WHERE r.status IN ('scheduled', 'running');

-- check delayed_until of execution: a delayed one has a due time
SELECT r.id, d.execution_id IS NULL AS wrong, format('due at %s', r.run_at) AS expected, 'never due' AS found
FROM record r LEFT JOIN delayed d ON d.execution_id = r.id WHERE r.status = 'delayed';

-- check deadline_kept of execution: one that has not started and has a ttl has a deadline
SELECT r.id, x.execution_id IS NULL AS wrong, format('expires at %s', r.expires_at) AS expected,
       'never expires' AS found
FROM record r LEFT JOIN expiring x ON x.execution_id = r.id
WHERE r.expires_at IS NOT NULL AND r.status IN ('queued', 'delayed', 'scheduled');

-- check execution_state of execution: its columns agree with its status
SELECT r.id, NOT r.is_coherent AS wrong, format('what %s implies', r.status) AS expected,
       (SELECT format('attempt %s, worker %s, queued %s, scheduled %s, started %s, completed %s%s', e.attempt,
                      coalesce(e.worker_id, 'none'), coalesce(e.queued_at::text, 'never'),
                      coalesce(e.scheduled_at::text, 'never'), coalesce(e.started_at::text, 'never'),
                      coalesce(e.completed_at::text, 'never'),
                      CASE WHEN e.result IS NOT NULL THEN ', with a result' END)
        FROM execution e WHERE e.id = r.id) AS found
FROM record r;

-- check attempt_history of execution: a stored attempt is one of its attempts, with the same end
SELECT t.execution_id AS id,
       (t.attempt <= r.attempt AND (t.attempt < r.attempt OR CASE
            WHEN r.status IN ('scheduled', 'running') THEN false
            WHEN r.status IN ('completed', 'failed', 'timeout', 'abandoned') THEN t.outcome = r.status::text
            ELSE true END)) IS NOT TRUE AS wrong,
       CASE WHEN r.id IS NULL THEN 'an execution'
            ELSE format('%s at attempt %s', r.status, r.attempt) END AS expected,
       format('attempt %s ended %s', t.attempt, t.outcome) AS found
FROM attempt t LEFT JOIN record r ON r.id = t.execution_id;

-- check attempt_recorded of execution: its last attempt is stored
SELECT r.id, t.execution_id IS NULL AS wrong,
       format('attempt %s stored, %s', r.attempt, r.status) AS expected, 'not there' AS found
FROM record r LEFT JOIN attempt t ON t.execution_id = r.id AND t.attempt = r.attempt
WHERE r.status IN ('completed', 'failed', 'timeout', 'abandoned') OR (r.status = 'delayed' AND r.attempt > 0);
