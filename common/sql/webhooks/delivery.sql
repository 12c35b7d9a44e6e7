-- Webhooks: delivery of terminal executions to their callback URLs.
--
-- A delivery is inserted in the transaction that settles the execution: none is lost and none is written
-- twice (P4). It is claimed with a lease on the database's clock, so one replica at a time delivers it, and
-- after a crash it is due again. Receivers recognise copies by the event id.
--
-- A sweep steps through `webhook_receiver` and reads the deliveries of each receiver from its bound on, so
-- that it does not read what was settled before (P15). Whatever becomes pending gets `next_at` of due_bound
-- or a later instant, like a delay: so below `first_at` of due_bound nothing can appear, and a receiver's
-- bound may be raised up to there.

-- origin_of: the receiver of a URL: scheme, host and port; empty for an invalid one.
CREATE FUNCTION turnstile.origin_of(in_url text)
RETURNS text
LANGUAGE sql
IMMUTABLE
:settings
AS $$
    SELECT lower(coalesce(substring(in_url FROM '^[^:/?#]+://[^/?#]*'), ''))
$$;

-- keep_receivers: adds the missing ones of these receivers. Until this transaction ends, no receiver is
-- deleted.
--
-- Call it before the statement that makes a delivery pending, in a statement of its own.
CREATE FUNCTION turnstile.keep_receivers(in_origins text[])
RETURNS void
LANGUAGE plpgsql
:settings_for_index_order
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('turnstile.webhook_receivers', 0));
    INSERT INTO webhook_receiver (origin, version, first_at, moved_at)
    SELECT DISTINCT o.origin, -1, timestamptz '-infinity', clock_timestamp()
    FROM unnest(in_origins) o(origin)
    WHERE (SELECT w.version FROM webhook_receiver w WHERE w.origin = o.origin ORDER BY w.version
           LIMIT 1) IS NULL
    ORDER BY o.origin
    ON CONFLICT DO NOTHING;
END
$$;

-- raise_receivers: raises the bounds of these receivers to their first pending delivery, and to `first_at` of
-- due_bound at most. Does nothing for a receiver whose bound was raised within `in_seconds`.
CREATE FUNCTION turnstile.raise_receivers(in_origins text[], in_seconds double precision DEFAULT 5)
RETURNS void
LANGUAGE plpgsql
:settings_for_index_order
AS $$
DECLARE
    -- Read before the deliveries, in a statement of its own: what was inserted below it has committed.
    closed_at timestamptz := (SELECT b.first_at FROM turnstile.due_bound b);
    now_at timestamptz := clock_timestamp();
    receivers webhook_receiver[];
BEGIN
    receivers := ARRAY(
        SELECT n FROM (SELECT DISTINCT o.origin FROM unnest(in_origins) o(origin)) o
        CROSS JOIN LATERAL (
            SELECT w.* FROM webhook_receiver w WHERE w.origin = o.origin ORDER BY w.version LIMIT 1
        ) n
        WHERE n.first_at < closed_at
          AND n.moved_at NOT BETWEEN now_at - make_interval(secs => in_seconds) AND now_at);
    IF cardinality(receivers) = 0 THEN
        RETURN;
    END IF;
    WITH old AS MATERIALIZED (
        -- Of two executors one raises a bound.
        SELECT w.origin, w.version, w.first_at FROM unnest(receivers) r
        JOIN webhook_receiver w
            ON w.origin = ANY (ARRAY[r.origin]) AND w.version BETWEEN r.version AND r.version
        ORDER BY w.origin FOR NO KEY UPDATE OF w SKIP LOCKED
    ),
    raised AS MATERIALIZED (
        SELECT o.origin, o.version, o.first_at AS old_at, coalesce((
                   SELECT d.due_at FROM webhook_delivery d
                   WHERE d.state = 'pending' AND d.origin = o.origin
                     AND d.due_at >= o.first_at AND d.due_at < closed_at
                   ORDER BY d.due_at LIMIT 1
               ), closed_at) AS first_at
        FROM old o
    ),
    written AS (
        INSERT INTO webhook_receiver (origin, version, first_at, moved_at)
        SELECT r.origin, r.version - 1, r.first_at, now_at FROM raised r WHERE r.first_at > r.old_at
    )
    DELETE FROM webhook_receiver w USING raised r
    WHERE w.origin = ANY (ARRAY[r.origin]) AND w.version BETWEEN r.version AND r.version
      AND r.first_at > r.old_at;
