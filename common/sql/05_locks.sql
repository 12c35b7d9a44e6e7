-- Locks of queue rows that a stranger may hold: a session in `psql`, a tool, a service that hangs (P9).
--
-- A caller says how long it waits. If that is too long, the statement is undone as a whole (lock_not_available),
-- and the caller asks again with every queue as a suspect: then nothing is waited for, what can be locked is
-- decided, and the rest is named. Until they are found free, those are suspects of the caller's next statements:
-- so one locked row costs one wait, and not one for each statement.

-- lock_queues: lock these queues for the transaction; returns those that other sessions hold.
--
-- `in_wait_ms` null: wait for ever, for all. Else wait so long, at every lock until the transaction's end, and fail
-- then; but only try to lock `in_suspect_ids` (null: all). What is only tried never waits, so it may be locked
-- behind higher ids without a deadlock.
CREATE FUNCTION turnstile.lock_queues(in_queue_ids bigint[], in_wait_ms integer, in_suspect_ids bigint[])
RETURNS bigint[]
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
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
    -- Our own services hold these rows too, for a moment: a few tries tell them from a stranger.
    WHILE cardinality(open_ids) > 0 AND tries_left > 0 LOOP
        open_ids := ARRAY(
            SELECT o.id FROM unnest(open_ids) o(id)
            EXCEPT
            SELECT l.id FROM (
                SELECT q.id FROM action_queue q WHERE q.id = ANY (open_ids) ORDER BY q.id FOR NO KEY UPDATE SKIP LOCKED
            ) l);
        tries_left := tries_left - 1;
        IF cardinality(open_ids) > 0 AND tries_left > 0 THEN
            PERFORM pg_sleep(0.01);
        END IF;
    END LOOP;
    -- A queue that was deleted is held by nobody.
    RETURN CASE WHEN cardinality(open_ids) = 0 THEN open_ids
                ELSE ARRAY(SELECT q.id FROM action_queue q WHERE q.id = ANY (open_ids)) END;
END
$$;

-- free_suspects: those of `in_suspect_ids` that were asked for and are not held by others.
CREATE FUNCTION turnstile.free_suspects(in_suspect_ids bigint[], in_queue_ids bigint[], in_blocked_ids bigint[])
RETURNS bigint[]
LANGUAGE sql
IMMUTABLE
AS $$
    SELECT array_agg(s.id) FROM unnest(in_suspect_ids) s(id)
    WHERE s.id = ANY (in_queue_ids) AND s.id <> ALL (in_blocked_ids)
$$;

-- lock_unheld_queues: lock these queues, except what others hold for longer than a moment; returns what they hold. For
-- sweeps: what is left out has its turn at the next tick.
CREATE FUNCTION turnstile.lock_unheld_queues(in_queue_ids bigint[], in_wait_ms integer DEFAULT 250)
RETURNS bigint[]
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    BEGIN
        RETURN turnstile.lock_queues(in_queue_ids, in_wait_ms, '{}');
    EXCEPTION WHEN lock_not_available THEN
        RETURN turnstile.lock_queues(in_queue_ids, in_wait_ms, NULL);
    END;
END
$$;

-- held_executions: lock those of these executions, and their slots, that are in `in_suspect_ids` (null: all), without
-- waiting; returns those of them that other sessions hold. The locks of the queues come before.
CREATE FUNCTION turnstile.held_executions(in_execution_ids bigint[], in_suspect_ids bigint[])
RETURNS bigint[]
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    tried_ids bigint[] := ARRAY(
        SELECT c.id FROM unnest(in_execution_ids) c(id) WHERE in_suspect_ids IS NULL OR c.id = ANY (in_suspect_ids));
    free_ids bigint[] := ARRAY(
        SELECT e.id FROM execution e WHERE e.id = ANY (tried_ids) ORDER BY e.id FOR NO KEY UPDATE SKIP LOCKED);
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
