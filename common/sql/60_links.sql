-- The watchdog's links: what was told to nobody, or got lost, is told again (P4, P7).
--
-- As all of its sweeps: they read only live tables, take a bounded number of rows, and where that is of use
-- skip what another replica is working on.

-- due_offers: granted, not claimed, and last offered longer ago than `in_timeout_seconds`. A repeated offer
-- is harmless: the claim is fenced. Where nobody serves the pool nothing is repeated, and the wait grows
-- with the age of the grant (to ten timeouts): busy workers must not drown in copies.
CREATE FUNCTION turnstile.due_offers(in_timeout_seconds double precision, in_limit integer)
RETURNS SETOF turnstile.granted
LANGUAGE sql
SET search_path = public, pg_temp
AS $$
    WITH due AS (
        SELECT s.execution_id FROM slot s
        WHERE s.claimed_at IS NULL AND s.finished_at IS NULL
          AND s.offered_at < clock_timestamp() - greatest(
              make_interval(secs => in_timeout_seconds),
              least(s.offered_at - s.granted_at, make_interval(secs => in_timeout_seconds * 10)))
          AND EXISTS (
              SELECT FROM action_queue q
              JOIN action a ON a.id = q.action_id
              JOIN worker w ON a.pool = ANY (w.pools) AND w.lost_at IS NULL AND w.stopped_at IS NULL
                            AND w.lease_expires_at > clock_timestamp()
              WHERE q.id = s.queue_id)
          -- A lost worker is told to stop its attempt before the next one is offered.
          AND NOT EXISTS (SELECT FROM untold_stop u WHERE u.execution_id = s.execution_id)
        ORDER BY s.execution_id LIMIT in_limit FOR NO KEY UPDATE SKIP LOCKED
    ),
    offered AS (
        UPDATE slot s SET offered_at = clock_timestamp() FROM due d WHERE s.execution_id = ANY (ARRAY[d.execution_id])
        RETURNING s.execution_id, s.attempt
    )
    SELECT o.execution_id, o.attempt, a.ref, a.pool, e.traceparent, NULL::double precision
    FROM offered o
    JOIN execution e ON e.id = ANY (ARRAY[o.execution_id])
    JOIN action a ON a.id = ANY (ARRAY[e.action_id]);
$$;

-- due_completions: ended, not settled, and last told longer ago than `in_timeout_seconds`. Telling it again is
-- harmless: settling deletes a row or nothing.
CREATE FUNCTION turnstile.due_completions(in_timeout_seconds double precision, in_limit integer)
RETURNS SETOF bigint
LANGUAGE sql
SET search_path = public, pg_temp
AS $$
    WITH due_slot AS (
        SELECT s.execution_id FROM slot s
        WHERE s.finished_at IS NOT NULL AND s.told_at < clock_timestamp() - make_interval(secs => in_timeout_seconds)
        ORDER BY s.execution_id LIMIT in_limit FOR NO KEY UPDATE SKIP LOCKED
    ),
    slot_told AS (
        UPDATE slot s SET told_at = clock_timestamp() FROM due_slot d WHERE s.execution_id = ANY (ARRAY[d.execution_id])
        RETURNING s.execution_id
    ),
    due_end AS (
        SELECT u.execution_id FROM untold_end u
        WHERE u.told_at < clock_timestamp() - make_interval(secs => in_timeout_seconds)
        ORDER BY u.execution_id LIMIT in_limit FOR NO KEY UPDATE SKIP LOCKED
    ),
    end_told AS (
        UPDATE untold_end u SET told_at = clock_timestamp() FROM due_end d WHERE u.execution_id = ANY (ARRAY[d.execution_id])
        RETURNING u.execution_id
    )
    SELECT execution_id FROM slot_told UNION SELECT execution_id FROM end_told;
$$;

-- due_stops: attempts taken back from lost workers longer than `in_timeout_seconds` ago, whose workers nobody
-- told to stop: whoever reclaimed them has died. Telling it twice is harmless.
CREATE FUNCTION turnstile.due_stops(in_timeout_seconds double precision, in_limit integer)
RETURNS TABLE (execution_id bigint, attempt integer, worker_id text)
LANGUAGE sql
SET search_path = public, pg_temp
AS $$
    SELECT u.execution_id, u.attempt, u.worker_id FROM untold_stop u
    WHERE u.noted_at < clock_timestamp() - make_interval(secs => in_timeout_seconds)
    ORDER BY u.execution_id LIMIT in_limit;
$$;

-- stops_told: these workers were told, and the broker has confirmed it.
CREATE FUNCTION turnstile.stops_told(in_execution_ids bigint[], in_attempts integer[])
RETURNS void
LANGUAGE sql
SET search_path = public, pg_temp
AS $$
    DELETE FROM untold_stop u USING unnest(in_execution_ids, in_attempts) c(id, attempt)
    WHERE u.execution_id = ANY (ARRAY[c.id]) AND u.attempt = c.attempt;
$$;
