-- The parts of a turn. `ledger.py` joins those that a turn needs into one statement; each of them reads
-- `fence`, so nothing is written unless the executor still leads. Except in `fence` to `turn`, which share
-- the parameters of the turn, $1 and so on count within the part: arrays with one element per row.
--
-- `id = ANY (ARRAY[x])` means `id = x`, but cannot be merged or hashed, nor answered by reading a whole
-- index: each row is looked up, whatever a plan estimates. A plan that was made for a table of few rows
-- stays, and would read all the dead rows that an old snapshot keeps.

-- fence: one row while this executor leads under this epoch. It waits for a takeover, and then has none.
--
-- $1 epoch, $2 executor
SELECT l.epoch FROM ledger.leadership l WHERE l.epoch = $1::bigint AND l.executor = $2::text FOR SHARE

-- previous: the newest turn row, by the key that the ledger remembers.
--
-- $3 epoch, $4 number
SELECT t.* FROM fence, ledger.turn t WHERE t.epoch = $3::bigint AND t.number = $4::bigint

-- turn: the row of this turn. Without the one before it, columns that must not be null are.
--
-- $5 number, $6 instant, $7 low id or null, $8 reserved id or null, $9 greatest id that it admits, $10 and
-- $11 first and last counter of its grants, $12 ends, $13 journal, $14 checkpoint
INSERT INTO ledger.turn (
    epoch, number, at, after_epoch, after_number, after_counter, low_id, reserved_id, counter,
    checkpoint_epoch, checkpoint_number, first_counter, last_id, ends_decided, ends_written, journal,
    checkpoint
)
SELECT f.epoch, $5::bigint, greatest(p.at, to_timestamp($6::double precision)), p.epoch, p.number, c.counter,
       coalesce($7::bigint, p.low_id), greatest($8::bigint, p.reserved_id), coalesce($11::bigint, c.counter),
       CASE WHEN $14::text IS NULL THEN p.checkpoint_epoch ELSE f.epoch END,
       CASE WHEN $14::text IS NULL THEN p.checkpoint_number ELSE $5::bigint END,
       $10::bigint, $9::bigint, $12::integer, (SELECT count(*) FROM ended), $13::text, $14::text
FROM fence f
LEFT JOIN previous p ON true
CROSS JOIN LATERAL (SELECT CASE WHEN p.epoch = f.epoch THEN p.counter ELSE 0 END AS counter) c

-- turn_over: the row before this one is deleted, unless its journal or checkpoint counts.
DELETE FROM ledger.turn t USING fence WHERE t.epoch = $3::bigint AND t.number = $4::bigint

-- turns_over: a checkpoint replaces the last one and all journals since.
DELETE FROM ledger.turn t USING previous p
WHERE (t.epoch, t.number) >= (p.checkpoint_epoch, p.checkpoint_number) AND (t.epoch, t.number) <= (p.epoch,
    p.number)

-- admitted: new executions. Large parameters and metadata were stored before, in another row.
INSERT INTO ledger.execution (
    id, action_ref, key, priority, status, created_at, run_at, expires_at, timeout_seconds, parameters,
    request_hash,
    delivery_key, idempotency_key, callback_url, metadata, traceparent, retry_of
)
SELECT r.id, r.action_ref, r.key, r.priority, r.status::ledger.status, to_timestamp(r.created_at),
       to_timestamp(r.run_at), to_timestamp(r.expires_at), r.timeout_seconds,
       CASE WHEN r.body_id IS NULL THEN r.parameters
           ELSE (SELECT b.parameters FROM ledger.large_body b WHERE b.id = ANY (ARRAY[r.body_id])) END,
       r.request_hash, r.delivery_key, r.idempotency_key, r.callback_url,
       CASE WHEN r.body_id IS NULL THEN r.metadata
           ELSE (SELECT b.metadata FROM ledger.large_body b WHERE b.id = ANY (ARRAY[r.body_id])) END,
       r.traceparent, r.retry_of
