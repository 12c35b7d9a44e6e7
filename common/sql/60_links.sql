-- The watchdog's links: what was told to nobody, or got lost, is told again (P4, P7).
--
-- As all of its sweeps: they read only live tables, take a bounded number of rows, and where that is of use
-- skip what another replica is working on.

-- is_unserved: whether nobody could run an action though somebody works in its pool: it is written in Python, names
-- no entrypoint, and no live worker of the pool has its code. To offer it would only send it round. A pool without
-- any worker keeps its offers: they are there for the first who comes.
CREATE FUNCTION turnstile.is_unserved(in_action public.action)
RETURNS boolean
LANGUAGE sql
STABLE
SET search_path = public, pg_temp
AS $$
    SELECT in_action.runner = 'python' AND in_action.entrypoint IS NULL AND coalesce((
        SELECT bool_and(w.served_refs IS NOT NULL AND NOT in_action.ref = ANY (w.served_refs))
        FROM worker w
        WHERE in_action.pool = ANY (w.pools) AND w.lost_at IS NULL AND w.stopped_at IS NULL
          AND w.draining_at IS NULL AND w.lease_expires_at > clock_timestamp()
    ), false);
$$;

-- withhold_offers: of these granted attempts, those that nobody could run are not to be offered, and come back. They
-- are due at once when a worker serves them. What another session is just working on is left alone.
CREATE FUNCTION turnstile.withhold_offers(in_execution_ids bigint[], in_attempts integer[])
RETURNS SETOF bigint
LANGUAGE sql
SET search_path = public, pg_temp
SET enable_seqscan = off
AS $$
    WITH unserved AS (
        SELECT s.execution_id
        FROM unnest(in_execution_ids, in_attempts) c(id, attempt)
        JOIN slot s ON s.execution_id = ANY (ARRAY[c.id]) AND s.attempt = c.attempt
        JOIN action_queue q ON q.id = ANY (ARRAY[s.queue_id])
        JOIN action a ON a.id = ANY (ARRAY[q.action_id])
        WHERE s.claimed_at IS NULL AND s.finished_at IS NULL AND turnstile.is_unserved(a)
        ORDER BY s.execution_id FOR NO KEY UPDATE OF s SKIP LOCKED
    )
    UPDATE slot s SET offered_at = NULL FROM unserved u WHERE s.execution_id = ANY (ARRAY[u.execution_id])
    RETURNING s.execution_id;
$$;

