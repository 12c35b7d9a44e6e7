-- audit_queues: the rows of the queues against what they count. Reads the live tables.

-- check queue_version of queue: it has one version of its state
SELECT coalesce(q.id, v.queue_id) AS id, (q.id IS NOT NULL AND v.versions = 1) IS NOT TRUE AS wrong,
       CASE WHEN q.id IS NULL THEN 'a queue' ELSE 'one version' END AS expected,
       CASE WHEN q.id IS NULL THEN 'none, with a state'
            ELSE format('%s versions', coalesce(v.versions, 0)) END AS found
FROM action_queue q
FULL JOIN (SELECT v.queue_id, count(*) AS versions FROM queue_state v GROUP BY v.queue_id) v
    ON v.queue_id = q.id;

-- check queue_depth of queue: its depth is the number of its rows in the list
SELECT coalesce(q.id, w.line_id) AS id, q.depth IS DISTINCT FROM coalesce(w.places, 0) AS wrong,
       format('depth %s', coalesce(w.places, 0)) AS expected,
       coalesce('depth ' || q.depth, 'no queue') AS found
FROM turnstile.current_queue q
FULL JOIN (
    SELECT w.line_id, count(*) AS places FROM waiting w WHERE w.queue_id IS NULL GROUP BY w.line_id
) w ON w.line_id = q.id;

-- check queue_held of queue: it counts as held its slots, and the executions that wait at a later gate
SELECT coalesce(q.id, s.queue_id) AS id, q.held IS DISTINCT FROM coalesce(s.slots, 0) AS wrong,
       format('%s held', coalesce(s.slots, 0)) AS expected,
       coalesce(q.held || ' held', 'no queue') AS found
FROM turnstile.current_queue q
FULL JOIN turnstile.held_slots s ON s.queue_id = q.id;

-- check queue_head of queue: no execution is before its head
SELECT q.id, w.first_id < q.head_id AS wrong,
       format('head at most %s', w.first_id) AS expected, format('head %s', q.head_id) AS found
FROM turnstile.current_queue q
JOIN (
    SELECT w.line_id, min(w.place) AS first_id FROM waiting w
    WHERE turnstile.priority_of_place(w.place) = 3 GROUP BY w.line_id
) w ON w.line_id = q.id;

-- check queue_rules of queue: its limit and pause are its action's, or its limit its key's
SELECT q.id,
       -- A change that has not reached this queue yet is in progress.
       a.id IS NULL OR ((q.max_concurrent IS DISTINCT FROM r.max_concurrent OR q.paused <> a.paused)
                        AND a.rollout_from_key IS NULL
                        AND (q.id = ANY (a.rollout_held_ids)) IS NOT TRUE) AS wrong,
       format('limit %s, paused %s', coalesce(r.max_concurrent::text, 'none'), a.paused) AS expected,
       format('limit %s, paused %s', coalesce(q.max_concurrent::text, 'none'), q.paused) AS found
FROM action_queue q
LEFT JOIN action a ON a.id = q.action_id
LEFT JOIN turnstile.queue_rule r ON r.queue_id = q.id;

-- check queue_limit of queue: no more slots than its limit, except those granted before the limit was lowered
-- Only a later grant proves an overshoot. A limit takes effect under the queue's lock, at most one
-- statement timeout after its action's `updated_at`; a grant stores its instant in the queue's.
SELECT q.id,
       h.slots > q.max_concurrent
       AND (a.updated_at = a.created_at OR h.last_granted_at = q.updated_at
            OR h.last_granted_at > a.updated_at + interval '30 s') AS wrong,
       format('at most %s slots', q.max_concurrent) AS expected, format('%s slots', h.slots) AS found
FROM turnstile.current_queue q
JOIN action a ON a.id = q.action_id
JOIN (SELECT s.queue_id, count(*) AS slots, max(s.granted_at) AS last_granted_at FROM slot s
      GROUP BY s.queue_id) h
     ON h.queue_id = q.id
WHERE q.max_concurrent IS NOT NULL;
