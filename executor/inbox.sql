-- What HTTP and the command line write into the leader's inbox, and read of its answers.

-- store: commands, in this order; one that is there already is the same command.
--
-- $1 command ids, $2 kinds, $3 whether they name many executions, $4 bodies, $5 parameters, $6 metadata
INSERT INTO ledger.inbox (command_id, kind, is_bulk, size_bytes, body, parameters, metadata)
SELECT r.command_id, r.kind, r.is_bulk, 0, r.body, r.parameters, r.metadata
FROM unnest($1::uuid[], $2::text[], $3::boolean[], $4::jsonb[], $5::jsonb[], $6::jsonb[])
    WITH ORDINALITY AS r(command_id, kind, is_bulk, body, parameters, metadata, ord)
ORDER BY r.ord
ON CONFLICT (command_id) DO NOTHING

-- store_retries: requests of ended executions again, in this order. Returns one row for each: the present
-- status, null if there is no such execution, and whether it has ended, which means that it is stored.
--
-- $1 command ids, $2 execution ids, $3 idempotency keys, $4 trace context, $5 caller, $6 other parameters or
-- null, $7 whether the caller may be urgent
WITH found AS MATERIALIZED (
    SELECT r.command_id, r.idempotency_key, r.ord, e.id, e.action_ref, e.key, e.priority, e.timeout_seconds,
           e.callback_url, e.parameters, e.metadata,
           e.completed_at IS NOT NULL OR p.status IS NOT NULL AS has_ended,
           coalesce(
               p.status::text, CASE WHEN e.completed_at IS NOT NULL THEN e.status::text END, l.status::text,
               CASE WHEN EXISTS (SELECT FROM ledger.granted g WHERE e.id = ANY (g.execution_ids))
                   THEN 'scheduled' END,
               e.status::text) AS status
    FROM unnest($1::uuid[], $2::bigint[], $3::text[])
        WITH ORDINALITY AS r(command_id, id, idempotency_key, ord)
    LEFT JOIN ledger.execution e ON e.id = ANY (ARRAY[r.id])
    LEFT JOIN ledger.pending_end p ON p.execution_id = ANY (ARRAY[e.id])
    LEFT JOIN ledger.live l ON l.id = ANY (ARRAY[e.id])
),
stored AS (
    INSERT INTO ledger.inbox (command_id, kind, size_bytes, body, parameters, metadata)
    SELECT f.command_id, 'request', 0,
           jsonb_strip_nulls(jsonb_build_object(
               'action_ref', f.action_ref, 'key', f.key, 'priority', f.priority,
               'timeout_seconds', f.timeout_seconds, 'callback_url', f.callback_url,
               'idempotency_key', f.idempotency_key, 'traceparent', $4::text,
               'request_hash', md5('retry of ' || f.id || coalesce(' with ' || $6::text, ''))::uuid,
               'retry_of', f.id, 'changed_by', $5::jsonb, 'may_be_urgent', $7::boolean,
               -- Names of parameters, and no values: they may be secret, and more see the audit log.
               'edited', CASE WHEN $6::text IS NOT NULL THEN (
                   SELECT coalesce(jsonb_agg(d.name ORDER BY d.name), '[]')
                   FROM (
                       SELECT left(coalesce(o.key, n.key), 100) AS name
                       FROM jsonb_each(f.parameters) o FULL JOIN jsonb_each($6::jsonb) n ON n.key = o.key
                       WHERE n.value IS DISTINCT FROM o.value LIMIT 50
                   ) d) END)),
           coalesce($6::jsonb, f.parameters), f.metadata
    FROM found f WHERE f.has_ended ORDER BY f.ord
    ON CONFLICT (command_id) DO NOTHING
)
SELECT f.command_id, f.status, coalesce(f.has_ended, false) AS has_ended FROM found f ORDER BY f.ord

-- record_bulk: that an operator is about to change all that a filter selects.
--
-- $1 name, $2 address, $3 channel, $4 verb, $5 action, $6 the filter
INSERT INTO ledger.audit_log (actor, address, channel, verb, subject_kind, subject, action_ref, before, after)
VALUES (left($1::text, 200), left($2::text, 200), $3::text, $4::text, 'executions', '', $5::text, '{}',
        $6::jsonb)

-- answers: those to these commands.
--
-- $1 command ids
SELECT a.command_id, a.body
FROM unnest($1::uuid[]) AS r(command_id) JOIN ledger.answer a ON a.command_id = ANY (ARRAY[r.command_id])

-- prune: delete the oldest answers whose time is over. Returns how many, and the newest instant of them.
--
-- $1 the newest instant of those that were deleted before, $2 how many
WITH old AS MATERIALIZED (
    SELECT a.command_id, a.kept_until FROM ledger.answer a
    WHERE a.kept_until >= $1::text::timestamptz AND a.kept_until < clock_timestamp()
    ORDER BY a.kept_until LIMIT $2::bigint FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM ledger.answer a USING old o WHERE a.command_id = ANY (ARRAY[o.command_id])
    RETURNING o.kept_until
)
SELECT count(*) AS deleted, max(d.kept_until)::text AS newest FROM deleted d