FROM fence, unnest(
    $1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::double precision[],
    $7::double precision[],
    $8::double precision[], $9::double precision[], $10::jsonb[], $11::uuid[], $12::uuid[], $13::text[],
    $14::text[],
    $15::jsonb[], $16::text[], $17::bigint[], $18::uuid[]
) AS r(
    id, action_ref, key, priority, status, created_at, run_at, expires_at, timeout_seconds, parameters,
    request_hash,
    delivery_key, idempotency_key, callback_url, metadata, traceparent, retry_of, body_id
)

-- admitted_with_end: executions that ended in the turn that admitted them.
INSERT INTO ledger.execution (
    id, action_ref, key, priority, created_at, run_at, expires_at, timeout_seconds, parameters, request_hash,
    delivery_key, idempotency_key, callback_url, metadata, traceparent, retry_of,
    status, attempt, failures, reclaims, worker_id, queued_at, scheduled_at, started_at, completed_at, result,
    error_type, error_message, passages
)
SELECT r.id, r.action_ref, r.key, r.priority, to_timestamp(r.created_at), to_timestamp(r.run_at),
       to_timestamp(r.expires_at), r.timeout_seconds,
       CASE WHEN r.body_id IS NULL THEN r.parameters
           ELSE (SELECT b.parameters FROM ledger.large_body b WHERE b.id = ANY (ARRAY[r.body_id])) END,
       r.request_hash, r.delivery_key, r.idempotency_key, r.callback_url,
       CASE WHEN r.body_id IS NULL THEN r.metadata
           ELSE (SELECT b.metadata FROM ledger.large_body b WHERE b.id = ANY (ARRAY[r.body_id])) END,
       r.traceparent, r.retry_of,
       r.end_status::ledger.status, r.attempt, r.failures, r.reclaims, r.worker_id, to_timestamp(r.queued_at),
       to_timestamp(r.scheduled_at), to_timestamp(r.started_at), to_timestamp(r.completed_at), r.result,
       r.error_type, r.error_message, r.passages
FROM fence, unnest(
    $1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::double precision[],
    $7::double precision[],
    $8::double precision[], $9::double precision[], $10::jsonb[], $11::uuid[], $12::uuid[], $13::text[],
    $14::text[],
    $15::jsonb[], $16::text[], $17::bigint[], $18::uuid[],
    $19::bigint[], $20::text[], $21::bigint[], $22::bigint[], $23::bigint[], $24::text[],
    $25::double precision[],
    $26::double precision[], $27::double precision[], $28::double precision[], $29::jsonb[], $30::text[],
    $31::text[], $32::jsonb[]
) AS r(
    id, action_ref, key, priority, status, created_at, run_at, expires_at, timeout_seconds, parameters,
    request_hash,
    delivery_key, idempotency_key, callback_url, metadata, traceparent, retry_of, body_id,
    end_id, end_status, attempt, failures, reclaims, worker_id, queued_at, scheduled_at, started_at,
    completed_at,
    result, error_type, error_message, passages
)
RETURNING id, callback_url

-- webhooks_at_admission: deliveries of what ended in the turn that admitted it.
INSERT INTO ledger.webhook (execution_id, url, origin, due_at, created_at)
SELECT x.id, x.callback_url, ledger.origin_of(x.callback_url), now(), now()
FROM admitted_with_end x WHERE x.callback_url IS NOT NULL

-- ended: the ends of executions. The row of the turn compares their number with the decided ones.
UPDATE ledger.execution e
SET status = r.status::ledger.status, attempt = r.attempt, failures = r.failures, reclaims = r.reclaims,
    worker_id = r.worker_id, queued_at = to_timestamp(r.queued_at),
    scheduled_at = to_timestamp(r.scheduled_at),
    started_at = to_timestamp(r.started_at), completed_at = to_timestamp(r.completed_at), result = r.result,
    error_type = r.error_type, error_message = r.error_message, passages = r.passages
