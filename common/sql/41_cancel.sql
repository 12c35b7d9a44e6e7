-- cancel: ends what has not started, and requests the cancellation of what runs.
--
-- One guarded write decides every race with grant, claim and finish: the queue rows are locked, then the
-- execution rows, then the slots, and only then are they checked (P3). A running attempt is overdue from now
-- on, so the watchdog ends it if the cancel message is lost.
--
-- Statuses returned: 'cancelled' (ended here); 'running' (send its worker a cancel message); the status that
-- it had, if it was terminal; null if the execution does not exist.
CREATE FUNCTION turnstile.cancel(in_execution_ids bigint[], in_reasons text[])
RETURNS SETOF turnstile.moved
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    cancelled_at timestamptz;
    known_ids bigint[];
    previous text[];
    reasons text[];
BEGIN
    PERFORM 1 FROM action_queue q
    WHERE q.id = ANY (ARRAY(SELECT e.queue_id FROM execution e WHERE e.id = ANY (in_execution_ids)))
    ORDER BY q.id FOR NO KEY UPDATE;
    -- An execution that waits at a gate leaves its list.
    PERFORM turnstile.lock_gates('{}', '{}', in_execution_ids);
    PERFORM 1 FROM execution e WHERE e.id = ANY (in_execution_ids) ORDER BY e.id FOR NO KEY UPDATE;
    PERFORM 1 FROM slot s WHERE s.execution_id = ANY (in_execution_ids) ORDER BY s.execution_id
    FOR NO KEY UPDATE;
    cancelled_at := clock_timestamp();

    -- The first reason is kept.
    WITH requested AS (
        SELECT DISTINCT ON (c.id) c.id, c.reason
        FROM unnest(in_execution_ids, in_reasons) WITH ORDINALITY c(id, reason, ord) ORDER BY c.id, c.ord
    )
    SELECT array_agg(e.id), array_agg(e.status::text), array_agg(coalesce(e.cancel_reason, c.reason))
    INTO known_ids, previous, reasons
    FROM requested c JOIN turnstile.current_execution e ON e.id = ANY (ARRAY[c.id]);

    UPDATE execution e
    SET cancel_requested_at = coalesce(e.cancel_requested_at, cancelled_at), cancel_reason = k.reason
    FROM unnest(known_ids, previous, reasons) k(id, status, reason)
    WHERE k.status = 'running' AND e.id = ANY (ARRAY[k.id]);

    UPDATE slot s SET overdue_at = least(s.overdue_at, cancelled_at)
    FROM unnest(known_ids, previous) k(id, status)
    WHERE k.status = 'running' AND s.execution_id = ANY (ARRAY[k.id]) AND s.finished_at IS NULL;

    PERFORM turnstile.end_unstarted(known_ids, 'cancelled', 'Cancelled', reasons);

    RETURN QUERY
    SELECT c.id, e.attempt, e.action_id, a.ref, k.status, e.status::text, e.worker_id, cancelled_at
    FROM (SELECT DISTINCT u.id FROM unnest(in_execution_ids) u(id)) c
    LEFT JOIN unnest(known_ids, previous) k(id, status) ON k.id = c.id
    LEFT JOIN turnstile.current_execution e ON e.id = ANY (ARRAY[c.id])
    LEFT JOIN action a ON a.id = ANY (ARRAY[e.action_id]);
END
$$;

-- log_cancels: records these results of `cancel`, except those of executions that had ended before.
CREATE FUNCTION turnstile.log_cancels(in_moves turnstile.moved[], in_reason text)
RETURNS void
LANGUAGE sql
:settings
AS $$
    SELECT turnstile.log_operations(
        'cancelled', 'execution', array_agg(m.execution_id::text ORDER BY m.execution_id),
        array_agg(m.action_ref ORDER BY m.execution_id),
        array_agg(jsonb_build_object('status', m.previous_status) ORDER BY m.execution_id),
        array_agg(jsonb_strip_nulls(jsonb_build_object(
            'status', m.status, 'cancel_requested', CASE m.status WHEN 'running' THEN true END, 'reason',
            in_reason))
            ORDER BY m.execution_id))
    FROM unnest(in_moves) m
    WHERE m.status = 'running' OR m.status = 'cancelled' AND m.previous_status <> 'cancelled'
$$;

-- cancel_unless_held: cancels, except executions that another session holds, or whose queue it holds, for
-- longer than `in_wait_ms` (see `lock_queues`). `blocked_ids` are the exceptions.
CREATE FUNCTION turnstile.cancel_unless_held(
    in_execution_ids bigint[],
    in_reasons text[],
    in_wait_ms integer,
    in_suspect_ids bigint[],
    in_caller jsonb DEFAULT NULL,
    OUT moves turnstile.moved[],
    OUT blocked_ids bigint[],
    OUT blocked_queue_ids bigint[],
    OUT free_queue_ids bigint[]
)
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    queue_ids bigint[] := ARRAY(
        SELECT DISTINCT e.queue_id FROM execution e WHERE e.id = ANY (in_execution_ids));
    unavailable_ids bigint[] := '{}';
BEGIN
    blocked_queue_ids := turnstile.lock_queues(queue_ids, in_wait_ms, in_suspect_ids);
    blocked_queue_ids := blocked_queue_ids || (
        SELECT l.busy_queue_ids
        FROM turnstile.lock_gates('{}', blocked_queue_ids, in_execution_ids, in_suspect_ids) l);
    -- Suspects are locked last, without waiting.
    PERFORM 1 FROM execution e
    WHERE e.id = ANY (in_execution_ids) AND e.queue_id <> ALL (coalesce(in_suspect_ids, queue_ids))
    ORDER BY e.id FOR NO KEY UPDATE;
    IF in_suspect_ids IS NULL OR in_suspect_ids && queue_ids THEN
        WITH free AS MATERIALIZED (
            SELECT e.id FROM execution e
            WHERE e.id = ANY (in_execution_ids) AND e.queue_id <> ALL (blocked_queue_ids)
              AND (in_suspect_ids IS NULL OR e.queue_id = ANY (in_suspect_ids))
            ORDER BY e.id FOR NO KEY UPDATE SKIP LOCKED
        )
        SELECT array_agg(e.id), blocked_queue_ids || coalesce(array_agg(DISTINCT e.queue_id), '{}')
        INTO unavailable_ids, blocked_queue_ids
        FROM execution e
        WHERE e.id = ANY (in_execution_ids) AND e.id NOT IN (SELECT f.id FROM free f)
          AND (in_suspect_ids IS NULL OR e.queue_id = ANY (in_suspect_ids));
    END IF;
    blocked_ids := coalesce(unavailable_ids, '{}');
    free_queue_ids := turnstile.free_suspects(in_suspect_ids, queue_ids, blocked_queue_ids);
    moves := ARRAY(
        SELECT m::turnstile.moved
        FROM turnstile.cancel(
            ARRAY(SELECT c.id FROM unnest(in_execution_ids) WITH ORDINALITY c(id, ord)
                  WHERE c.id <> ALL (blocked_ids) ORDER BY c.ord),
            ARRAY(SELECT c.reason FROM unnest(in_execution_ids, in_reasons) WITH ORDINALITY c(id, reason, ord)
                  WHERE c.id <> ALL (blocked_ids) ORDER BY c.ord)
        ) m);
    IF in_caller IS NOT NULL THEN
        PERFORM turnstile.note_caller(in_caller);
        PERFORM turnstile.log_cancels(moves, in_reasons[1]);
    END IF;
END
$$;
