-- The statements on deliveries. All may be repeated after an unknown outcome: a lost claim expires, and a
-- result is recorded only under its claim.

-- receivers: receivers with deliveries that became pending since an instant, and since when each is due.
--
-- $1 since
SELECT d.origin, min(d.due_at) AS due_at FROM ledger.webhook d
WHERE d.created_at >= $1 AND d.state = 'pending' GROUP BY d.origin

-- now: the database's clock.
SELECT clock_timestamp() AS now

-- due: of each of these receivers the first pending delivery, and how many are due and free.
--
-- $1 origins, $2 instants below which nothing is pending, $3 most for each: claimed ones count, so this is
-- the bound per receiver over all executors
SELECT r.origin, f.first_at, f.due_at, f.free
FROM unnest($1::text[], $2::timestamptz[]) AS r(origin, bound)
CROSS JOIN LATERAL (
    SELECT min(p.due_at) AS first_at,
           min(p.due_at) FILTER (WHERE p.is_due) AS due_at, count(*) FILTER (WHERE p.is_due) AS free
    FROM (
        SELECT d.due_at, d.due_at <= clock_timestamp()
                         AND (d.claimed_until IS NULL OR d.claimed_until < clock_timestamp()) AS is_due
        FROM ledger.webhook d
        WHERE d.state = 'pending' AND d.origin = r.origin AND d.due_at >= r.bound
        ORDER BY d.due_at LIMIT $3
    ) p
) f

-- claim: claims due deliveries of these receivers; the end of the lease identifies the claim.
--
-- $1 origins, $2 instants below which nothing is pending, $3 how many of each, $4 most that are read of each,
-- $5 seconds of the lease
WITH head AS (
    SELECT f.execution_id
    FROM unnest($1::text[], $2::timestamptz[], $3::integer[]) AS r(origin, bound, most)
    CROSS JOIN LATERAL (
        SELECT p.execution_id, row_number() OVER (ORDER BY p.due_at, p.execution_id) AS rank
        FROM (
            SELECT d.execution_id, d.due_at, d.claimed_until FROM ledger.webhook d
            WHERE d.state = 'pending' AND d.origin = r.origin AND d.due_at >= r.bound
              AND d.due_at <= clock_timestamp()
            ORDER BY d.due_at LIMIT $4
        ) p
        WHERE p.claimed_until IS NULL OR p.claimed_until < clock_timestamp()
    ) f
    WHERE f.rank <= r.most
),
free AS MATERIALIZED (
    -- Checked again on the locked row: another executor may have been faster.
    SELECT d.execution_id FROM head h JOIN ledger.webhook d ON d.execution_id = h.execution_id
    WHERE d.state = 'pending' AND d.due_at <= clock_timestamp()
      AND (d.claimed_until IS NULL OR d.claimed_until < clock_timestamp())
    FOR NO KEY UPDATE OF d SKIP LOCKED
)
UPDATE ledger.webhook d
SET claimed_until = clock_timestamp() + make_interval(secs => $5), attempts = d.attempts + 1
FROM free f WHERE d.execution_id = f.execution_id
RETURNING d.execution_id, d.event_id, d.url, d.attempts, d.claimed_until, d.origin

-- record: records results under their claims: delivered, failed, pending (due again after a delay), or
-- released (pending, and the attempt does not count). Returns what was applied.
--
-- $1 execution ids, $2 ends of the claims, $3 states, $4 statuses, $5 errors, $6 delays
UPDATE ledger.webhook d
SET state = CASE WHEN n.state = 'released' THEN 'pending' ELSE n.state END,
    attempts = CASE WHEN n.state = 'released' THEN greatest(d.attempts - 1, 0) ELSE d.attempts END,
    claimed_until = NULL, last_status = n.status, last_error = n.error,
    due_at = CASE WHEN n.state IN ('pending', 'released')
        THEN greatest(clock_timestamp() + make_interval(secs => n.delay), d.due_at) ELSE d.due_at END,
    ended_at = CASE WHEN n.state NOT IN ('pending', 'released') THEN clock_timestamp() END
FROM unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::integer[], $5::text[], $6::double precision[])
    AS n(id, claimed_until, state, status, error, delay)
WHERE d.execution_id = n.id AND d.state = 'pending' AND d.claimed_until = n.claimed_until
RETURNING d.execution_id

-- replay: makes ended deliveries due again, whose executions are stored; the event id stays. Each change is
-- in the audit log.
--
-- $1 to $3 name, address and channel of the caller, $4 execution ids
WITH kept AS MATERIALIZED (
    -- They are not pruned meanwhile: a delivery without its execution has no content.
    SELECT e.id, e.action_ref FROM ledger.execution e WHERE e.id = ANY ($4::bigint[]) ORDER BY e.id
    FOR KEY SHARE
),
ended AS MATERIALIZED (
    SELECT d.execution_id, d.state, k.action_ref
    FROM ledger.webhook d JOIN kept k ON k.id = d.execution_id
    WHERE d.state <> 'pending' ORDER BY d.execution_id FOR NO KEY UPDATE OF d
),
noted AS (
    INSERT INTO ledger.audit_log (
        actor, address, channel, verb, subject_kind, subject, action_ref, before, after
    )
    SELECT left($1::text, 200), left($2::text, 200), $3::text, 'replayed', 'webhook', s.execution_id::text,
           s.action_ref, jsonb_build_object('state', s.state), jsonb_build_object('state', 'pending')
    FROM ended s ORDER BY s.execution_id
)
UPDATE ledger.webhook d
SET state = 'pending', attempts = 0, due_at = clock_timestamp(), created_at = clock_timestamp(),
    ended_at = NULL