FROM fence, unnest(
    $1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::double precision[],
    $8::double precision[], $9::double precision[], $10::double precision[], $11::jsonb[], $12::text[],
    $13::text[],
    $14::jsonb[]
) AS r(
    id, status, attempt, failures, reclaims, worker_id, queued_at, scheduled_at, started_at, completed_at,
    result,
    error_type, error_message, passages
)
WHERE e.id = ANY (ARRAY[r.id]) AND e.completed_at IS NULL AND NOT EXISTS (
    SELECT FROM ledger.pending_end p WHERE p.execution_id = ANY (ARRAY[r.id])
)
RETURNING e.id, e.callback_url

-- webhooks: deliveries of what ended.
INSERT INTO ledger.webhook (execution_id, url, origin, due_at, created_at)
SELECT x.id, x.callback_url, ledger.origin_of(x.callback_url), now(), now()
FROM ended x WHERE x.callback_url IS NOT NULL

-- pending: ends of executions that another session has locked.
INSERT INTO ledger.pending_end (
    execution_id, status, attempt, failures, reclaims, worker_id, queued_at, scheduled_at, started_at,
    completed_at,
    result, error_type, error_message, passages
)
SELECT r.id, r.status::ledger.status, r.attempt, r.failures, r.reclaims, r.worker_id,
       to_timestamp(r.queued_at),
       to_timestamp(r.scheduled_at), to_timestamp(r.started_at), to_timestamp(r.completed_at), r.result,
       r.error_type, r.error_message, r.passages
FROM fence, unnest(
    $1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::double precision[],
    $8::double precision[], $9::double precision[], $10::double precision[], $11::jsonb[], $12::text[],
    $13::text[],
    $14::jsonb[]
) AS r(
    id, status, attempt, failures, reclaims, worker_id, queued_at, scheduled_at, started_at, completed_at,
    result,
    error_type, error_message, passages
)

-- attempts: attempts that were not the last one.
INSERT INTO ledger.attempt (
    execution_id, attempt, outcome, worker_id, scheduled_at, started_at, ended_at, error_type, error_message
)
SELECT r.execution_id, r.attempt, r.outcome, r.worker_id, to_timestamp(r.scheduled_at),
       to_timestamp(r.started_at),
       to_timestamp(r.ended_at), r.error_type, r.error_message
FROM fence, unnest(
    $1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::double precision[], $6::double precision[],
    $7::double precision[], $8::text[], $9::text[]
) AS r(execution_id, attempt, outcome, worker_id, scheduled_at, started_at, ended_at, error_type,
error_message)

-- logs: the last pieces of logs; a piece that comes twice is stored once.
INSERT INTO ledger.log (execution_id, attempt, start, at, text)
SELECT r.execution_id, r.attempt, r.start, now(), r.text
FROM fence, unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[])
    AS r(execution_id, attempt, start, text)
ON CONFLICT DO NOTHING

-- progress: the last progress of attempts, as it came with their ends.
INSERT INTO ledger.progress (execution_id, attempt, done, total, message, updated_at, is_last)
SELECT r.execution_id, r.attempt, r.done, r.total, left(r.message, 500), to_timestamp(r.at), true
FROM fence, unnest(
    $1::bigint[], $2::bigint[], $3::double precision[], $4::double precision[], $5::text[],
    $6::double precision[]
) AS r(execution_id, attempt, done, total, message, at)
ON CONFLICT DO NOTHING

-- granted: what workers were granted, one row for each.
INSERT INTO ledger.granted (epoch, counter, worker_id, granted_at, execution_ids, offsets)
SELECT r.epoch, r.counter, r.worker_id, to_timestamp(r.granted_at), r.execution_ids::bigint[],
       r.offsets::integer[]
FROM fence, unnest(
    $1::bigint[], $2::bigint[], $3::text[], $4::double precision[], $5::text[], $6::text[]
) AS r(epoch, counter, worker_id, granted_at, execution_ids, offsets)

-- grants_over: grants of which nothing is at its worker any more.
DELETE FROM ledger.granted g USING fence, unnest($1::bigint[], $2::bigint[]) AS r(epoch, counter)
WHERE g.epoch = ANY (ARRAY[r.epoch]) AND g.counter = ANY (ARRAY[r.counter])

