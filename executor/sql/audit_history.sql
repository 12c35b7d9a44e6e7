-- audit_history: all executions against the live tables and their attempts. Reads the whole history.

-- check queue_totals of queue: its totals are its executions, and those that have ended and were settled
SELECT q.id,
       (q.total_enqueued = coalesce(r.enqueued, 0) + coalesce(p.executions, 0)
        AND q.total_completed = coalesce(r.ended, 0) - coalesce(n.unsettled, 0) + coalesce(p.executions, 0))
           IS NOT TRUE AS wrong,
       format('%s enqueued, %s completed, with %s pruned',
              coalesce(r.enqueued, 0) + coalesce(p.executions, 0),
              coalesce(r.ended, 0) - coalesce(n.unsettled, 0) + coalesce(p.executions, 0),
              coalesce(p.executions, 0)) AS expected,
       format('%s enqueued, %s completed', q.total_enqueued, q.total_completed) AS found
FROM turnstile.current_queue q
LEFT JOIN (
    SELECT r.queue_id, count(*) AS enqueued, count(*) FILTER (WHERE r.has_ended) AS ended
    FROM history r GROUP BY r.queue_id
) r ON r.queue_id = q.id
-- Pruned executions had ended and were settled.
LEFT JOIN pruned_count p ON p.queue_id = q.id
LEFT JOIN (
    SELECT e.queue_id, count(*) AS unsettled
    FROM (SELECT s.execution_id FROM slot s UNION SELECT u.execution_id FROM unpublished_completion u) live
    JOIN execution e ON e.id = ANY (ARRAY[live.execution_id]) AND e.completed_at IS NOT NULL
    GROUP BY e.queue_id
) n ON n.queue_id = q.id;

-- check deleted_totals of action: executions of its deleted queues are ended, settled, and stored or pruned
SELECT coalesce(t.action_id, r.action_id) AS id,
       (coalesce(t.executions, 0) = coalesce(r.settled, 0) + coalesce(t.pruned, 0)
        AND coalesce(r.settled, 0) = coalesce(r.recorded, 0)) IS NOT TRUE AS wrong,
       format('%s stored without a queue, all settled, and %s pruned', coalesce(r.recorded, 0),
              coalesce(t.pruned, 0)) AS expected,
       format('%s settled, %s counted', coalesce(r.settled, 0), coalesce(t.executions, 0)) AS found
FROM deleted_queue_total t
FULL JOIN (
    SELECT r.action_id, count(*) AS recorded,
           count(*) FILTER (WHERE r.has_ended AND s.execution_id IS NULL
                              AND u.execution_id IS NULL) AS settled
    FROM history r
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
SELECT r.id, (q.action_id = r.action_id
              AND q.concurrency_key = coalesce(r.concurrency_key, '')) IS NOT TRUE AS wrong,
       format('a queue of action %s, key %s', r.action_id, coalesce(r.concurrency_key, 'none')) AS expected,
       CASE WHEN q.id IS NULL THEN format('queue %s, which does not exist', r.queue_id)
            ELSE format('queue %s of action %s, key %s', q.id, q.action_id,
                        coalesce(nullif(q.concurrency_key, ''), 'none'))
       END AS found
FROM history r LEFT JOIN action_queue q ON q.id = r.queue_id WHERE NOT r.has_ended;

-- check queued_entry of execution: a queued one is in its queue, or has a slot for its next attempt
SELECT r.id,
       CASE WHEN s.execution_id IS NULL THEN w.place IS NULL
            ELSE w.place IS NOT NULL OR s.attempt <> r.attempt + 1 OR s.finished_at IS NOT NULL END AS wrong,
       format('in queue %s, or a slot for attempt %s', r.queue_id, r.attempt + 1) AS expected,
       CASE WHEN w.place IS NULL THEN 'not in the queue, ' ELSE 'in the queue, ' END
       || CASE WHEN s.execution_id IS NULL THEN 'no slot'
               ELSE format('a slot for attempt %s, %s', s.attempt,
                           CASE WHEN s.finished_at IS NULL THEN 'held' ELSE 'ended' END) END AS found
FROM history r
LEFT JOIN waiting w ON (w.line_id = r.queue_id OR w.queue_id = r.queue_id)
    AND w.place = turnstile.place_of(r.priority, r.id)
LEFT JOIN slot s ON s.execution_id = r.id
WHERE r.status = 'queued';

-- check delayed_until of execution: a delayed one has a due time
SELECT r.id, d.execution_id IS NULL AS wrong, format('due at %s', r.run_at) AS expected, 'never due' AS found
FROM history r LEFT JOIN delayed d ON d.execution_id = r.id WHERE r.status = 'delayed';

-- check deadline_kept of execution: one that has not started and has a ttl has a deadline
SELECT r.id, x.execution_id IS NULL AS wrong, format('expires at %s', r.expires_at) AS expected,
       'never expires' AS found
FROM history r
LEFT JOIN expiring x ON x.execution_id = r.id
LEFT JOIN slot s ON s.execution_id = r.id AND s.finished_at IS NULL
WHERE r.expires_at IS NOT NULL AND r.status IN ('queued', 'delayed') AND s.claimed_at IS NULL;

-- check execution_state of execution: its columns agree with its status
SELECT r.id, NOT r.is_coherent AS wrong, format('what %s implies', r.status) AS expected,
       (SELECT format('attempt %s, worker %s, queued %s, scheduled %s, started %s, completed %s%s', e.attempt,
                      coalesce(e.worker_id, 'none'), coalesce(e.queued_at::text, 'never'),
                      coalesce(e.scheduled_at::text, 'never'), coalesce(e.started_at::text, 'never'),
                      coalesce(e.completed_at::text, 'never'),
                      CASE WHEN e.result IS NOT NULL THEN ', with a result' END)
        FROM execution e WHERE e.id = r.id) AS found
FROM history r;

-- check attempt_history of execution: a stored attempt is one of its ended attempts, with the same end
-- The last one may have been followed by the end of the execution in the queue.
SELECT t.execution_id AS id,
       (t.attempt <= r.attempt AND CASE
            WHEN t.attempt = r.attempt AND t.outcome = r.status::text THEN r.has_ended
            WHEN t.attempt = r.attempt AND r.has_ended AND r.status NOT IN ('cancelled', 'expired') THEN false
            ELSE t.outcome IN ('retried', 'reclaimed', 'handed_back') END) IS NOT TRUE AS wrong,
       CASE WHEN r.id IS NULL THEN 'an execution'
            ELSE format('%s at attempt %s', r.status, r.attempt) END AS expected,
       format('attempt %s ended %s', t.attempt, t.outcome) AS found
FROM attempt t LEFT JOIN history r ON r.id = t.execution_id;

-- check attempt_recorded of execution: each attempt is stored that was followed by another one, or may be
SELECT r.id, count(t.attempt) < r.followed AS wrong,
       format('%s attempts stored, %s', r.followed, r.status) AS expected,
       format('%s stored', count(t.attempt)) AS found
FROM (SELECT r.id, r.status, r.attempt - r.has_ended::integer AS followed FROM history r) r
LEFT JOIN attempt t ON t.execution_id = r.id AND t.attempt <= r.followed
WHERE r.followed > 0
GROUP BY r.id, r.status, r.followed;
