-- audit_live: the live tables against the executions: each row is for an execution in that state.

-- check waiting_entry of execution: one in a list is queued, in this queue, at the `place` of its priority
SELECT turnstile.id_of_place(w.place) AS id,
       (e.status = 'queued' AND e.queue_id = coalesce(w.queue_id, w.line_id)
        AND e.priority = turnstile.priority_of_place(w.place)) IS NOT TRUE AS wrong,
       format('queued in queue %s with priority %s', coalesce(w.queue_id, w.line_id),
              turnstile.priority_of_place(w.place)) AS expected,
       coalesce(format('%s in queue %s with priority %s', e.status, e.queue_id, e.priority),
                'no execution') AS found
FROM waiting w LEFT JOIN execution e ON e.id = ANY (ARRAY[turnstile.id_of_place(w.place)]);

-- check slot_holder of execution: a slot is for the attempt that ended last, or for the one after it
SELECT s.execution_id AS id,
       (s.queue_id = e.queue_id AND CASE WHEN s.finished_at IS NULL
            THEN s.attempt = e.attempt + 1 AND e.status = 'queued'
            ELSE s.attempt = e.attempt AND e.status <> 'queued' AND s.published_at IS NOT NULL
                 AND s.worker_id IS NOT DISTINCT FROM e.worker_id
        END) IS NOT TRUE AS wrong,
       CASE WHEN s.finished_at IS NULL
                THEN format('%s attempts ended, queued in queue %s', s.attempt - 1, s.queue_id)
            ELSE format('attempt %s ended%s in queue %s', s.attempt, coalesce(' on ' || s.worker_id, ''),
                        s.queue_id)
       END AS expected,
       CASE WHEN e.id IS NULL THEN 'no execution'
            ELSE format('%s attempts ended, %s in queue %s', e.attempt,
                        e.status || coalesce(' on ' || e.worker_id, ''),
                        e.queue_id) END AS found
FROM slot s LEFT JOIN execution e ON e.id = ANY (ARRAY[s.execution_id]);

-- check slot_ticket of execution: its slot is among those that the sweeps read
SELECT s.execution_id AS id, (s.ticket >= w.first_ticket) IS NOT TRUE AS wrong,
       format('ticket %s or later', w.first_ticket) AS expected, format('ticket %s', s.ticket) AS found
FROM slot s LEFT JOIN (SELECT max(w.first_ticket) AS first_ticket FROM slot_window w) w ON true;

-- check message_ticket of execution: its unpublished messages are among those that the sweeps read
SELECT u.execution_id AS id, (u.ticket >= w.first_ticket) IS NOT TRUE AS wrong,
       format('ticket %s or later', w.first_ticket) AS expected, format('ticket %s', u.ticket) AS found
FROM (
    SELECT u.execution_id, u.ticket FROM unpublished_completion u
    UNION ALL
    SELECT u.execution_id, u.ticket FROM unpublished_cancel u
) u
LEFT JOIN (SELECT max(w.first_ticket) AS first_ticket FROM slot_window w) w ON true;

-- check due_bound of execution: its due time and its deadline are among those that the sweeps read
SELECT u.execution_id AS id, (u.due_at >= w.first_at) IS NOT TRUE AS wrong,
       format('%s or later', w.first_at) AS expected, format('%s', u.due_at) AS found
FROM (
    SELECT d.execution_id, d.due_at FROM delayed d
    UNION ALL
    SELECT x.execution_id, x.expires_at FROM expiring x
) u
LEFT JOIN (SELECT max(w.first_at) AS first_at FROM due_window w) w ON true;

-- check webhook_bound of execution: its pending webhook is among those that the sweeps read
SELECT d.execution_id AS id, (d.due_at >= w.first_at) IS NOT TRUE AS wrong,
       format('%s or later', w.first_at) AS expected, format('%s', d.due_at) AS found
FROM webhook_delivery d
LEFT JOIN (
    SELECT DISTINCT ON (r.origin) r.origin, r.first_at FROM webhook_receiver r ORDER BY r.origin, r.version
) w ON w.origin = d.origin
WHERE d.state = 'pending';

-- check slot_worker of execution: the worker of its attempt is registered
SELECT s.execution_id AS id, w.id IS NULL AS wrong, format('worker %s', s.worker_id) AS expected,
       'no such worker' AS found
FROM slot s LEFT JOIN worker w ON w.id = s.worker_id WHERE s.worker_id IS NOT NULL;

