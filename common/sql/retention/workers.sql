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
