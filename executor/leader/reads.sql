-- What the leader and candidates read, beside the turns. Instants are seconds since 1970; those of large
-- parts are packed as the server sends them, which `binary_arrays` reads. `turn.sql` says what `= ANY
-- (ARRAY[x])` is for.

-- take_over: raise the epoch, above the clock in microseconds too, by a random number.
--
-- A failover can lose the newest epochs, and a clock that is behind does not tell them apart: without the
-- random number, the next leader could issue a lost epoch again, and with it numbers of grants that workers
-- know.
--
-- $1 executor, $2 above this epoch, $3 whether only the present leader may
UPDATE ledger.leadership l
SET epoch = greatest(l.epoch, $2::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
            + 1 + floor(random() * 1000000)::bigint,
    executor = $1::text, taken_at = clock_timestamp()
WHERE NOT $3::boolean OR l.executor = $1::text
RETURNING l.epoch

-- fence_of: whether this executor leads under this epoch, and the instant.
--
-- $1 epoch, $2 executor
SELECT extract(epoch FROM clock_timestamp())::double precision AS now
FROM ledger.leadership l WHERE l.epoch = $1 AND l.executor = $2

-- newest: the newest turn row.
SELECT t.epoch, t.number, t.low_id, t.reserved_id, extract(epoch FROM t.at)::double precision AS at,
       t.checkpoint_epoch, t.checkpoint_number,
       t.journal IS NOT NULL OR (t.epoch, t.number) = (t.checkpoint_epoch, t.checkpoint_number) AS counts
FROM ledger.turn t ORDER BY t.epoch DESC, t.number DESC LIMIT 1

-- journals: the newest checkpoint, and the journals after it.
--
-- $1 epoch and $2 number of the checkpoint
SELECT t.checkpoint, t.journal FROM ledger.turn t
WHERE (t.epoch, t.number) >= ($1::bigint, $2::bigint) AND (t.checkpoint IS NOT NULL OR t.journal IS NOT NULL)
ORDER BY t.epoch, t.number

-- waiting_packed: what waits plainly below the low id, by queue: ids in order, with both instants.
--
-- Without what has a grant or a row in `live`. Sorted by the id alone, and grouped by hashing, which keeps
-- that order within a group: a sort by the queue takes three times as long. A block bounds the size of a row.
-- Where none expires, the instant is infinity. $1 low id
SELECT w.block, w.action_ref, w.key, w.priority, string_agg(int8send(w.id), '') AS ids,
       string_agg(timestamptz_send(w.queued_at), '') AS queued_at,
       string_agg(coalesce(timestamptz_send(w.expires_at), '\x7fffffffffffffff'), '') AS expires_at
FROM (
    SELECT s.action_ref, s.key, s.priority, s.id / 4000000 AS block, s.id, s.queued_at, s.expires_at
    FROM ledger.waiting s
    WHERE s.id < $1::bigint
      AND s.id NOT IN (SELECT unnest(g.execution_ids) FROM ledger.granted g)
      AND s.id NOT IN (SELECT l.id FROM ledger.live l)
    ORDER BY s.id
    OFFSET 0
) w
GROUP BY w.block, w.action_ref, w.key, w.priority

-- waiting_singly: everything else that has not ended: below the low id with a grant or a row in `live`, and
-- from the low id on.
--
-- $1 low id
SELECT w.id, w.action_ref, w.key, w.priority, extract(epoch FROM w.queued_at)::double precision AS queued_at,
       extract(epoch FROM w.expires_at)::double precision AS expires_at
FROM (
    SELECT s.id, s.action_ref, s.key, s.priority, s.queued_at, s.expires_at FROM ledger.waiting s
    WHERE s.id < $1::bigint AND s.id IN (
        SELECT unnest(g.execution_ids) FROM ledger.granted g UNION SELECT l.id FROM ledger.live l
    )
    UNION ALL
    SELECT e.id, e.action_ref, e.key, e.priority, e.created_at, e.expires_at FROM ledger.execution e
    WHERE e.id >= $1::bigint AND e.completed_at IS NULL
      AND NOT EXISTS (SELECT FROM ledger.pending_end p WHERE p.execution_id = e.id)
) w
ORDER BY w.id

-- grants: what is at workers.
SELECT g.epoch, g.counter, g.worker_id, extract(epoch FROM g.granted_at)::double precision AS granted_at,
       g.execution_ids, g.offsets
FROM ledger.granted g ORDER BY g.epoch, g.counter

-- live: executions with a past.
SELECT l.id, l.action_ref, l.key, l.priority, l.status::text AS status, l.attempt, l.failures, l.reclaims,
       extract(epoch FROM l.queued_at)::double precision AS queued_at,
       extract(epoch FROM l.expires_at)::double precision AS expires_at,
       extract(epoch FROM l.due_at)::double precision AS due_at, l.ttl_seconds, l.timeout_seconds,
       l.cancel_reason, extract(epoch FROM l.cancel_requested_at)::double precision AS cancel_requested_at,
       l.grant_epoch, l.grant_counter, l.worker_id,
       extract(epoch FROM l.scheduled_at)::double precision AS scheduled_at,
       extract(epoch FROM l.started_at)::double precision AS started_at, l.held, l.is_holding, l.is_impatient,
       l.passages
FROM ledger.live l ORDER BY l.id

-- workers: workers that may hold something.
SELECT w.worker_id, w.session, w.secret_hash, w.name, w.pools, w.actions, w.concurrency, w.lease_seconds,
       w.is_taking, w.is_draining, w.about, w.not_ready, w.draining_count,
       extract(epoch FROM w.draining_at)::double precision AS draining_at,
       extract(epoch FROM w.registered_at)::double precision AS registered_at,
       extract(epoch FROM w.heard_at)::double precision AS heard_at
FROM ledger.worker w WHERE w.gone_at IS NULL ORDER BY w.worker_id

-- definitions: actions, keys, resources, pools and schedules.
SELECT d.kind, d.name, d.body FROM ledger.definition d ORDER BY d.kind, d.name

-- schedules: what was decided of each schedule.
SELECT s.name, extract(epoch FROM s.decided_at)::bigint AS decided_at,
       extract(epoch FROM s.wake_at)::double precision AS wake_at, s.execution_id, s.admitted, s.skipped,
       s.refused, extract(epoch FROM s.missed_at)::bigint AS missed_at, s.problem
FROM ledger.schedule s

-- action_ids: the ids of actions, also of deleted ones.
SELECT a.ref, a.id FROM ledger.action_id a

-- events: the first messages to be published behind one.
--
-- $1 id, $2 how many, $3 how many bytes; the first one in any case
SELECT n.id, n.body
FROM (
    SELECT f.id, f.body, sum(length(f.body)) OVER (ORDER BY f.id) - length(f.body) AS bytes_before
    FROM (
        SELECT e.id, e.body FROM ledger.event e WHERE e.id > $1::bigint ORDER BY e.id LIMIT $2::bigint
    ) f
) n
WHERE n.bytes_before < $3::bigint
ORDER BY n.id

-- newest_event: the id of the last message to be published, or 0.
SELECT coalesce(max(e.id), 0) FROM ledger.event e

-- early_cancels: cancels of what was not known.
SELECT c.id, c.execution_id, c.idempotency_key, c.reason,
       extract(epoch FROM c.kept_until)::double precision AS kept_until, c.properties
FROM ledger.early_cancel c ORDER BY c.id

-- singletons: living executions with a name that they have alone.
SELECT s.execution_id, s.action_ref, s.singleton, s.key, s.priority FROM ledger.singleton s
ORDER BY s.execution_id

-- store_body: a large body, beside the turns. What a leader stored an hour ago and did not use is deleted.
--
-- $1 id, $2 parameters, $3 metadata or null
WITH old AS (DELETE FROM ledger.large_body b WHERE b.stored_at < now() - interval '1 hour')
INSERT INTO ledger.large_body (id, parameters, metadata)
VALUES ($1::uuid, $2::text::jsonb, $3::text::jsonb)

-- look_up: executions by the keys under which they were admitted, or by id.
--
-- $1 delivery keys, $2 idempotency keys, $3 ids
SELECT e.id, e.delivery_key, e.idempotency_key, e.request_hash, coalesce(p.status, e.status)::text AS status,
       e.action_ref, e.key, e.priority
FROM (
    SELECT x.id FROM ledger.execution x WHERE x.delivery_key = ANY ($1::uuid[])
    UNION SELECT x.id FROM ledger.execution x WHERE x.idempotency_key = ANY ($2::text[])
    UNION SELECT unnest($3::bigint[])
) f
JOIN ledger.execution e ON e.id = ANY (ARRAY[f.id])
LEFT JOIN ledger.pending_end p ON p.execution_id = ANY (ARRAY[e.id])

-- requests_of: what offers need.
--
-- $1 ids
SELECT e.id, e.parameters, e.metadata, e.traceparent, e.idempotency_key
FROM unnest($1::bigint[]) AS r(id) JOIN ledger.execution e ON e.id = ANY (ARRAY[r.id])

-- traces_of: the trace contexts of executions.
--
-- $1 ids
SELECT e.id, e.traceparent
FROM unnest($1::bigint[]) AS r(id) JOIN ledger.execution e ON e.id = ANY (ARRAY[r.id])
WHERE e.traceparent IS NOT NULL

-- outcomes: executions that have ended.
--
-- $1 ids
SELECT e.id, e.action_ref, e.traceparent, coalesce(p.status, e.status)::text AS status,
       coalesce(p.attempt, e.attempt) AS attempt,
       coalesce(p.result, e.result) AS result, coalesce(p.error_type, e.error_type) AS error_type,
       coalesce(p.error_message, e.error_message) AS error_message,
       extract(epoch FROM coalesce(p.completed_at, e.completed_at))::double precision AS completed_at
FROM unnest($1::bigint[]) AS r(id)
JOIN ledger.execution e ON e.id = ANY (ARRAY[r.id])
LEFT JOIN ledger.pending_end p ON p.execution_id = ANY (ARRAY[e.id])
WHERE coalesce(p.completed_at, e.completed_at) IS NOT NULL

-- inbox: the first commands from an id on, of the others and of those that name many executions; of the
-- former not more than fit into so many bytes, and always the first. A body that is larger than what can be
-- read is left out. `is_answered`: it was decided before, and stored once more.
--
-- $1 id, $2 how many, $3 how many that name many, $4 bytes, $5 largest body in bytes
WITH first AS MATERIALIZED (
    SELECT n.id FROM (
        SELECT i.id, sum(i.size_bytes) OVER (ORDER BY i.id) - i.size_bytes AS bytes_before
        FROM (
            SELECT x.id, least(x.size_bytes, $5::bigint) AS size_bytes FROM ledger.inbox x
            WHERE x.id >= $1::bigint AND NOT x.is_bulk ORDER BY x.id LIMIT $2::bigint
        ) i
    ) n WHERE n.bytes_before < $4::bigint
    UNION ALL
    (SELECT x.id FROM ledger.inbox x WHERE x.id >= $1::bigint AND x.is_bulk ORDER BY x.id LIMIT $3::bigint)
)
SELECT i.id, i.command_id, i.kind, i.cancelled, CASE WHEN b.is_readable THEN i.body END AS body,
       CASE WHEN b.is_readable THEN i.parameters END AS parameters,
       CASE WHEN b.is_readable THEN i.metadata END AS metadata,
       EXISTS (SELECT FROM ledger.answer a WHERE a.command_id = ANY (ARRAY[i.command_id])) AS is_answered
FROM first f
JOIN ledger.inbox i ON i.id = ANY (ARRAY[f.id])
CROSS JOIN LATERAL (SELECT i.size_bytes <= $5::bigint AS is_readable) b
ORDER BY i.id

-- inbox_newest: the newest id that a command has got.
SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END FROM ledger.inbox_id s

-- entering: the transactions that have drawn ids of commands and have not ended. A transaction gives up its
-- locks after its rows are visible, so the next statement sees what is not listed here.
SELECT coalesce(array_agg(l.virtualtransaction), '{}')
FROM pg_locks l
WHERE l.locktype = 'advisory' AND l.classid = 1953853038 AND l.objid = 3 AND l.objsubid = 2
  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())