END
$$;

-- enqueue_webhooks: inserts the deliveries of these executions, due now. For settle, which has checked that
-- each has a callback URL, and has written. The origin may be empty but never null: an invalid URL must not
-- keep a slot from being freed.
CREATE FUNCTION turnstile.enqueue_webhooks(in_execution_ids bigint[], in_at timestamptz)
RETURNS void
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
BEGIN
    PERFORM turnstile.keep_receivers(ARRAY(
        SELECT turnstile.origin_of(e.callback_url) FROM execution e WHERE e.id = ANY (in_execution_ids)));
    INSERT INTO webhook_delivery (execution_id, url, origin, due_at, created_at)
    SELECT e.id, e.callback_url, turnstile.origin_of(e.callback_url),
           greatest(in_at, (SELECT b.next_at FROM turnstile.due_bound b)), in_at
    FROM execution e WHERE e.id = ANY (in_execution_ids)
    ON CONFLICT DO NOTHING;
END
$$;

-- due_webhooks: the receivers after `in_after_origin` with a due delivery: since when, and how many may be
-- claimed now. `next_origin`: where to continue; empty: no more receivers.
--
-- Of each receiver only the first `in_per_origin` deliveries are read, claimed ones included: that is the
-- limit per receiver over all replicas. Like delays, deliveries are read up to `next_at`, if the clock was
-- set back behind it.
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
    last_at timestamptz := greatest(checked_at, (SELECT b.next_at FROM turnstile.due_bound b));
BEGIN
    -- One index lookup per receiver.
    WITH RECURSIVE receiver(origin, first_at, rank) AS (
        (SELECT w.origin, w.first_at, 1 FROM webhook_receiver w
         WHERE w.origin > in_after_origin ORDER BY w.origin, w.version LIMIT 1)
        UNION ALL
        SELECT n.origin, n.first_at, r.rank + 1
        FROM receiver r
        CROSS JOIN LATERAL (
            SELECT w.origin, w.first_at FROM webhook_receiver w
            WHERE w.origin > r.origin ORDER BY w.origin, w.version LIMIT 1
        ) n
        WHERE r.rank < 1000
    ),
    -- The free ones among the first deliveries of each receiver that is due.
    head AS (
        SELECT r.origin, min(f.due_at) AS due_at, count(*)::integer AS free
        FROM receiver r
        CROSS JOIN LATERAL (
            SELECT l.due_at, l.claimed_until FROM webhook_delivery l
            WHERE l.state = 'pending' AND l.origin = r.origin AND l.due_at BETWEEN r.first_at AND last_at
            ORDER BY l.due_at LIMIT in_per_origin
        ) f
        WHERE (f.claimed_until IS NULL OR f.claimed_until < checked_at)
        GROUP BY r.origin
    )
    SELECT (SELECT array_agg(f.origin ORDER BY f.origin) FROM head f),
           (SELECT array_agg(f.due_at ORDER BY f.origin) FROM head f),
           (SELECT array_agg(f.free ORDER BY f.origin) FROM head f),
           (SELECT CASE WHEN count(*) = 1000 THEN max(r.origin) ELSE '' END FROM receiver r)
    INTO origins, due_ats, counts, next_origin;
END
$$;

-- claim_webhooks: claims due deliveries for `in_lease_seconds`, at most `in_limit`. The end of the lease
-- identifies the claim: `record_webhooks` must pass it.
--
-- With `in_origins`: of each of these receivers at most the number in `in_counts`, in order. Without, as
-- executors of the previous version call it: steps through the receivers after `in_after_origin`, and takes
-- the first delivery of each before the second of any. In both cases only the first `in_per_origin`
-- deliveries of a receiver are read, claimed ones included.
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
    last_at timestamptz := greatest(claimed_now, (SELECT b.next_at FROM turnstile.due_bound b));
    head_ids bigint[];
