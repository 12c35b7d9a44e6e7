-- Workers and their leases (P6). All arithmetic is on the database's clock.

-- register_worker: inserts a worker process; ids are never reused. `in_served_refs` are the actions whose
-- code it has. Null, from a worker of the previous version: it counts for all actions of its pools.
-- `in_offers_per_message` is the largest number of offers that it takes in one message; a worker of the
-- previous version takes one. `in_schemas` are the JSON Schemas of its actions (see store_schemas); of an
-- action without one, everything fits. The other parameters are shown to people. A worker's account writes
-- them, so their sizes are bounded here.
CREATE FUNCTION turnstile.register_worker(
    in_worker_id text, in_name text, in_host text, in_pid integer, in_pools text[], in_concurrency integer,
    in_lease_seconds double precision, in_served_refs text[] DEFAULT NULL,
    in_offers_per_message integer DEFAULT 1, in_version text DEFAULT NULL,
    in_drain_seconds double precision DEFAULT NULL,
    in_stop_grace_seconds double precision DEFAULT NULL, in_start_notes text[] DEFAULT NULL,
    in_schemas jsonb DEFAULT NULL
)
RETURNS void
LANGUAGE sql
SECURITY DEFINER
:settings
AS $$
    WITH registered AS (
        INSERT INTO worker (id, name, host, pid, pools, concurrency, served_refs, offers_per_message, version,
                            drain_seconds, stop_grace_seconds, start_notes, schema_ids,
                            started_at, renewed_at, lease_expires_at)
        VALUES (in_worker_id, in_name, in_host, in_pid, in_pools, in_concurrency, in_served_refs,
                in_offers_per_message, left(in_version, 100), in_drain_seconds, in_stop_grace_seconds,
                ARRAY(SELECT left(n.note, 500) FROM unnest(in_start_notes) WITH ORDINALITY n(note, ord)
                      WHERE n.ord <= 50 ORDER BY n.ord),
                turnstile.store_schemas(in_schemas), clock_timestamp(), clock_timestamp(),
                clock_timestamp() + make_interval(secs => in_lease_seconds))
        ON CONFLICT (id) DO NOTHING
        RETURNING id, renewed_at, lease_expires_at
    )
    INSERT INTO worker_lease (worker_id, version, renewed_at, expires_at)
    SELECT r.id, 1, r.renewed_at, r.lease_expires_at FROM registered r;
$$;

-- renew: extends the lease by `in_lease_seconds`. `alive` is false once the worker was marked as lost: it
-- must stop its attempts and register again. An expired lease that was not acted on may be renewed.
-- `in_not_ready`: why the worker can run nothing now, for people; its account writes it, so it is bounded.
CREATE FUNCTION turnstile.renew(
    in_worker_id text, in_lease_seconds double precision, in_not_ready text DEFAULT NULL,
    OUT alive boolean, OUT draining boolean
)
LANGUAGE plpgsql
SECURITY DEFINER
:settings_for_index_order
AS $$
BEGIN
    -- A sweep that marks the worker as lost comes first, or waits and reads the new lease.
    SELECT true, w.draining_at IS NOT NULL INTO alive, draining
    FROM worker w WHERE w.id = in_worker_id AND w.lost_at IS NULL AND w.stopped_at IS NULL
    FOR NO KEY UPDATE;
    alive := coalesce(alive, false);
    draining := coalesce(draining, false);
    IF NOT alive THEN
        RETURN;
    END IF;
    WITH newest AS MATERIALIZED (
        SELECT coalesce((SELECT v.version FROM worker_lease v WHERE v.worker_id = in_worker_id
                         ORDER BY v.version DESC LIMIT 1), 0) AS version
    ),
    written AS (
        INSERT INTO worker_lease (worker_id, version, renewed_at, expires_at, not_ready)
        SELECT in_worker_id, n.version + 1, clock_timestamp(),
               clock_timestamp() + make_interval(secs => in_lease_seconds), left(in_not_ready, 500)
        FROM newest n
    )
    DELETE FROM worker_lease v USING newest n
    WHERE v.worker_id = in_worker_id AND v.version BETWEEN n.version AND n.version;
END
$$;

-- schema_revision: the version of the tables, for a worker, whose account reads none.
CREATE FUNCTION turnstile.schema_revision()
RETURNS text
LANGUAGE sql
STABLE
SECURITY DEFINER
:settings
AS $$ SELECT v.version_num FROM alembic_version v $$;

-- sign_off: the worker stops regularly; its lease ends at once.
CREATE FUNCTION turnstile.sign_off(in_worker_id text)
RETURNS void
LANGUAGE plpgsql
SECURITY DEFINER
:settings_for_index_order
AS $$
BEGIN
    PERFORM 1 FROM worker w WHERE w.id = in_worker_id AND w.stopped_at IS NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE worker w
    SET stopped_at = clock_timestamp(), renewed_at = c.renewed_at,
        lease_expires_at = least(c.lease_expires_at, clock_timestamp())
    FROM turnstile.current_worker c WHERE w.id = in_worker_id AND c.id = in_worker_id;
    DELETE FROM worker_lease v WHERE v.worker_id = in_worker_id;
END
$$;

-- drain_worker: requests that a worker claims nothing new, finishes or hands back its attempts, and stops.
-- The worker learns it with its next renewal. A worker that stopped or was lost stays unchanged.
CREATE FUNCTION turnstile.drain_worker(in_worker_id text, in_caller jsonb DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql
:settings
AS $$
DECLARE
    was_draining boolean;
BEGIN
    SELECT w.draining_at IS NOT NULL INTO was_draining FROM worker w
    WHERE w.id = in_worker_id AND w.stopped_at IS NULL AND w.lost_at IS NULL FOR NO KEY UPDATE;
    IF was_draining IS NULL OR was_draining THEN
        RETURN was_draining;
    END IF;
    UPDATE worker SET draining_at = clock_timestamp(), draining_count = (
        SELECT count(*) FROM turnstile.live_slot s WHERE s.worker_id = in_worker_id AND s.finished_at IS NULL
    ) WHERE id = in_worker_id;
    IF in_caller IS NOT NULL THEN
        PERFORM turnstile.note_caller(in_caller);
        PERFORM turnstile.log_operations('drained', 'worker', ARRAY[in_worker_id], NULL,
                                         ARRAY['{"state": "live"}'::jsonb],
                                         ARRAY['{"state": "draining"}'::jsonb]);
    END IF;
    RETURN true;
END
$$;

-- start_drain: the worker reports that it drains, because its process is being stopped. It adds no capacity
-- from now on.
CREATE FUNCTION turnstile.start_drain(in_worker_id text)
RETURNS void
LANGUAGE sql
SECURITY DEFINER
:settings
AS $$ SELECT turnstile.drain_worker(in_worker_id) $$;
