-- prune_workers: deletes workers that stopped or were lost more than `in_keep_seconds` ago and that no slot or cancel
-- refers to. Their ids stay in the history of attempts.
CREATE FUNCTION turnstile.prune_workers(in_keep_seconds double precision, in_limit integer)
RETURNS integer
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    gone_since timestamptz := clock_timestamp() - make_interval(secs => in_keep_seconds);
    pruned integer;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT w.id FROM worker w
        -- The start time selects by the index; the time of leaving decides.
        WHERE (w.lost_at IS NOT NULL OR w.stopped_at IS NOT NULL) AND w.started_at < gone_since
          AND greatest(w.lost_at, w.stopped_at, w.renewed_at) < gone_since
          AND NOT EXISTS (SELECT FROM turnstile.live_slot s WHERE s.worker_id = w.id)
          AND NOT EXISTS (SELECT FROM turnstile.live_unpublished_cancel u WHERE u.worker_id = w.id)
        ORDER BY w.started_at LIMIT in_limit FOR UPDATE SKIP LOCKED
    )
    DELETE FROM worker w USING old o WHERE w.id = ANY (ARRAY[o.id]);
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN pruned;
END
$$;

-- prune_changes: deletes changes of actions and resources that are older than `in_keep_seconds`.
CREATE FUNCTION turnstile.prune_changes(in_keep_seconds double precision, in_limit integer)
RETURNS integer
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    pruned integer;
    pruned_of_resources integer;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT c.id, c.changed_at FROM resource_change c ORDER BY c.id LIMIT in_limit
    )
    DELETE FROM resource_change c USING old o
    WHERE c.id = ANY (ARRAY[o.id]) AND o.changed_at < clock_timestamp() - make_interval(secs => in_keep_seconds);
    GET DIAGNOSTICS pruned_of_resources = ROW_COUNT;
    WITH old AS MATERIALIZED (
        SELECT c.id, c.changed_at FROM action_change c ORDER BY c.id LIMIT in_limit
    )
    DELETE FROM action_change c USING old o
    WHERE c.id = ANY (ARRAY[o.id]) AND o.changed_at < clock_timestamp() - make_interval(secs => in_keep_seconds);
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN greatest(pruned, pruned_of_resources);
END
$$;
