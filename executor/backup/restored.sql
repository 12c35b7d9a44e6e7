-- What a backup contains, and what makes a restored copy safe.

-- state: what a backup, or a restored copy, contains.
--
-- The newest execution says when the state was written, at the latest that the rows prove.
SELECT t.reserved_id,
       coalesce(n.id, t.reserved_id - 1) AS last_id,
       now() AS at,
       coalesce(n.created_at, nullif(t.at, 'epoch'), now()) AS newest_at,
       c.running, c.offered, c.waiting, c.delayed,
       to_regrole('turnstile_executor') IS NOT NULL AS has_roles
FROM (SELECT t.reserved_id, t.at FROM ledger.turn t ORDER BY t.epoch DESC, t.number DESC LIMIT 1) t
LEFT JOIN (SELECT e.id, e.created_at FROM ledger.execution e ORDER BY e.id DESC LIMIT 1) n ON true
CROSS JOIN (
    SELECT count(*) FILTER (WHERE e.status = 'running') AS running,
           count(*) FILTER (WHERE e.status = 'scheduled') AS offered,
           count(*) FILTER (WHERE e.status = 'queued') AS waiting,
           count(*) FILTER (WHERE e.status = 'delayed') AS delayed
    FROM ledger.unfinished u JOIN ledger.current_execution e ON e.id = u.id
) c

-- skip_executions: lets the ids of executions continue at $1; the next leader loads them from the newest
-- turn.
UPDATE ledger.turn t SET reserved_id = $1
FROM (SELECT n.epoch, n.number FROM ledger.turn n ORDER BY n.epoch DESC, n.number DESC LIMIT 1) n
WHERE t.epoch = n.epoch AND t.number = n.number

-- skip_others: lets the other ids that were shown to users continue so many numbers later: the original
-- assigned them to something else. Like every change of a sequence this is not undone by a rollback, which
-- does no harm.
SELECT setval(s.name::regclass, coalesce(pg_sequence_last_value(s.name::regclass), 0) + $1::bigint)
FROM unnest(ARRAY[
    'ledger.api_token_id_seq', 'ledger.audit_log_id_seq', 'ledger.dead_letter_id_seq',
    'ledger.definition_id_seq'
]) s(name)

-- skip_actions: the same of actions, whose ids continue above the highest one: by a name that no action can
-- have.
INSERT INTO ledger.action_id (ref, id)
SELECT format('(ids up to %s were skipped by a restore)', m.id), m.id
FROM (SELECT coalesce(max(a.id), 0) + $1::bigint AS id FROM ledger.action_id a) m

-- note: what was done, in the audit log.
--
-- $1 to $3 name, address and channel of the caller, $4 the next id
INSERT INTO ledger.audit_log (actor, address, channel, verb, subject_kind, subject, before, after)
VALUES ($1, $2, $3, 'restored', 'database', '', '{}', jsonb_build_object('first_id', $4::bigint))

-- service_sessions: the sessions of executors in this database.
SELECT s.pid, s.application_name
FROM pg_stat_activity s
WHERE s.datname = current_database() AND s.application_name ~ '^turnstile (executor|leader|ledger)'
ORDER BY s.application_name, s.pid
