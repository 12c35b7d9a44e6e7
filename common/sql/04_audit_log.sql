-- The audit log: what operators did, by which name, from where. Each row is written in the transaction of the
-- change.
--
-- The functions that change something for an operator get `in_caller`, an object with `name`, `address` and
-- `channel`. Without it they record nothing: a cancel message, a sweep and a test have no operator.

-- note_caller: makes `in_caller` the author of what this transaction records. A service of an earlier version
-- passes only a name.
CREATE FUNCTION turnstile.note_caller(in_caller jsonb, in_name text DEFAULT NULL)
RETURNS void
LANGUAGE sql
:settings
AS $$
    SELECT set_config('turnstile.caller', coalesce(in_caller, jsonb_build_object('name', in_name))::text,
                      true);
$$;

-- log_operations: records one verb about several subjects of one kind. With the rights of the owner: a
-- service's role can add rows, dated by the server, and can neither change nor delete any.
CREATE FUNCTION turnstile.log_operations(
    in_verb text,
    in_subject_kind text,
    in_subjects text[],
    in_action_refs text[],
    in_befores jsonb[],
    in_afters jsonb[]
)
RETURNS void
LANGUAGE sql
SECURITY DEFINER
:settings
AS $$
    INSERT INTO audit_log (
        recorded_at, actor, address, channel, verb, subject_kind, subject, action_ref, before, after)
    SELECT clock_timestamp(), left(c.caller ->> 'name', 200), left(c.caller ->> 'address', 200),
           c.caller ->> 'channel', in_verb, in_subject_kind, s.subject, s.action_ref,
           coalesce(s.before, '{}'), coalesce(s.after, '{}')
    FROM unnest(in_subjects, in_action_refs, in_befores, in_afters)
         WITH ORDINALITY s(subject, action_ref, before, after, ord)
    CROSS JOIN (SELECT nullif(current_setting('turnstile.caller', true), '')::jsonb AS caller) c
    ORDER BY s.ord
$$;

-- log_operation: records what an operator did to one subject, for changes that no other function makes.
CREATE FUNCTION turnstile.log_operation(
    in_caller jsonb, in_verb text, in_subject_kind text, in_subject text, in_before jsonb, in_after jsonb,
    in_action_ref text DEFAULT NULL
)
RETURNS void
LANGUAGE plpgsql
:settings
AS $$
BEGIN
    PERFORM turnstile.note_caller(in_caller);
    PERFORM turnstile.log_operations(
        in_verb, in_subject_kind, ARRAY[in_subject], ARRAY[in_action_ref], ARRAY[in_before], ARRAY[in_after]);
END
$$;

-- log_bulk: records that an operator is about to change all executions that a filter selects. Each execution
-- is recorded too, with its change.
CREATE FUNCTION turnstile.log_bulk(in_caller jsonb, in_verb text, in_action_ref text, in_request jsonb)
RETURNS void
LANGUAGE sql
:settings
AS $$
    SELECT turnstile.log_operation(in_caller, in_verb, 'executions', '', NULL, in_request, in_action_ref)
$$;

-- prune_audit_log: deletes rows that are older than `in_keep_seconds`, and never younger ones than 30 days:
-- the role of a service must not be able to delete what it did.
CREATE FUNCTION turnstile.prune_audit_log(in_keep_seconds double precision, in_limit integer)
RETURNS integer
LANGUAGE plpgsql
SECURITY DEFINER
:settings_for_index_lookups
AS $$
DECLARE
    kept_since timestamptz := clock_timestamp() - greatest(make_interval(secs => in_keep_seconds),
                                                           interval '30 days');
    pruned integer;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT l.id FROM audit_log l WHERE l.recorded_at < kept_since
        ORDER BY l.recorded_at LIMIT in_limit FOR UPDATE SKIP LOCKED
    )
    DELETE FROM audit_log l USING old o WHERE l.id = ANY (ARRAY[o.id]);
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN pruned;
END
$$;