FROM ended s WHERE d.execution_id = s.execution_id
RETURNING d.execution_id

-- oldest_failed: the failed deliveries of the oldest executions.
--
-- $1 most
SELECT d.execution_id FROM ledger.webhook d WHERE d.state = 'failed' ORDER BY d.execution_id LIMIT $1

-- failed: how many deliveries have failed.
SELECT count(*) FROM ledger.webhook d WHERE d.state = 'failed'

-- states: the states of the deliveries of these executions, where they are stored.
--
-- $1 execution ids
SELECT d.execution_id, d.state FROM ledger.webhook d JOIN ledger.execution e ON e.id = d.execution_id
WHERE d.execution_id = ANY ($1::bigint[]) ORDER BY d.execution_id

-- page: deliveries in any of the states $1, of executions below $2, the newest first; $3 rows. One index scan
-- for each state: as bounds, the state stays part of the order.
SELECT d.execution_id, d.event_id, e.action_ref, e.status::text AS execution_status, d.url, d.state,
       d.attempts, d.due_at, d.claimed_until, d.last_status, d.last_error, d.created_at, d.ended_at
FROM unnest($1::text[]) AS s(state)
CROSS JOIN LATERAL (
    SELECT * FROM ledger.webhook d WHERE d.state BETWEEN s.state AND s.state AND d.execution_id < $2
    ORDER BY d.state DESC, d.execution_id DESC LIMIT $3
) d
LEFT JOIN ledger.execution e ON e.id = d.execution_id
ORDER BY d.execution_id DESC LIMIT $3

-- give_up: of the next pending deliveries, makes those failed that are pending for too long: the queue of a
-- receiver that never answers must not grow for ever. Skips what is being sent, and what became due less than
-- a minute ago: a receiver that asked for a delay gets one more request. `next_id` null: no more.
--
-- $1 after this execution, $2 seconds, $3 most that are read
WITH scanned AS MATERIALIZED (
    SELECT d.execution_id FROM ledger.webhook d
    WHERE d.state BETWEEN 'pending' AND 'pending' AND d.execution_id > $1
    ORDER BY d.state, d.execution_id LIMIT $3
),
old AS MATERIALIZED (
    SELECT d.execution_id FROM scanned s JOIN ledger.webhook d ON d.execution_id = s.execution_id
    WHERE d.state = 'pending' AND d.created_at < clock_timestamp() - make_interval(secs => $2)
      AND d.due_at < clock_timestamp() - interval '1 min'
      AND (d.claimed_until IS NULL OR d.claimed_until < clock_timestamp())
    FOR NO KEY UPDATE OF d SKIP LOCKED
),
failed AS (
    UPDATE ledger.webhook d
    SET state = 'failed', claimed_until = NULL, ended_at = clock_timestamp(),
        last_error = format('given up after %s s (TURNSTILE_WEBHOOK_AGE_MAX); %s', $2,
            CASE WHEN d.attempts > 0
                     THEN 'last attempt: ' || coalesce(d.last_error, 'no outcome recorded')
                 ELSE 'never attempted' END)
    FROM old o WHERE d.execution_id = o.execution_id
    RETURNING d.execution_id
)
SELECT (SELECT count(*) FROM failed) AS given_up,
       (SELECT CASE WHEN count(*) >= $3 THEN max(s.execution_id) END FROM scanned s) AS next_id

-- prune: deletes deliveries that ended long ago; returns how many.
--
-- $1 seconds, $2 most
WITH old AS MATERIALIZED (
    SELECT d.execution_id FROM ledger.webhook d
    WHERE d.ended_at < clock_timestamp() - make_interval(secs => $1) ORDER BY d.ended_at LIMIT $2
    FOR UPDATE SKIP LOCKED
),
pruned AS (
    DELETE FROM ledger.webhook d USING old o WHERE d.execution_id = o.execution_id RETURNING 1
)
SELECT count(*) FROM pruned

-- completions: what is posted about these executions; a result above $2 bytes is left out.
--
-- $1 execution ids
SELECT e.id AS execution_id, a.id AS action_id, e.action_ref, e.status::text AS status, e.attempt,
       e.traceparent, extract(epoch FROM e.completed_at)::double precision AS completed_at, e.error_type,
       e.error_message, CASE WHEN octet_length(e.result::text) <= $2 THEN e.result::text END AS result
FROM unnest($1::bigint[]) AS r(id)
JOIN ledger.execution e ON e.id = ANY (ARRAY[r.id])
LEFT JOIN ledger.action_id a ON a.ref = ANY (ARRAY[e.action_ref])
WHERE e.completed_at IS NOT NULL