BEGIN
    WITH RECURSIVE receiver(origin, first_at, rank) AS (
        (SELECT w.origin, w.first_at, 1 FROM webhook_receiver w
         WHERE in_origins IS NULL AND w.origin > in_after_origin ORDER BY w.origin, w.version LIMIT 1)
        UNION ALL
        SELECT n.origin, n.first_at, r.rank + 1
        FROM receiver r
        CROSS JOIN LATERAL (
            SELECT w.origin, w.first_at FROM webhook_receiver w
            WHERE w.origin > r.origin ORDER BY w.origin, w.version LIMIT 1
        ) n
        WHERE r.rank < 1000
    ),
    chosen(origin, first_at, most) AS (
        SELECT r.origin, r.first_at, in_per_origin FROM receiver r
        UNION ALL
        SELECT o.origin, n.first_at, o.most FROM unnest(in_origins, in_counts) o(origin, most)
        CROSS JOIN LATERAL (
            SELECT w.first_at FROM webhook_receiver w WHERE w.origin = o.origin ORDER BY w.version LIMIT 1
        ) n
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
                WHERE l.state = 'pending' AND l.origin = r.origin AND l.due_at BETWEEN r.first_at AND last_at
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
        -- Checked again on the locked row: another replica may have been faster. A CASE, so that no index but
        -- that of the ids applies: the others hold what was settled.
        SELECT d.execution_id
        FROM unnest(head_ids) h(id) JOIN webhook_delivery d ON d.execution_id = ANY (ARRAY[h.id])
        WHERE CASE WHEN d.state = 'pending' AND d.due_at <= last_at
                   THEN d.claimed_until IS NULL OR d.claimed_until < claimed_now END
        FOR NO KEY UPDATE OF d SKIP LOCKED
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
-- `in_delay_seconds`), or 'released' (pending, and the attempt does not count because it was interrupted).
-- Guarded by the claim: after its lease and the next claim, nothing changes. Returns what was applied.
CREATE FUNCTION turnstile.record_webhooks(
    in_execution_ids bigint[],
    in_claimed_untils timestamptz[],
    in_states text[],
    in_statuses integer[],
    in_errors text[],
    in_delay_seconds double precision[]
)
RETURNS SETOF bigint
LANGUAGE plpgsql
:settings_for_index_lookups
AS $$
DECLARE
    due_from timestamptz;
    applied_ids bigint[];
    receivers text[];
BEGIN
    -- An id before the bound of what is due is read, see due_bound.
    PERFORM pg_current_xact_id();
    due_from := greatest(clock_timestamp(), (SELECT b.next_at FROM turnstile.due_bound b));
    WITH recorded AS (
        UPDATE webhook_delivery d
        SET state = CASE WHEN n.state = 'released' THEN 'pending' ELSE n.state END,
            attempts = CASE WHEN n.state = 'released' THEN greatest(d.attempts - 1, 0) ELSE d.attempts END,
            claimed_until = NULL, last_status = n.status, last_error = n.error,
            due_at = CASE WHEN n.state IN ('pending', 'released')
                THEN due_from + make_interval(secs => n.delay_seconds) ELSE d.due_at END,
            settled_at = CASE WHEN n.state NOT IN ('pending', 'released') THEN clock_timestamp() END
        FROM unnest(in_execution_ids, in_claimed_untils, in_states, in_statuses, in_errors, in_delay_seconds)
             n(id, claimed_until, state, status, error, delay_seconds)
        WHERE d.execution_id = ANY (ARRAY[n.id])
          AND CASE WHEN d.state = 'pending' THEN d.claimed_until = n.claimed_until END
        RETURNING d.execution_id, d.origin
    )
    SELECT array_agg(r.execution_id), array_agg(DISTINCT r.origin) INTO applied_ids, receivers
    FROM recorded r;
    PERFORM turnstile.raise_receivers(receivers);
    RETURN QUERY SELECT unnest(applied_ids);
END
$$;
