-- append_logs: what running attempts have written meanwhile, so that it can be read before they end.
--
-- Fenced like everything that a worker says (P6): its lease must be live, and only pieces of attempts that it
-- still holds are stored. A piece starts where the one before it ended, so saying it again stores nothing twice.
-- The worker's row is not locked as in claim and finish: a piece that meets a reclaim belongs to the attempt that
-- wrote it, whichever comes first, and nothing else reads it. Of each log at least the last `in_kept_chars` characters
-- stay. Returns false, and stores nothing, where the lease is over.
CREATE FUNCTION turnstile.append_logs(
    in_worker_id text,
    in_execution_ids bigint[],
    in_attempts integer[],
    in_starts bigint[],
    in_texts text[],
    in_kept_chars integer DEFAULT 65536
)
RETURNS boolean
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    appended_now timestamptz := clock_timestamp();
BEGIN
    IF NOT EXISTS (
        SELECT FROM worker w
        WHERE w.id = in_worker_id AND w.lost_at IS NULL AND w.lease_expires_at > appended_now
    ) THEN
        RETURN false;
    END IF;

    WITH held AS MATERIALIZED (
        SELECT p.* FROM unnest(in_execution_ids, in_attempts, in_starts, in_texts) p(id, attempt, start, text)
        JOIN slot s ON s.execution_id = ANY (ARRAY[p.id]) AND s.attempt = p.attempt
                       AND s.worker_id = in_worker_id AND s.finished_at IS NULL
    ),
    appended AS (
        INSERT INTO attempt_log (execution_id, attempt, start, at, text)
        SELECT h.id, h.attempt, h.start, appended_now, h.text FROM held h
        ON CONFLICT DO NOTHING
    )
    -- The range is behind the piece in the order of the key, and is mostly empty.
    DELETE FROM attempt_log l USING held h
    WHERE l.execution_id = ANY (ARRAY[h.id]) AND l.attempt = h.attempt
      AND l.start < h.start + length(h.text) - in_kept_chars
      AND l.start + length(l.text) <= h.start + length(h.text) - in_kept_chars;
    RETURN true;
END
$$;
