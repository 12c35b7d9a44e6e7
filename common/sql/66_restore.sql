-- What a restored copy needs before services use it. `executor restore-check` calls these as the owner of the
-- tables.

-- skip_ids: continues every sequence so many numbers later. After the backup the original assigned numbers
-- that messages, clients and webhooks have seen: none of them may be assigned again. Like every change of a
-- sequence this is not undone by a rollback, which does no harm.
CREATE FUNCTION turnstile.skip_ids(in_count bigint)
RETURNS void
LANGUAGE sql
:settings
AS $$
    SELECT setval(s.name::regclass, coalesce(pg_sequence_last_value(s.name::regclass), 0) + in_count)
    FROM unnest(ARRAY[
        'action_id_seq', 'action_queue_id_seq', 'action_schema_id_seq', 'api_token_id_seq',
        'audit_log_id_seq', 'dead_letter_id_seq', 'early_cancel_id_seq', 'execution_id_seq',
        'slot_ticket_seq', 'submission_line_ticket_seq', 'worker_pool_id_seq'
    ]) s(name)
$$;

-- restart_windows: lets the bounds of the sweeps wait for transactions of this server. Both windows hold ids
-- of transactions of the server that was backed up. If that server had higher ids, transactions that are open
-- here would count as ended, a bound would be raised past a row that one of them commits, and no sweep would
-- find that row (P7).
CREATE FUNCTION turnstile.restart_windows()
RETURNS void
LANGUAGE sql
:settings
AS $$
    UPDATE slot_window SET next_xid = pg_current_xact_id()::text::bigint, foreign_xid = 0, deferrals = 0;
    UPDATE due_window SET closing_xid = pg_current_xact_id()::text::bigint, foreign_xid = 0, deferrals = 0
$$;