-- live: executions with a past, as they are after this turn.
INSERT INTO ledger.live (
    id, action_ref, key, priority, status, attempt, failures, reclaims, queued_at, expires_at, due_at,
    ttl_seconds,
    timeout_seconds, cancel_reason, cancel_requested_at, grant_epoch, grant_counter, worker_id, scheduled_at,
    started_at, held, is_holding,
    is_impatient, passages
)
SELECT r.id, r.action_ref, r.key, r.priority, r.status::ledger.status, r.attempt, r.failures, r.reclaims,
       to_timestamp(r.queued_at), to_timestamp(r.expires_at), to_timestamp(r.due_at), r.ttl_seconds,
       r.timeout_seconds, r.cancel_reason, to_timestamp(r.cancel_requested_at), r.grant_epoch,
       r.grant_counter, r.worker_id, to_timestamp(r.scheduled_at),
       to_timestamp(r.started_at), r.held, r.is_holding = 1, r.is_impatient = 1, r.passages
FROM fence, unnest(
    $1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::double precision[], $10::double precision[], $11::double precision[], $12::double precision[],
    $13::double precision[], $14::text[], $15::double precision[], $16::bigint[], $17::bigint[], $18::text[],
    $19::double precision[], $20::double precision[], $21::jsonb[], $22::bigint[], $23::bigint[],
    $24::jsonb[]
) AS r(
    id, action_ref, key, priority, status, attempt, failures, reclaims, queued_at, expires_at, due_at,
    ttl_seconds,
    timeout_seconds, cancel_reason, cancel_requested_at, grant_epoch, grant_counter, worker_id, scheduled_at,
    started_at, held, is_holding,
    is_impatient, passages
)
ON CONFLICT (id) DO UPDATE SET
    action_ref = excluded.action_ref, key = excluded.key, priority = excluded.priority,
    status = excluded.status,
    attempt = excluded.attempt, failures = excluded.failures, reclaims = excluded.reclaims,
    queued_at = excluded.queued_at, expires_at = excluded.expires_at, due_at = excluded.due_at,
    ttl_seconds = excluded.ttl_seconds, timeout_seconds = excluded.timeout_seconds,
    cancel_reason = excluded.cancel_reason, cancel_requested_at = excluded.cancel_requested_at,
    grant_epoch = excluded.grant_epoch,
    grant_counter = excluded.grant_counter, worker_id = excluded.worker_id,
    scheduled_at = excluded.scheduled_at,
    started_at = excluded.started_at, held = excluded.held, is_holding = excluded.is_holding,
    is_impatient = excluded.is_impatient, passages = excluded.passages

-- live_over: executions that ended, or are plain again.
DELETE FROM ledger.live l USING fence, unnest($1::bigint[]) AS r(id) WHERE l.id = ANY (ARRAY[r.id])

-- waiting: executions that are older than the low id from now on.
INSERT INTO ledger.waiting (id, action_ref, key, priority, queued_at, expires_at)
SELECT r.id, r.action_ref, r.key, r.priority, to_timestamp(r.queued_at), to_timestamp(r.expires_at)
FROM fence, unnest(
    $1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::double precision[], $6::double precision[]
) AS r(id, action_ref, key, priority, queued_at, expires_at)

-- waiting_over: of these, what ended or got a row in `live`.
DELETE FROM ledger.waiting w USING fence, unnest($1::bigint[]) AS r(id) WHERE w.id = ANY (ARRAY[r.id])

