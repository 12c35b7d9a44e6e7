-- Locks of rows that a foreign session may hold for long: `psql`, a tool, a service that hangs (P9).
--
-- The caller sets how long a statement waits for a lock. On a timeout the whole statement is rolled back
-- (lock_not_available), and the caller repeats it with all queues as suspects: the statement then waits for
-- no lock, handles the queues that it can lock, and returns the others as blocked. Blocked queues stay
-- suspects in the caller's next statements until they are found free. So one locked row costs one wait, not
-- one wait per statement.

-- lock_queues: locks these queues until the transaction ends; returns those that other sessions hold.
--
-- `in_wait_ms` null: waits without limit, for all queues. Otherwise every lock of the transaction waits at
-- most that long, and then the statement fails; queues in `in_suspect_ids` (null: all) are only tried. A
-- tried lock never waits, so it may come after locks of higher ids without a deadlock.
CREATE FUNCTION turnstile.lock_queues(in_queue_ids bigint[], in_wait_ms integer, in_suspect_ids bigint[])
RETURNS bigint[]
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    open_ids bigint[] := '{}';
    tries_left integer := CASE WHEN in_suspect_ids IS NULL THEN 5 ELSE 1 END;
BEGIN
    IF in_wait_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', in_wait_ms || 'ms', true);
        IF in_suspect_ids IS DISTINCT FROM '{}' THEN
            open_ids := ARRAY(
                SELECT DISTINCT q.id FROM unnest(in_queue_ids) q(id)
                WHERE q.id IS NOT NULL AND (in_suspect_ids IS NULL OR q.id = ANY (in_suspect_ids)));
        END IF;
    END IF;
    PERFORM 1 FROM action_queue q
    WHERE q.id = ANY (in_queue_ids) AND q.id <> ALL (open_ids) ORDER BY q.id FOR NO KEY UPDATE;
    -- Our own services hold these rows for a moment: a few tries tell them from a foreign session.
    WHILE cardinality(open_ids) > 0 AND tries_left > 0 LOOP
        open_ids := ARRAY(
            SELECT o.id FROM unnest(open_ids) o(id)
            EXCEPT
            SELECT l.id FROM (
                SELECT q.id FROM action_queue q WHERE q.id = ANY (open_ids) ORDER BY q.id
                FOR NO KEY UPDATE SKIP LOCKED
            ) l);
        tries_left := tries_left - 1;
        IF cardinality(open_ids) > 0 AND tries_left > 0 THEN
            PERFORM pg_sleep(0.01);
        END IF;
    END LOOP;
    -- No session holds a deleted queue.
    RETURN CASE WHEN cardinality(open_ids) = 0 THEN open_ids
                ELSE ARRAY(SELECT q.id FROM action_queue q WHERE q.id = ANY (open_ids)) END;
END
$$;

-- free_suspects: those of `in_suspect_ids` that are in `in_queue_ids` and not blocked.
CREATE FUNCTION turnstile.free_suspects(
    in_suspect_ids bigint[], in_queue_ids bigint[], in_blocked_ids bigint[]
)
RETURNS bigint[]
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT array_agg(s.id) FROM unnest(in_suspect_ids) s(id)
    WHERE s.id = ANY (in_queue_ids) AND s.id <> ALL (in_blocked_ids)
$$;

-- lock_available_queues: locks these queues, except those that other sessions hold for longer than
-- `in_wait_ms`; returns the exceptions. For sweeps, which handle the exceptions at the next tick.
CREATE FUNCTION turnstile.lock_available_queues(in_queue_ids bigint[], in_wait_ms integer DEFAULT 250)
RETURNS bigint[]
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
BEGIN
    BEGIN
        RETURN turnstile.lock_queues(in_queue_ids, in_wait_ms, '{}');
    EXCEPTION WHEN lock_not_available THEN
        RETURN turnstile.lock_queues(in_queue_ids, in_wait_ms, NULL);
    END;
END
$$;

-- lock_available_executions: locks, without waiting, those of these executions and their slots that are in
-- `in_suspect_ids` (null: all); returns those that other sessions hold. The caller has locked the queues.
CREATE FUNCTION turnstile.lock_available_executions(in_execution_ids bigint[], in_suspect_ids bigint[])
RETURNS bigint[]
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    tried_ids bigint[] := ARRAY(
        SELECT c.id FROM unnest(in_execution_ids) c(id)
        WHERE in_suspect_ids IS NULL OR c.id = ANY (in_suspect_ids));
    free_ids bigint[] := ARRAY(
        SELECT e.id FROM execution e WHERE e.id = ANY (tried_ids) ORDER BY e.id
        FOR NO KEY UPDATE SKIP LOCKED);
    free_slot_ids bigint[] := ARRAY(
        SELECT s.execution_id FROM slot s
        WHERE s.execution_id = ANY (free_ids) ORDER BY s.execution_id FOR NO KEY UPDATE SKIP LOCKED);
BEGIN
    RETURN ARRAY(
        SELECT e.id FROM unnest(tried_ids) t(id)
        JOIN execution e ON e.id = ANY (ARRAY[t.id])
        WHERE e.id <> ALL (free_ids)
           OR (e.id <> ALL (free_slot_ids)
               AND (SELECT s.execution_id FROM slot s WHERE s.execution_id = e.id) IS NOT NULL));
END
$$;
