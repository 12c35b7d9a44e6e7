-- append_logs: stores what running attempts have logged, so that it can be read before they finish.
--
-- Fenced like every write of a worker (P6): its lease must be live, and only pieces of attempts that it holds
-- are stored. A piece starts where the one before it ended, so a repeated piece is stored once. The worker's
-- row is not locked as in claim and finish: a piece beside a reclaim belongs to the attempt that wrote it in
-- either order, and nothing else reads it. At least the last `in_kept_chars` characters of each log are kept.
-- Returns false, and stores nothing, if the lease is over.
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
:settings_for_index_order
AS $$
DECLARE
    appended_now timestamptz := clock_timestamp();
BEGIN
    IF NOT EXISTS (
        SELECT FROM turnstile.current_worker w
        WHERE w.id = in_worker_id AND w.lost_at IS NULL AND w.lease_expires_at > appended_now
    ) THEN
        RETURN false;
    END IF;

    WITH owned AS MATERIALIZED (
        SELECT p.* FROM unnest(in_execution_ids, in_attempts, in_starts, in_texts) p(id, attempt, start, text)
        JOIN slot s ON s.execution_id = ANY (ARRAY[p.id]) AND s.attempt = p.attempt
                       AND s.worker_id = in_worker_id AND s.finished_at IS NULL
    ),
    appended AS (
        INSERT INTO attempt_log (execution_id, attempt, start, at, text)
        SELECT h.id, h.attempt, h.start, appended_now, h.text FROM owned h
        ON CONFLICT DO NOTHING
    )
    -- The range lies behind the piece in the order of the key, and is usually empty.
    DELETE FROM attempt_log l USING owned h
    WHERE l.execution_id = ANY (ARRAY[h.id]) AND l.attempt = h.attempt
      AND l.start < h.start + length(h.text) - in_kept_chars
      AND l.start + length(l.text) <= h.start + length(h.text) - in_kept_chars;
    RETURN true;
END
$$;