-- workers: workers as they are from now on, or as they were when they were gone.
INSERT INTO ledger.worker (
    worker_id, session, secret_hash, name, pools, actions, concurrency, lease_seconds, is_taking, is_draining,
    about, not_ready, draining_at, draining_count, registered_at, heard_at, gone_at, gone_why, held_ids
)
SELECT r.worker_id, r.session, decode(r.secret_hash, 'hex'), r.name,
       ARRAY(SELECT jsonb_array_elements_text(r.pools)),
       CASE WHEN jsonb_typeof(r.actions) = 'array' THEN ARRAY(SELECT jsonb_array_elements_text(r.actions))
           END,
       r.concurrency, r.lease_seconds, r.is_taking = 1, r.is_draining = 1, r.about, r.not_ready,
       to_timestamp(r.draining_at), r.draining_count, to_timestamp(r.registered_at),
       to_timestamp(r.heard_at), to_timestamp(r.gone_at), r.gone_why, r.held_ids::bigint[]
FROM fence, unnest(
    $1::text[], $2::bigint[], $3::text[], $4::text[], $5::jsonb[], $6::jsonb[], $7::bigint[],
    $8::double precision[], $9::bigint[], $10::bigint[], $11::jsonb[], $12::text[], $13::double precision[],
    $14::bigint[], $15::double precision[], $16::double precision[], $17::double precision[], $18::text[],
    $19::text[]
) AS r(worker_id, session, secret_hash, name, pools, actions, concurrency, lease_seconds, is_taking,
is_draining, about, not_ready, draining_at, draining_count, registered_at, heard_at, gone_at, gone_why,
held_ids)
ON CONFLICT (worker_id) DO UPDATE SET
    session = excluded.session, secret_hash = excluded.secret_hash, name = excluded.name,
    pools = excluded.pools,
    actions = excluded.actions, concurrency = excluded.concurrency, lease_seconds = excluded.lease_seconds,
    is_taking = excluded.is_taking, is_draining = excluded.is_draining, about = excluded.about,
    not_ready = excluded.not_ready, draining_at = excluded.draining_at,
    draining_count = excluded.draining_count, registered_at = excluded.registered_at,
    heard_at = excluded.heard_at, gone_at = excluded.gone_at, gone_why = excluded.gone_why,
    held_ids = excluded.held_ids, acknowledged_at = NULL

-- definitions: definitions as they are from now on.
INSERT INTO ledger.definition (kind, name, body, created_at, updated_at)
SELECT r.kind, r.name, r.body, to_timestamp(r.changed_at), to_timestamp(r.changed_at)
FROM fence, unnest($1::text[], $2::text[], $3::jsonb[], $4::double precision[])
    AS r(kind, name, body, changed_at)
ON CONFLICT (kind, name) DO UPDATE SET body = excluded.body, updated_at = excluded.updated_at

-- definitions_over: definitions that were deleted.
DELETE FROM ledger.definition d USING fence, unnest($1::text[], $2::text[]) AS r(kind, name)
WHERE d.kind = ANY (ARRAY[r.kind]) AND d.name = ANY (ARRAY[r.name])

-- schedules: what is decided of schedules from now on, in the turn that admits their occurrences.
INSERT INTO ledger.schedule (
    name, decided_at, wake_at, execution_id, admitted, skipped, refused, missed_at, problem
)
SELECT r.name, to_timestamp(r.decided_at), to_timestamp(r.wake_at), r.execution_id, r.admitted, r.skipped,
       r.refused, to_timestamp(r.missed_at), r.problem
