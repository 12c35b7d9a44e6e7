-- audit_frame: the beginning of every statement of the audit.
--
-- `bound` has the timeouts and the instant of the snapshot. `history` has what the checks need of
-- each execution: if several checks use it, it is read once.
--
-- $1 dispatch timeout, $2 settle timeout, $3 stop timeout, $4 lease, $5 grace, $6 pace, $7 lease of
-- a webhook: all in seconds. Pace is the time of the watchdog for a thousand rows.
WITH bound AS (
    SELECT now() AS at, make_interval(secs => $1) AS dispatch, make_interval(secs => $2) AS settle,
           make_interval(secs => $3) AS stop, make_interval(secs => $4) AS lease,
           make_interval(secs => $5) AS grace,
           make_interval(secs => $6 / 1000) AS pace, make_interval(secs => $7) AS webhook
),
history AS (
    SELECT e.id, e.action_id, e.queue_id, e.concurrency_key, e.status, e.attempt, e.run_at, e.expires_at,
           e.priority, e.completed_at IS NOT NULL AS has_ended,
           ((e.completed_at IS NOT NULL) = (e.status NOT IN ('queued', 'delayed', 'scheduled', 'running'))
            AND (e.result IS NULL OR e.status = 'completed')
            AND CASE e.status
                    WHEN 'queued' THEN e.queued_at IS NOT NULL AND e.worker_id IS NULL
                          AND e.started_at IS NULL
                    WHEN 'delayed' THEN e.run_at IS NOT NULL
                                        AND (e.attempt > 0) = (e.worker_id IS NOT NULL
                                                               AND e.started_at IS NOT NULL)
                    WHEN 'scheduled' THEN false
                    WHEN 'running' THEN false
                    WHEN 'cancelled' THEN true
                    WHEN 'expired' THEN e.expires_at IS NOT NULL
                    ELSE e.attempt > 0 AND e.worker_id IS NOT NULL AND e.started_at IS NOT NULL
                END) IS TRUE AS is_coherent
    FROM execution e
)
:question

-- audit_tally: how many rows a check read, and how many of them are wrong. A check yields one row for each
-- subject that it reads: its id, whether it is wrong, what was expected and what was found.
SELECT :name AS name, count(*) AS rows, count(*) FILTER (WHERE c.wrong) AS faults FROM (:check) c

-- audit_examples: the first wrong rows of a check. $8 rows
SELECT c.id, c.expected, c.found FROM (:check) c WHERE c.wrong ORDER BY c.id LIMIT $8
