-- Calls back: the ends of executions that named a URL, on their way to it.
--
-- A delivery is born in the transaction that settles its end: none is lost and none is written twice (P4). It is
-- claimed with a lease on the database's clock, so one replica at a time delivers it, and one that dies leaves
-- it due again. Receivers know copies by the event's id.

-- call_back: let the ends of these be delivered from now on. For settle; its caller has checked that each names
-- a URL. The origin may be empty, but never null: no URL, however odd, may keep a slot from being freed.
CREATE FUNCTION turnstile.call_back(in_execution_ids bigint[], in_at timestamptz)
RETURNS void
LANGUAGE sql
SET search_path = public, pg_temp
SET enable_seqscan = off
AS $$
    INSERT INTO webhook_delivery (execution_id, url, origin, due_at, created_at)
    SELECT e.id, e.callback_url, lower(coalesce(substring(e.callback_url FROM '^[^:/?#]+://[^/?#]*'), '')), in_at, in_at
    FROM execution e WHERE e.id = ANY (in_execution_ids)
    ON CONFLICT DO NOTHING;
$$;

-- due_webhooks: the receivers behind `in_after_origin` with something to deliver: since when the first of it is due, and
-- how many may be claimed now. `next_origin`: behind which receiver to go on; empty: those were all.
--
-- It steps from receiver to receiver by the index, past all that waits for each. Of each line only the first
-- `in_per_origin` are looked at, those under way among them: so many a receiver gets at once, over all replicas.
CREATE FUNCTION turnstile.due_webhooks(
    in_after_origin text,
    in_per_origin integer,
    OUT origins text[],
    OUT due_ats timestamptz[],
    OUT counts integer[],
    OUT next_origin text
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    looked_at timestamptz := clock_timestamp();
BEGIN
    WITH RECURSIVE receiver(origin, due_at, place) AS (
        (SELECT d.origin, d.due_at, 1 FROM webhook_delivery d
         WHERE d.state = 'pending' AND d.origin > in_after_origin ORDER BY d.origin, d.due_at LIMIT 1)
        UNION ALL
        SELECT n.origin, n.due_at, r.place + 1
        FROM receiver r
        CROSS JOIN LATERAL (
            SELECT d.origin, d.due_at FROM webhook_delivery d
            WHERE d.state = 'pending' AND d.origin > r.origin ORDER BY d.origin, d.due_at LIMIT 1
        ) n
        WHERE r.place < 1000
    ),
    front AS (
        SELECT r.origin, min(f.due_at) AS due_at, count(*)::integer AS free
        FROM receiver r
        CROSS JOIN LATERAL (
            SELECT l.due_at, l.claimed_until FROM webhook_delivery l
            WHERE l.state = 'pending' AND l.origin = r.origin AND l.due_at <= looked_at
            ORDER BY l.due_at LIMIT in_per_origin
        ) f
        WHERE r.due_at <= looked_at AND (f.claimed_until IS NULL OR f.claimed_until < looked_at)
        GROUP BY r.origin
    )
    SELECT (SELECT array_agg(f.origin ORDER BY f.origin) FROM front f),
           (SELECT array_agg(f.due_at ORDER BY f.origin) FROM front f),
           (SELECT array_agg(f.free ORDER BY f.origin) FROM front f),
           (SELECT CASE WHEN count(*) = 1000 THEN max(r.origin) ELSE '' END FROM receiver r)
    INTO origins, due_ats, counts, next_origin;
END
$$;

-- claim_webhooks: take the next due deliveries for `in_lease_seconds`, at most `in_limit`. An end of the lease is
-- also the claim's name: `note_webhooks` must say it.
--
-- With `in_origins`: of each of these receivers at most as many as `in_counts` says, the first of its line. Without,
-- as executors of the previous version call it: it steps from receiver to receiver behind `in_after_origin`, and the
-- first of every line go before the second ones of any. In both cases only the first `in_per_origin` of a line are
-- looked at, those under way among them.
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
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    claimed_now timestamptz := clock_timestamp();
    front_ids bigint[];
BEGIN
    WITH RECURSIVE receiver(origin, due_at, place) AS (
        (SELECT d.origin, d.due_at, 1 FROM webhook_delivery d
         WHERE in_origins IS NULL
           AND d.state = 'pending' AND d.origin > in_after_origin ORDER BY d.origin, d.due_at LIMIT 1)
        UNION ALL
        SELECT n.origin, n.due_at, r.place + 1
        FROM receiver r
        CROSS JOIN LATERAL (
            SELECT d.origin, d.due_at FROM webhook_delivery d
            WHERE d.state = 'pending' AND d.origin > r.origin ORDER BY d.origin, d.due_at LIMIT 1
        ) n
        WHERE r.place < 1000
    ),
    chosen(origin, most) AS (
        SELECT r.origin, in_per_origin FROM receiver r WHERE r.due_at <= claimed_now
        UNION ALL
        SELECT o.origin, o.most FROM unnest(in_origins, in_counts) o(origin, most)
    ),
    front AS (
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
    SELECT (SELECT array_agg(f.execution_id) FROM front f),
           (SELECT CASE WHEN count(*) = 1000 THEN max(r.origin) ELSE '' END FROM receiver r)
    INTO front_ids, next_origin;
    IF front_ids IS NULL THEN
        RETURN;
    END IF;

    WITH free AS MATERIALIZED (
        -- Judged again on the row as it is when it is locked: another replica may have been faster.
        SELECT d.execution_id FROM webhook_delivery d
        WHERE d.execution_id = ANY (front_ids) AND d.state = 'pending'
          AND d.due_at <= claimed_now AND (d.claimed_until IS NULL OR d.claimed_until < claimed_now)
        FOR NO KEY UPDATE SKIP LOCKED
    ),
    taken AS (
        UPDATE webhook_delivery d
        SET claimed_until = claimed_now + make_interval(secs => in_lease_seconds), attempts = d.attempts + 1
        FROM free f WHERE d.execution_id = ANY (ARRAY[f.execution_id])
        RETURNING d.execution_id, d.event_id, d.url, d.attempts, d.claimed_until, d.origin
    )
    SELECT array_agg(ROW(t.execution_id, t.event_id, t.url, t.attempts, t.claimed_until)::turnstile.webhook
                     ORDER BY t.execution_id),
           array_agg(t.origin ORDER BY t.execution_id)
    INTO claimed, claimed_origins FROM taken t;
END
$$;

-- note_webhooks: what became of deliveries: 'delivered', 'failed', or 'pending' until `in_delay_seconds` from
-- now; 'released': pending too, and the attempt does not count, since it was cut short. Guarded by the claim: whoever
-- comes after its lease, and after the next claim, changes nothing. Returns what was applied.
CREATE FUNCTION turnstile.note_webhooks(
    in_execution_ids bigint[],
    in_claimed_untils timestamptz[],
    in_states text[],
    in_statuses integer[],
    in_errors text[],
    in_delay_seconds double precision[]
)
RETURNS SETOF bigint
LANGUAGE sql
SET search_path = public, pg_temp
SET enable_seqscan = off
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

-- replay_webhooks: deliver these once more, failed or delivered; without ids: those that failed, the oldest first,
-- at most `in_limit`. The event keeps its id. `left_count`: how many have failed besides.
--
-- The executions are locked against being pruned first: a delivery is of use only with what it tells.
CREATE FUNCTION turnstile.replay_webhooks(
    in_execution_ids bigint[], in_limit integer, OUT replayed_ids bigint[], OUT pending_ids bigint[], OUT left_count bigint
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    wanted_ids bigint[] := coalesce(in_execution_ids, ARRAY(
        SELECT d.execution_id FROM webhook_delivery d WHERE d.state = 'failed' ORDER BY d.execution_id LIMIT in_limit));
BEGIN
    PERFORM 1 FROM execution e WHERE e.id = ANY (wanted_ids) ORDER BY e.id FOR KEY SHARE;
    pending_ids := ARRAY(
        SELECT d.execution_id FROM webhook_delivery d WHERE d.execution_id = ANY (wanted_ids) AND d.state = 'pending');
    WITH settled AS MATERIALIZED (
        SELECT d.execution_id FROM webhook_delivery d
        WHERE d.execution_id = ANY (wanted_ids) AND d.state <> 'pending'
          AND (SELECT e.id FROM execution e WHERE e.id = d.execution_id) IS NOT NULL
        ORDER BY d.execution_id FOR NO KEY UPDATE
    ),
    again AS (
        UPDATE webhook_delivery d
        SET state = 'pending', attempts = 0, due_at = clock_timestamp(), created_at = clock_timestamp(),
            settled_at = NULL
        FROM settled s WHERE d.execution_id = ANY (ARRAY[s.execution_id])
        RETURNING d.execution_id
    )
    SELECT coalesce(array_agg(a.execution_id ORDER BY a.execution_id), '{}') INTO replayed_ids FROM again a;
    left_count := (SELECT count(*) FROM webhook_delivery d WHERE d.state = 'failed');
END
$$;

-- give_up_webhooks: of the next `in_limit` pending deliveries after `in_after_id`, let those fail whose end, or last
-- replay, is longer than `in_age_seconds` ago: the line of a receiver that swallows what it gets must not grow for
-- ever. `next_id`: where to go on; 0: nothing is left to look at.
--
-- Not one that is being posted, nor one whose wait was over less than a minute ago: who was asked to come back
-- later does so once more.
CREATE FUNCTION turnstile.give_up_webhooks(
    in_after_id bigint, in_age_seconds double precision, in_limit integer, OUT given_up integer, OUT next_id bigint
)
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    looked_at timestamptz := clock_timestamp();
    created_before timestamptz := looked_at - make_interval(secs => in_age_seconds);
BEGIN
    -- The state by its bounds: as a constant it would be no part of the order.
    WITH looked AS MATERIALIZED (
        SELECT d.execution_id, d.created_at FROM webhook_delivery d
        WHERE d.state BETWEEN 'pending' AND 'pending' AND d.execution_id > in_after_id
        ORDER BY d.state, d.execution_id LIMIT in_limit
    ),
    old AS MATERIALIZED (
        -- Judged again on the row as it is when it is locked: it may have been claimed meanwhile.
        SELECT d.execution_id
        FROM looked l JOIN webhook_delivery d ON d.execution_id = ANY (ARRAY[l.execution_id])
        WHERE l.created_at < created_before AND d.state = 'pending' AND d.created_at < created_before
          AND d.due_at < looked_at - interval '1 min'
          AND (d.claimed_until IS NULL OR d.claimed_until < looked_at)
        FOR NO KEY UPDATE OF d SKIP LOCKED
    ),
    gone AS (
        UPDATE webhook_delivery d
        SET state = 'failed', claimed_until = NULL, settled_at = looked_at,
            last_error = format('given up after %s s (TURNSTILE_WEBHOOK_AGE_MAX); %s', in_age_seconds,
                CASE WHEN d.attempts > 0 THEN 'the last try: ' || coalesce(d.last_error, 'nothing was noted')
                     ELSE 'it was never tried' END)
        FROM old o WHERE d.execution_id = ANY (ARRAY[o.execution_id])
        RETURNING d.execution_id
    )
    SELECT (SELECT count(*) FROM gone),
           (SELECT CASE WHEN count(*) >= in_limit THEN max(l.execution_id) ELSE 0 END FROM looked l)
    INTO given_up, next_id;
END
$$;

-- clean_webhooks: forget deliveries that were settled longer than `in_keep_seconds` ago.
CREATE FUNCTION turnstile.clean_webhooks(in_keep_seconds double precision, in_limit integer)
RETURNS integer
LANGUAGE plpgsql
SET search_path = public, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    settled_before timestamptz := clock_timestamp() - make_interval(secs => in_keep_seconds);
    cleaned integer;
BEGIN
    WITH old AS MATERIALIZED (
        SELECT d.execution_id FROM webhook_delivery d
        WHERE d.settled_at < settled_before
        ORDER BY d.settled_at LIMIT in_limit FOR UPDATE SKIP LOCKED
    )
    DELETE FROM webhook_delivery d USING old o WHERE d.execution_id = ANY (ARRAY[o.execution_id]);
    GET DIAGNOSTICS cleaned = ROW_COUNT;
    RETURN cleaned;
END
$$;
