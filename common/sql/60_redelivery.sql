-- Redelivery by the watchdog: messages that were never published, or were lost, are published again (P4, P7).
--
-- Like all sweeps, these read only live tables and a bounded number of rows, and skip rows that another
-- replica is working on.

-- is_unserved: whether a pool has live workers but none of them can run this action: a python action without
-- entrypoint whose code none has. Its offers would only be refused and repeated. A pool without workers keeps
-- its offers for the first worker that comes.
CREATE FUNCTION turnstile.is_unserved(in_action public.action)
RETURNS boolean
LANGUAGE sql
STABLE
:settings_for_index_order
AS $$
    SELECT in_action.runner = 'python' AND in_action.entrypoint IS NULL AND coalesce((
        SELECT bool_and(w.served_refs IS NOT NULL AND NOT in_action.ref = ANY (w.served_refs))
        FROM turnstile.current_worker w
        WHERE in_action.pool = ANY (w.pools) AND w.lost_at IS NULL AND w.stopped_at IS NULL
          AND w.draining_at IS NULL AND w.lease_expires_at > clock_timestamp()
    ), false);
$$;

-- withhold_offers: for executors of the previous version. Withholds the offers of those of these granted
-- attempts that no live worker could run, and returns them. They are due as soon as a worker serves them.
-- Rows that another session holds are skipped.
CREATE FUNCTION turnstile.withhold_offers(in_execution_ids bigint[], in_attempts integer[])
RETURNS SETOF bigint
LANGUAGE sql
:settings_for_index_lookups
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

-- due_pools: the pools with a live worker and an offer that was made more than `in_timeout_seconds` ago and
-- not claimed, or that was withheld and is served now. `offered` is the number of unclaimed slots that were
-- offered: the number of messages that the pool's queue should hold at `looked_at`.
CREATE FUNCTION turnstile.due_pools(in_timeout_seconds double precision)
RETURNS TABLE (pool text, offered bigint, looked_at timestamptz)
LANGUAGE sql
:settings_for_index_order
AS $$
    WITH unclaimed AS MATERIALIZED (
        SELECT q.action_id, count(s.offered_at) AS offered,
               bool_or(s.offered_at IS NULL
                       OR s.offered_at < clock_timestamp() - make_interval(secs => in_timeout_seconds))
                   AS is_due
        FROM turnstile.live_slot s JOIN action_queue q ON q.id = ANY (ARRAY[s.queue_id])
        WHERE s.claimed_at IS NULL AND s.finished_at IS NULL
          AND NOT EXISTS (SELECT FROM unpublished_cancel u WHERE u.execution_id = ANY (ARRAY[s.execution_id]))
        GROUP BY q.action_id
    )
    SELECT a.pool, sum(u.offered)::bigint, clock_timestamp()
    FROM unclaimed u JOIN action a ON a.id = ANY (ARRAY[u.action_id])
    WHERE EXISTS (
        SELECT FROM turnstile.current_worker w
        WHERE a.pool = ANY (w.pools) AND w.lost_at IS NULL AND w.stopped_at IS NULL
          AND w.lease_expires_at > clock_timestamp())
    GROUP BY a.pool
    HAVING bool_or(CASE WHEN u.is_due THEN NOT turnstile.is_unserved(a) ELSE false END);
$$;