-- due_offers: granted, not claimed, and last offered longer ago than `in_timeout_seconds`. For services of the
-- previous version, which do not ask the broker what it still holds: so the wait grows with the age of the grant
-- (to ten timeouts).
CREATE FUNCTION turnstile.due_offers(in_timeout_seconds double precision, in_limit integer)
RETURNS SETOF turnstile.granted
LANGUAGE sql
SET search_path = public, pg_temp
AS $$
    WITH due AS (
        SELECT s.execution_id FROM slot s
        WHERE s.claimed_at IS NULL AND s.finished_at IS NULL
          AND (s.offered_at IS NULL OR s.offered_at < clock_timestamp() - greatest(
              make_interval(secs => in_timeout_seconds),
              least(s.offered_at - s.granted_at, make_interval(secs => in_timeout_seconds * 10))))
          AND EXISTS (
              SELECT FROM action_queue q
              JOIN action a ON a.id = q.action_id
              JOIN worker w ON a.pool = ANY (w.pools) AND w.lost_at IS NULL AND w.stopped_at IS NULL
                            AND w.lease_expires_at > clock_timestamp()
              WHERE q.id = s.queue_id AND NOT turnstile.is_unserved(a))
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

-- due_pools: the pools with a live worker and an offer that was made longer ago than `in_timeout_seconds` and not
-- taken, or was withheld and need not be any more. `offered` is how many of their slots wait to be claimed and were
-- offered: so many messages the queue of the pool should hold, at `looked_at`.
CREATE FUNCTION turnstile.due_pools(in_timeout_seconds double precision)
RETURNS TABLE (pool text, offered bigint, looked_at timestamptz)
LANGUAGE sql
SET search_path = public, pg_temp
AS $$
    WITH unclaimed AS MATERIALIZED (
        SELECT q.action_id, count(s.offered_at) AS offered,
               bool_or(s.offered_at IS NULL
                       OR s.offered_at < clock_timestamp() - make_interval(secs => in_timeout_seconds)) AS is_due
        FROM slot s JOIN action_queue q ON q.id = ANY (ARRAY[s.queue_id])
        WHERE s.claimed_at IS NULL AND s.finished_at IS NULL
          AND NOT EXISTS (SELECT FROM untold_stop u WHERE u.execution_id = s.execution_id)
        GROUP BY q.action_id
    )
    SELECT a.pool, sum(u.offered)::bigint, clock_timestamp()
    FROM unclaimed u JOIN action a ON a.id = ANY (ARRAY[u.action_id])
    WHERE EXISTS (
        SELECT FROM worker w
        WHERE a.pool = ANY (w.pools) AND w.lost_at IS NULL AND w.stopped_at IS NULL
          AND w.lease_expires_at > clock_timestamp())
    GROUP BY a.pool
    HAVING bool_or(CASE WHEN u.is_due THEN NOT turnstile.is_unserved(a) ELSE false END);
$$;

-- missing_offers: what is to be offered again in these pools, whose queues held so many messages (`in_ready`) when so
-- many slots had been offered and not claimed (`in_offered`). A repeated offer is harmless: the claim is fenced.
--
-- Which offer is missing no count tells. One that was overtaken is: a later grant of its pool was claimed, and queues
-- are first in, first out. Beside those, as many are repeated as messages are missing, the longest offered first. No
-- offer is repeated twice within the timeout, and none that would make the messages more than twice the slots, with
-- any number of executors that look at once: what was offered since `in_looked_at` minus the timeout is not due.
-- What was withheld and is served now comes in any case: it is no copy.
CREATE FUNCTION turnstile.missing_offers(
    in_timeout_seconds double precision,
    in_looked_at timestamptz,
    in_pools text[],
    in_offered bigint[],
    in_ready bigint[],
    in_limit integer
)
RETURNS SETOF turnstile.granted
LANGUAGE sql
SET search_path = public, pg_temp
AS $$
    WITH unclaimed AS MATERIALIZED (
        SELECT s.execution_id, s.offered_at, q.action_id
        FROM slot s JOIN action_queue q ON q.id = ANY (ARRAY[s.queue_id])
        WHERE s.claimed_at IS NULL AND s.finished_at IS NULL
          AND (s.offered_at IS NULL OR s.offered_at < in_looked_at - make_interval(secs => in_timeout_seconds))
          -- A lost worker is told to stop its attempt before the next one is offered.
          AND NOT EXISTS (SELECT FROM untold_stop u WHERE u.execution_id = s.execution_id)
    ),
    served AS MATERIALIZED (
        SELECT a.id, a.pool FROM action a
        WHERE a.id = ANY (ARRAY(SELECT DISTINCT u.action_id FROM unclaimed u)) AND a.pool = ANY (in_pools)
          AND NOT turnstile.is_unserved(a)
    ),
    newest AS MATERIALIZED (
        SELECT a.pool, max(s.granted_at) AS granted_at
        FROM slot s
        JOIN action_queue q ON q.id = ANY (ARRAY[s.queue_id])
        JOIN action a ON a.id = ANY (ARRAY[q.action_id])
        WHERE s.claimed_at IS NOT NULL AND a.pool = ANY (in_pools)
        GROUP BY a.pool
    ),
    due AS (
        SELECT u.execution_id, u.offered_at, r.offered, r.ready,
               -- Two executors may publish a little crosswise.
               coalesce(u.offered_at < n.granted_at - interval '1 s', false) AS is_overtaken, a.pool
        FROM unclaimed u
        JOIN served a ON a.id = u.action_id
        JOIN unnest(in_pools, in_offered, in_ready) r(pool, offered, ready) ON r.pool = a.pool
        LEFT JOIN newest n ON n.pool = a.pool
    ),
    ranked AS (
        SELECT d.*, row_number() OVER (
                   PARTITION BY d.pool, d.offered_at IS NULL
                   ORDER BY d.is_overtaken DESC, d.offered_at, d.execution_id) AS rank
        FROM due d
    ),
    chosen AS MATERIALIZED (
        SELECT k.execution_id, k.offered_at FROM ranked k
        WHERE k.offered_at IS NULL OR k.rank <= k.offered - k.ready
           OR k.is_overtaken AND k.rank <= 2 * k.offered - k.ready
        ORDER BY k.rank, k.execution_id LIMIT in_limit
    ),
    locked AS (
        SELECT s.execution_id, c.offered_at IS NULL AS is_first
        FROM chosen c
        JOIN slot s ON s.execution_id = ANY (ARRAY[c.execution_id])
        WHERE s.claimed_at IS NULL AND s.finished_at IS NULL AND s.offered_at IS NOT DISTINCT FROM c.offered_at
        ORDER BY s.execution_id FOR NO KEY UPDATE OF s SKIP LOCKED
    ),
    offered AS (
        UPDATE slot s SET offered_at = clock_timestamp()
        FROM locked l WHERE s.execution_id = ANY (ARRAY[l.execution_id])
        RETURNING s.execution_id, s.attempt, s.granted_at, l.is_first
    )
    SELECT o.execution_id, o.attempt, a.ref, a.pool, e.traceparent,
           CASE WHEN o.is_first THEN extract(epoch FROM o.granted_at - e.queued_at)::double precision END
    FROM offered o
    JOIN execution e ON e.id = ANY (ARRAY[o.execution_id])
    JOIN action a ON a.id = ANY (ARRAY[e.action_id])
    ORDER BY o.execution_id;
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