FROM fence, unnest(
    $1::text[], $2::bigint[], $3::double precision[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
    $8::bigint[], $9::text[]
) AS r(name, decided_at, wake_at, execution_id, admitted, skipped, refused, missed_at, problem)
ON CONFLICT (name) DO UPDATE SET
    decided_at = excluded.decided_at, wake_at = excluded.wake_at, execution_id = excluded.execution_id,
    admitted = excluded.admitted, skipped = excluded.skipped, refused = excluded.refused,
    missed_at = excluded.missed_at, problem = excluded.problem

-- schedules_over: schedules that were deleted.
DELETE FROM ledger.schedule s USING fence, unnest($1::text[]) AS r(name) WHERE s.name = ANY (ARRAY[r.name])

-- action_ids: the ids of new actions.
INSERT INTO ledger.action_id (ref, id)
SELECT r.ref, r.id FROM fence, unnest($1::text[], $2::bigint[]) AS r(ref, id)
ON CONFLICT (ref) DO NOTHING

-- audit: what operators did.
INSERT INTO ledger.audit_log (
    recorded_at, verb, subject_kind, subject, action_ref, actor, address, channel, before, after
)
SELECT to_timestamp(r.recorded_at), r.verb, r.subject_kind, r.subject, r.action_ref, left(r.actor, 200),
       left(r.address, 200), r.channel, r.before, r.after
FROM fence, unnest(
    $1::double precision[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
    $8::text[], $9::jsonb[], $10::jsonb[]
) WITH ORDINALITY AS r(
    recorded_at, verb, subject_kind, subject, action_ref, actor, address, channel, before, after, ord
)
ORDER BY r.ord

-- events: messages to be published.
INSERT INTO ledger.event (id, body)
SELECT r.id, r.body FROM fence, unnest($1::bigint[], $2::bytea[]) AS r(id, body)

-- events_over: messages that were published.
DELETE FROM ledger.event e USING fence, unnest($1::bigint[]) AS r(id) WHERE e.id = ANY (ARRAY[r.id])

-- early_cancels: cancels of what is not known yet.
INSERT INTO ledger.early_cancel (id, execution_id, idempotency_key, reason, kept_until, properties)
SELECT r.id, r.execution_id, r.idempotency_key, r.reason, to_timestamp(r.kept_until), r.properties
FROM fence, unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::double precision[], $6::text[])
    AS r(id, execution_id, idempotency_key, reason, kept_until, properties)

-- early_cancels_over: cancels that were applied, or kept for long enough.
DELETE FROM ledger.early_cancel c USING fence, unnest($1::bigint[]) AS r(id) WHERE c.id = ANY (ARRAY[r.id])

-- singletons: the names of new executions that have them alone.
INSERT INTO ledger.singleton (execution_id, action_ref, singleton, key, priority)
SELECT r.execution_id, r.action_ref, r.singleton, r.key, r.priority
FROM fence, unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[])
    AS r(execution_id, action_ref, singleton, key, priority)

-- singletons_over: those that have ended.
DELETE FROM ledger.singleton s USING fence, unnest($1::bigint[]) AS r(id)
WHERE s.execution_id = ANY (ARRAY[r.id])

-- inbox_begun: how much of a deletion of several turns is done.
UPDATE ledger.inbox i SET cancelled = r.cancelled
FROM fence, unnest($1::uuid[], $2::bigint[]) AS r(command_id, cancelled)
WHERE i.command_id = ANY (ARRAY[r.command_id])

-- bodies_over: large bodies that are not needed any more.
DELETE FROM ledger.large_body b USING fence, unnest($1::uuid[]) AS r(id) WHERE b.id = ANY (ARRAY[r.id])

-- inbox_over: commands that this turn decided.
DELETE FROM ledger.inbox i USING fence, unnest($1::bigint[]) AS r(id) WHERE i.id = ANY (ARRAY[r.id])

-- minutes: what executions did in minutes that are over.
INSERT INTO ledger.action_minute (
    at, action_ref, epoch, admitted, started, completed, failed, timeout, cancelled, expired, abandoned,
    slot_seconds, waiting, running
)
SELECT to_timestamp(r.at), r.action_ref, r.epoch, r.admitted, r.started, r.completed, r.failed, r.timeout,
       r.cancelled, r.expired, r.abandoned, r.slot_seconds, r.waiting::numeric, r.running::numeric
FROM fence, unnest(
    $1::double precision[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
    $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::double precision[], $13::text[],
    $14::text[]
) AS r(at, action_ref, epoch, admitted, started, completed, failed, timeout, cancelled, expired, abandoned,
slot_seconds, waiting, running)

-- answers: what the repetition of a command finds.
INSERT INTO ledger.answer (command_id, kept_until, body)
SELECT r.command_id, to_timestamp(r.kept_until), r.body
FROM fence, unnest($1::uuid[], $2::double precision[], $3::bytea[]) AS r(command_id, kept_until, body)
ON CONFLICT (command_id) DO NOTHING