-- missing_offers: repeats offers in these pools, whose queues held `in_ready` messages while `in_offered`
-- offered slots were unclaimed. A repeated offer is harmless, because the claim is fenced. `in_held` is the
-- largest number of offers that these messages may carry; null: one each.
--
-- Counts do not show which offer is missing. An overtaken offer is: a later grant of its pool was claimed,
-- and queues are first in, first out. In addition, as many are repeated as the queue lacks at least, the
-- oldest first. No offer is repeated twice within the timeout, and the messages never exceed twice the slots,
-- however many executors sweep at the same time: an offer made after `in_looked_at` minus the timeout is not
-- due. An offer that was withheld and is served now is always made: it is no copy.
CREATE FUNCTION turnstile.missing_offers(
    in_timeout_seconds double precision,
    in_looked_at timestamptz,
    in_pools text[],
    in_offered bigint[],
    in_ready bigint[],
    in_limit integer,
    in_held bigint[] DEFAULT NULL
)
RETURNS SETOF turnstile.granted
LANGUAGE sql
:settings
AS $$
    -- Offers that are due.
    WITH unclaimed AS MATERIALIZED (
        SELECT s.execution_id, s.offered_at, q.action_id
        FROM turnstile.live_slot s JOIN action_queue q ON q.id = ANY (ARRAY[s.queue_id])
        WHERE s.claimed_at IS NULL AND s.finished_at IS NULL
          AND (s.offered_at IS NULL
               OR s.offered_at < in_looked_at - make_interval(secs => in_timeout_seconds))
          -- A lost worker gets the cancel message of its attempt before the next attempt is offered.
          AND NOT EXISTS (SELECT FROM unpublished_cancel u WHERE u.execution_id = ANY (ARRAY[s.execution_id]))
    ),
    -- Actions of these pools that a live worker serves.
    served AS MATERIALIZED (
        SELECT a.id, a.pool FROM action a
        WHERE a.id = ANY (ARRAY(SELECT DISTINCT u.action_id FROM unclaimed u)) AND a.pool = ANY (in_pools)
          AND NOT turnstile.is_unserved(a)
    ),
    -- The latest claimed grant of each pool.
    newest AS MATERIALIZED (
        SELECT a.pool, max(s.granted_at) AS granted_at
        FROM turnstile.live_slot s
        JOIN action_queue q ON q.id = ANY (ARRAY[s.queue_id])
        JOIN action a ON a.id = ANY (ARRAY[q.action_id])
        WHERE s.claimed_at IS NOT NULL AND a.pool = ANY (in_pools)
        GROUP BY a.pool
    ),
    due AS (
        SELECT u.execution_id, u.offered_at, r.offered, r.ready, r.held,
               -- Two executors may publish slightly out of order.
               coalesce(u.offered_at < n.granted_at - interval '1 s', false) AS is_overtaken, a.pool
        FROM unclaimed u
        JOIN served a ON a.id = u.action_id
        JOIN unnest(in_pools, in_offered, in_ready, coalesce(in_held, in_ready)) r(pool, offered, ready, held)
             ON r.pool = a.pool
        LEFT JOIN newest n ON n.pool = a.pool
    ),
    -- Within each pool: overtaken offers first, then the oldest.
    ranked AS (
        SELECT d.*, row_number() OVER (
                   PARTITION BY d.pool, d.offered_at IS NULL
                   ORDER BY d.is_overtaken DESC, d.offered_at, d.execution_id) AS rank
        FROM due d
    ),
    -- As many as are missing at least; overtaken ones until the messages are twice the slots.
    chosen AS MATERIALIZED (
        SELECT k.execution_id, k.offered_at FROM ranked k
        WHERE k.offered_at IS NULL OR k.rank <= k.offered - k.held
           OR k.is_overtaken AND k.rank <= 2 * k.offered - k.ready
        ORDER BY k.rank, k.execution_id LIMIT in_limit
    ),
    -- Checked again under the lock: another executor may have repeated it.
    locked AS (
        SELECT s.execution_id, c.offered_at IS NULL AS is_first
        FROM chosen c
        JOIN slot s ON s.execution_id = ANY (ARRAY[c.execution_id])
        WHERE s.claimed_at IS NULL AND s.finished_at IS NULL
          AND s.offered_at IS NOT DISTINCT FROM c.offered_at
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

-- due_completions: marks and returns terminal executions that are not settled and whose completion was last
-- published more than `in_timeout_seconds` ago. Publishing it again is harmless: settle deletes a row or
-- nothing.
CREATE FUNCTION turnstile.due_completions(in_timeout_seconds double precision, in_limit integer)
RETURNS SETOF bigint
LANGUAGE sql
:settings_for_index_lookups
AS $$
    WITH due_slot AS (
        SELECT s.execution_id FROM turnstile.live_slot s
        WHERE s.finished_at IS NOT NULL
          AND s.published_at < clock_timestamp() - make_interval(secs => in_timeout_seconds)
        ORDER BY s.ticket LIMIT in_limit FOR NO KEY UPDATE SKIP LOCKED
    ),
    republished_slot AS (
        UPDATE slot s SET published_at = clock_timestamp()
        FROM due_slot d WHERE s.execution_id = ANY (ARRAY[d.execution_id])
        RETURNING s.execution_id
    ),
    due_without_slot AS (
        SELECT u.execution_id FROM turnstile.live_unpublished_completion u
        WHERE u.published_at < clock_timestamp() - make_interval(secs => in_timeout_seconds)
        ORDER BY u.ticket LIMIT in_limit FOR NO KEY UPDATE SKIP LOCKED
    ),
    republished_end AS (
        UPDATE unpublished_completion u SET published_at = clock_timestamp()
        FROM due_without_slot d WHERE u.execution_id = ANY (ARRAY[d.execution_id])
        RETURNING u.execution_id
    )
    SELECT execution_id FROM republished_slot UNION SELECT execution_id FROM republished_end;
$$;

-- due_cancels: attempts that were reclaimed from lost workers more than `in_timeout_seconds` ago, whose
-- cancel messages are not published: the executor that reclaimed them has died. A repeated cancel message is
-- harmless.
CREATE FUNCTION turnstile.due_cancels(in_timeout_seconds double precision, in_limit integer)
RETURNS TABLE (execution_id bigint, attempt integer, worker_id text)
LANGUAGE sql
:settings_for_index_lookups
AS $$
    SELECT u.execution_id, u.attempt, u.worker_id FROM turnstile.live_unpublished_cancel u
    WHERE u.recorded_at < clock_timestamp() - make_interval(secs => in_timeout_seconds)
    ORDER BY u.ticket LIMIT in_limit;
$$;

-- cancels_published: the broker has confirmed the cancel messages of these attempts.
CREATE FUNCTION turnstile.cancels_published(in_execution_ids bigint[], in_attempts integer[])
RETURNS void
LANGUAGE sql
:settings
AS $$
    DELETE FROM unpublished_cancel u USING unnest(in_execution_ids, in_attempts) c(id, attempt)
    WHERE u.execution_id = ANY (ARRAY[c.id]) AND u.attempt = c.attempt;
$$;