-- silence: let commands be stored without a notification. Waits for transactions that notify.
SELECT pg_advisory_lock(1953853038, 4)

-- end_silence: let commands notify again.
SELECT pg_advisory_unlock(1953853038, 4)

-- unlocked: which of these executions no other session has locked; they are locked until the transaction
-- ends.
--
-- $1 ids
SELECT e.id FROM unnest($1::bigint[]) AS r(id) JOIN ledger.execution e ON e.id = ANY (ARRAY[r.id])
FOR NO KEY UPDATE OF e SKIP LOCKED

-- living: which of these executions have not ended.
--
-- $1 ids
SELECT e.id FROM unnest($1::bigint[]) AS r(id) JOIN ledger.execution e ON e.id = ANY (ARRAY[r.id]) WHERE
       e.completed_at IS NULL

-- write_pending: the pending ends of executions that are not locked any more, with their webhooks.
WITH free AS MATERIALIZED (
    SELECT e.id FROM ledger.pending_end p JOIN ledger.execution e ON e.id = ANY (ARRAY[p.execution_id])
    FOR NO KEY UPDATE OF e SKIP LOCKED
),
over AS (
    DELETE FROM ledger.pending_end p USING free f WHERE p.execution_id = ANY (ARRAY[f.id]) RETURNING p.*
),
ended AS (
UPDATE ledger.execution e
SET status = o.status, attempt = o.attempt, failures = o.failures, reclaims = o.reclaims,
    worker_id = o.worker_id,
    queued_at = o.queued_at, scheduled_at = o.scheduled_at, started_at = o.started_at,
    completed_at = o.completed_at, result = o.result, error_type = o.error_type,
    error_message = o.error_message,
    passages = o.passages
FROM over o WHERE e.id = ANY (ARRAY[o.execution_id]) AND e.completed_at IS NULL
RETURNING e.id, e.callback_url
)
INSERT INTO ledger.webhook (execution_id, url, origin, due_at, created_at)
SELECT x.id, x.callback_url, ledger.origin_of(x.callback_url), now(), now()
FROM ended x WHERE x.callback_url IS NOT NULL

-- has_pending: whether ends are pending.
SELECT EXISTS (SELECT FROM ledger.pending_end)

-- blocked_by: end the sessions that this one waits for.
--
-- $1 process id of the waiting session
SELECT pg_terminate_backend(b.pid) FROM unnest(pg_blocking_pids($1::integer)) AS b(pid)

-- hold: whether this session now holds this advisory lock.
--
-- $1 kind
SELECT pg_try_advisory_lock(1953853038, $1::integer)

-- announce: say that this executor could lead.
--
-- $1 kind
SELECT pg_try_advisory_lock_shared(1953853038, $1::integer)

-- unannounce: take it back.
--
-- $1 kind
SELECT pg_advisory_unlock_shared(1953853038, $1::integer)

-- held_by: the other sessions of this database that hold this advisory lock. Writers of commands share the
-- fourth one until their transactions end: they are no leader.
--
-- $1 kind
SELECT l.pid FROM pg_locks l
WHERE l.locktype = 'advisory' AND l.classid = 1953853038 AND l.objid = $1::bigint::oid
    AND l.objsubid = 2 AND l.granted
  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND l.pid <> pg_backend_pid()
  AND ($1::bigint <> 4 OR l.mode = 'ExclusiveLock')
