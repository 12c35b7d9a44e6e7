-- What executors write beside the turns, and how the rows of the turns look together. After the tables of the
-- leader.

-- What attempts have logged. A piece starts where the one before it ended, counted in characters.
CREATE TABLE ledger.log (
    execution_id bigint NOT NULL,
    attempt integer NOT NULL,
    start bigint NOT NULL,
    at timestamptz NOT NULL,
    text text NOT NULL,
    -- A repeated piece is stored once.
    PRIMARY KEY (execution_id, attempt, start),
    -- A log begins at 0.
    CONSTRAINT log_start_is_a_count CHECK (start >= 0)
);

-- How far attempts say that they have come: the newest report of each, as executors write it, and the last
-- one, which came with the end: the turn inserts it and waits for no row.
CREATE TABLE ledger.progress (
    execution_id bigint NOT NULL,
    attempt integer NOT NULL,
    done double precision NOT NULL,
    total double precision,
    message text,
    updated_at timestamptz NOT NULL,
    is_last boolean NOT NULL DEFAULT false,
    -- An attempt has one of each.
    PRIMARY KEY (execution_id, attempt, is_last)
) WITH (fillfactor = 50);

-- What was granted once and has no row in `live`: the newest grant of each execution.
CREATE VIEW ledger.first_grant AS
SELECT DISTINCT ON (e.id) e.id, g.worker_id, g.granted_at
FROM ledger.granted g CROSS JOIN LATERAL unnest(g.execution_ids) AS e(id)
ORDER BY e.id, g.epoch DESC, g.counter DESC;

-- Executions as they are now: the record, and until it has ended what other tables know of it. Only the end
-- writes the record again, so before it a row of `live`, or else a first grant, or else waiting.
CREATE VIEW ledger.current_execution AS
SELECT e.id, e.action_ref, nullif(e.key, '') AS concurrency_key, e.idempotency_key, e.priority,
       CASE WHEN e.completed_at IS NOT NULL THEN e.status
            WHEN p.execution_id IS NOT NULL THEN p.status
            WHEN l.id IS NOT NULL THEN l.status
            WHEN g.id IS NOT NULL THEN 'scheduled'
            ELSE 'queued' END AS status,
       CASE WHEN e.completed_at IS NOT NULL THEN e.attempt
            WHEN p.execution_id IS NOT NULL THEN p.attempt
            WHEN l.id IS NOT NULL THEN l.attempt
            WHEN g.id IS NOT NULL THEN 1
            ELSE 0 END AS attempt,
       e.parameters, coalesce(e.result, p.result) AS result, e.metadata,
       coalesce(e.error_type, p.error_type) AS error_type,
       coalesce(e.error_message, p.error_message) AS error_message,
       coalesce(e.worker_id, p.worker_id, l.worker_id, g.worker_id) AS worker_id,
       e.created_at,
       coalesce(e.queued_at, p.queued_at,
                CASE WHEN l.id IS NULL THEN coalesce(w.queued_at, e.created_at)
                     WHEN l.status <> 'delayed' OR l.attempt > 0 THEN l.queued_at END) AS queued_at,
       coalesce(e.scheduled_at, p.scheduled_at, l.scheduled_at, g.granted_at) AS scheduled_at,
       coalesce(e.started_at, p.started_at, l.started_at) AS started_at,
       coalesce(e.completed_at, p.completed_at) AS completed_at,
       coalesce(l.due_at, e.run_at) AS run_at,
       coalesce(l.expires_at, w.expires_at, e.expires_at) AS expires_at, e.retry_of,
       coalesce(e.timeout_seconds, (a.body ->> 'timeout')::double precision) AS timeout_seconds,
       l.cancel_reason, l.cancel_requested_at, e.callback_url, e.traceparent,
       coalesce(e.passages, p.passages, l.passages) AS passages
FROM ledger.execution e
LEFT JOIN ledger.pending_end p ON e.completed_at IS NULL AND p.execution_id = e.id
LEFT JOIN ledger.live l ON e.completed_at IS NULL AND p.execution_id IS NULL AND l.id = e.id
LEFT JOIN ledger.waiting w ON e.completed_at IS NULL AND l.id IS NULL AND w.id = e.id
LEFT JOIN ledger.first_grant g ON e.completed_at IS NULL AND p.execution_id IS NULL AND l.id IS NULL
                                  AND g.id = e.id
LEFT JOIN ledger.definition a ON a.kind = 'action' AND a.name = e.action_ref;

-- What has not ended, by id: what has a row of its own, and what is so new that it has none.
CREATE VIEW ledger.unfinished AS
SELECT w.id, w.action_ref FROM ledger.waiting w
UNION
SELECT l.id, l.action_ref FROM ledger.live l
UNION
SELECT e.id, e.action_ref FROM ledger.execution e
WHERE e.completed_at IS NULL
  AND e.id >= (SELECT t.low_id FROM ledger.turn t ORDER BY t.epoch DESC, t.number DESC LIMIT 1)
  AND NOT EXISTS (SELECT FROM ledger.pending_end p WHERE p.execution_id = e.id);

-- Whether an attempt is or was a worker's: while it runs by its grant, afterwards by its number. Every
-- look-up is by key, so rows that an old snapshot keeps cost nothing.
CREATE FUNCTION ledger.is_attempt_of(
    in_worker text, in_execution bigint, in_attempt integer, in_epoch bigint, in_counter bigint
)
RETURNS boolean LANGUAGE sql STABLE
RETURN EXISTS (
    SELECT FROM ledger.live l
    WHERE l.id = in_execution AND l.worker_id = in_worker AND l.attempt = in_attempt
      AND l.grant_epoch = in_epoch AND l.grant_counter = in_counter
) OR EXISTS (
    SELECT FROM ledger.execution e
    WHERE e.id = in_execution AND e.worker_id = in_worker AND e.attempt = in_attempt
) OR EXISTS (
    SELECT FROM ledger.attempt a
    WHERE a.execution_id = in_execution AND a.attempt = in_attempt AND a.worker_id = in_worker
) OR EXISTS (
    -- The row of a first grant has the counters from its own key on.
    SELECT FROM (
        SELECT g.* FROM ledger.granted g WHERE g.epoch = in_epoch AND g.counter <= in_counter
        ORDER BY g.counter DESC LIMIT 1
    ) g
    CROSS JOIN LATERAL unnest(g.execution_ids, g.offsets) AS e(id, past)
    WHERE g.worker_id = in_worker AND in_attempt = 1 AND e.id = in_execution
      AND g.counter + e.past = in_counter
);