-- check due_time of execution: one with a due time is delayed
-- Its row has the earliest instant that was allowed when it was written, if that is later.
SELECT d.execution_id AS id,
       (e.status = 'delayed' AND e.queue_id = d.queue_id
        AND d.due_at BETWEEN e.run_at AND greatest(e.run_at, w.next_at)) IS NOT TRUE AS wrong,
       format('delayed until %s in queue %s', d.due_at, d.queue_id) AS expected,
       CASE WHEN e.id IS NULL THEN 'no execution'
            ELSE format('%s, run_at %s, in queue %s', e.status, coalesce(e.run_at::text, 'none'), e.queue_id)
       END AS found
FROM delayed d LEFT JOIN execution e ON e.id = ANY (ARRAY[d.execution_id])
LEFT JOIN (SELECT max(w.next_at) AS next_at FROM due_window w) w ON true;

-- check deadline of execution: a deadline equals that of its execution, or is later in the same way
SELECT x.execution_id AS id,
       (x.expires_at BETWEEN e.expires_at AND greatest(e.expires_at, w.next_at)
        AND e.queue_id = x.queue_id) IS NOT TRUE AS wrong,
       format('expires_at %s in queue %s', x.expires_at, x.queue_id) AS expected,
       CASE WHEN e.id IS NULL THEN 'no execution'
            ELSE format('expires_at %s in queue %s', coalesce(e.expires_at::text, 'none'),
                        e.queue_id) END AS found
FROM expiring x LEFT JOIN execution e ON e.id = ANY (ARRAY[x.execution_id])
LEFT JOIN (SELECT max(w.next_at) AS next_at FROM due_window w) w ON true;

-- check webhook_end of execution: a pending webhook is for an ended and settled execution
SELECT d.execution_id AS id,
       (e.completed_at IS NOT NULL AND s.execution_id IS NULL
        AND u.execution_id IS NULL) IS NOT TRUE AS wrong,
       'ended and settled' AS expected,
       CASE WHEN e.id IS NULL THEN 'no execution'
            WHEN s.execution_id IS NOT NULL OR u.execution_id IS NOT NULL
                THEN format('%s, not settled', e.status)
            ELSE e.status::text END AS found
FROM webhook_delivery d
LEFT JOIN execution e ON e.id = ANY (ARRAY[d.execution_id])
LEFT JOIN slot s ON s.execution_id = d.execution_id
LEFT JOIN unpublished_completion u ON u.execution_id = d.execution_id
WHERE d.state = 'pending';

-- check unpublished_completion of execution: one with an unpublished completion has no slot for that attempt
SELECT u.execution_id AS id,
       (e.completed_at IS NOT NULL AND e.queue_id = u.queue_id
        AND (s.execution_id IS NULL OR s.claimed_at IS NOT NULL
             AND s.finished_at IS NOT NULL)) IS NOT TRUE AS wrong,
       format('ended in queue %s, without a slot', u.queue_id) AS expected,
       CASE WHEN e.id IS NULL THEN 'no execution'
            ELSE format('%s in queue %s, %s', e.status, e.queue_id,
                        CASE WHEN s.execution_id IS NULL THEN 'without a slot'
                             ELSE 'with a slot' END) END AS found
FROM unpublished_completion u
LEFT JOIN execution e ON e.id = ANY (ARRAY[u.execution_id])
LEFT JOIN slot s ON s.execution_id = u.execution_id;

-- check submission_entry of submission: one that is not decided is in the list, once
SELECT coalesce(l.ticket, 0) AS id, (s.request_id IS NOT NULL AND l.entries = 1) IS NOT TRUE AS wrong,
       format('request %s in the list once', request_id) AS expected,
       CASE WHEN s.request_id IS NULL THEN 'an entry in the list without a request'
            ELSE format('%s entries in the list', coalesce(l.entries, 0)) END AS found
FROM (
    SELECT l.request_id, min(l.ticket) AS ticket, count(*) AS entries FROM submission_line l
    GROUP BY l.request_id
) l
FULL JOIN submission s USING (request_id);

-- check submission_undecided of submission: one in the list was neither admitted nor rejected
SELECT l.ticket AS id, (e.id IS NULL AND o.request_id IS NULL) IS NOT TRUE AS wrong,
       format('request %s undecided', l.request_id) AS expected,
       CASE WHEN e.id IS NOT NULL THEN format('execution %s', e.id)
            ELSE format('decided %s', o.decided_at) END AS found
FROM submission_line l
LEFT JOIN execution e ON e.delivery_key = ANY (ARRAY[l.request_id])
LEFT JOIN submission_outcome o ON o.request_id = ANY (ARRAY[l.request_id]);
