-- Webhooks: delivery of terminal executions to their callback URLs.
--
-- A delivery is inserted in the transaction that settles the execution: none is lost and none is written twice (P4).
-- It is claimed with a lease on the database's clock, so one replica at a time delivers it, and after a crash it is
-- due again. Receivers recognise copies by the event id.

-- enqueue_webhooks: inserts the deliveries of these executions, due now. For settle, which has checked that each has
-- a callback URL. The origin may be empty but never null: an invalid URL must not keep a slot from being freed.
CREATE FUNCTION turnstile.enqueue_webhooks(in_execution_ids bigint[], in_at timestamptz)
RETURNS void
LANGUAGE sql
:settings_for_index_lookups
AS $$
    INSERT INTO webhook_delivery (execution_id, url, origin, due_at, created_at)
    SELECT e.id, e.callback_url, lower(coalesce(substring(e.callback_url FROM '^[^:/?#]+://[^/?#]*'), '')), in_at, in_at
    FROM execution e WHERE e.id = ANY (in_execution_ids)
    ON CONFLICT DO NOTHING;
$$;

-- due_webhooks: the receivers after `in_after_origin` with a due delivery: since when, and how many may be claimed
-- now. `next_origin`: where to continue; empty: no more receivers.
--
-- It steps from receiver to receiver in the index, past everything that waits for each. Of each receiver only the
-- first `in_per_origin` deliveries are read, claimed ones included: that is the limit per receiver over all replicas.
CREATE FUNCTION turnstile.due_webhooks(
    in_after_origin text,
    in_per_origin integer,
    OUT origins text[],
    OUT due_ats timestamptz[],
    OUT counts integer[],
    OUT next_origin text
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    checked_at timestamptz := clock_timestamp();
BEGIN
    -- One index lookup per receiver.
    WITH RECURSIVE receiver(origin, due_at, rank) AS (
        (SELECT d.origin, d.due_at, 1 FROM webhook_delivery d
         WHERE d.state = 'pending' AND d.origin > in_after_origin ORDER BY d.origin, d.due_at LIMIT 1)
        UNION ALL
        SELECT n.origin, n.due_at, r.rank + 1
        FROM receiver r
        CROSS JOIN LATERAL (
            SELECT d.origin, d.due_at FROM webhook_delivery d
            WHERE d.state = 'pending' AND d.origin > r.origin ORDER BY d.origin, d.due_at LIMIT 1
        ) n
        WHERE r.rank < 1000
    ),
    -- The free ones among the first deliveries of each receiver that is due.
    head AS (
        SELECT r.origin, min(f.due_at) AS due_at, count(*)::integer AS free
        FROM receiver r
        CROSS JOIN LATERAL (
            SELECT l.due_at, l.claimed_until FROM webhook_delivery l
            WHERE l.state = 'pending' AND l.origin = r.origin AND l.due_at <= checked_at
            ORDER BY l.due_at LIMIT in_per_origin
        ) f
        WHERE r.due_at <= checked_at AND (f.claimed_until IS NULL OR f.claimed_until < checked_at)
        GROUP BY r.origin
    )
    SELECT (SELECT array_agg(f.origin ORDER BY f.origin) FROM head f),
           (SELECT array_agg(f.due_at ORDER BY f.origin) FROM head f),
           (SELECT array_agg(f.free ORDER BY f.origin) FROM head f),
           (SELECT CASE WHEN count(*) = 1000 THEN max(r.origin) ELSE '' END FROM receiver r)
    INTO origins, due_ats, counts, next_origin;
END
$$;

-- claim_webhooks: claims due deliveries for `in_lease_seconds`, at most `in_limit`. The end of the lease identifies
-- the claim: `record_webhooks` must pass it.
--
-- With `in_origins`: of each of these receivers at most the number in `in_counts`, in order. Without, as executors of
-- the previous version call it: steps through the receivers after `in_after_origin`, and takes the first delivery of
-- each before the second of any. In both cases only the first `in_per_origin` deliveries of a receiver are read,
-- claimed ones included.
CREATE FUNCTION turnstile.claim_webhooks(
    in_after_origin text,
    in_lease_seconds double precision,
    in_limit integer,
    in_per_origin integer,
    in_origins text[] DEFAULT NULL,
    in_counts integer[] DEFAULT NULL,
    OUT claimed turnstile.webhook[],
    OUT next_origin text,
    OUT claimed_origins text[]
)
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    claimed_now timestamptz := clock_timestamp();
    head_ids bigint[];
BEGIN
    WITH RECURSIVE receiver(origin, due_at, rank) AS (
        (SELECT d.origin, d.due_at, 1 FROM webhook_delivery d
         WHERE in_origins IS NULL
           AND d.state = 'pending' AND d.origin > in_after_origin ORDER BY d.origin, d.due_at LIMIT 1)
        UNION ALL
        SELECT n.origin, n.due_at, r.rank + 1
        FROM receiver r
        CROSS JOIN LATERAL (
            SELECT d.origin, d.due_at FROM webhook_delivery d
            WHERE d.state = 'pending' AND d.origin > r.origin ORDER BY d.origin, d.due_at LIMIT 1
        ) n
        WHERE r.rank < 1000
    ),
    chosen(origin, most) AS (
        SELECT r.origin, in_per_origin FROM receiver r WHERE r.due_at <= claimed_now
        UNION ALL
        SELECT o.origin, o.most FROM unnest(in_origins, in_counts) o(origin, most)
    ),
    head AS (
        SELECT f.execution_id
        FROM chosen r
        CROSS JOIN LATERAL (
            SELECT d.execution_id, d.due_at, d.is_free, row_number() OVER (ORDER BY d.due_at) AS rank,
                   count(*) FILTER (WHERE d.is_free) OVER (ORDER BY d.due_at, d.execution_id) AS free_rank
            FROM (
                SELECT l.execution_id, l.due_at,
                       (l.claimed_until IS NULL OR l.claimed_until < claimed_now) AS is_free
                FROM webhook_delivery l
                WHERE l.state = 'pending' AND l.origin = r.origin AND l.due_at <= claimed_now
                ORDER BY l.due_at LIMIT in_per_origin
            ) d
        ) f
        WHERE f.is_free AND f.free_rank <= r.most
        ORDER BY f.rank, f.due_at LIMIT in_limit
    )
    SELECT (SELECT array_agg(f.execution_id) FROM head f),
           (SELECT CASE WHEN count(*) = 1000 THEN max(r.origin) ELSE '' END FROM receiver r)
    INTO head_ids, next_origin;
    IF head_ids IS NULL THEN
        RETURN;
    END IF;

    WITH free AS MATERIALIZED (
        -- Checked again on the locked row: another replica may have been faster.
        SELECT d.execution_id FROM webhook_delivery d
        WHERE d.execution_id = ANY (head_ids) AND d.state = 'pending'
          AND d.due_at <= claimed_now AND (d.claimed_until IS NULL OR d.claimed_until < claimed_now)
        FOR NO KEY UPDATE SKIP LOCKED
    ),
    claimed_delivery AS (
        UPDATE webhook_delivery d
        SET claimed_until = claimed_now + make_interval(secs => in_lease_seconds), attempts = d.attempts + 1
        FROM free f WHERE d.execution_id = ANY (ARRAY[f.execution_id])
        RETURNING d.execution_id, d.event_id, d.url, d.attempts, d.claimed_until, d.origin
    )
    SELECT array_agg(ROW(t.execution_id, t.event_id, t.url, t.attempts, t.claimed_until)::turnstile.webhook
                     ORDER BY t.execution_id),
           array_agg(t.origin ORDER BY t.execution_id)
    INTO claimed, claimed_origins FROM claimed_delivery t;
END
$$;

-- record_webhooks: records the outcomes of deliveries: 'delivered', 'failed', 'pending' (due again after
-- `in_delay_seconds`), or 'released' (pending, and the attempt does not count because it was interrupted). Guarded by
-- the claim: after its lease and the next claim, nothing changes. Returns what was applied.
CREATE FUNCTION turnstile.record_webhooks(
    in_execution_ids bigint[],
    in_claimed_untils timestamptz[],
    in_states text[],
    in_statuses integer[],
    in_errors text[],
    in_delay_seconds double precision[]
)
RETURNS SETOF bigint
LANGUAGE sql
:settings_for_index_lookups
AS $$
    UPDATE webhook_delivery d
    SET state = CASE WHEN n.state = 'released' THEN 'pending' ELSE n.state END,
        attempts = CASE WHEN n.state = 'released' THEN greatest(d.attempts - 1, 0) ELSE d.attempts END,
        claimed_until = NULL, last_status = n.status, last_error = n.error,
        due_at = CASE WHEN n.state IN ('pending', 'released')
            THEN clock_timestamp() + make_interval(secs => n.delay_seconds) ELSE d.due_at END,
        settled_at = CASE WHEN n.state NOT IN ('pending', 'released') THEN clock_timestamp() END
    FROM unnest(in_execution_ids, in_claimed_untils, in_states, in_statuses, in_errors, in_delay_seconds)
         n(id, claimed_until, state, status, error, delay_seconds)
    WHERE d.execution_id = ANY (ARRAY[n.id]) AND d.state = 'pending' AND d.claimed_until = n.claimed_until
    RETURNING d.execution_id;
$$;
