-- The worker's lease (P6). All arithmetic is on the database's clock.

-- register_worker: a new process, a new row; the id is never used again. `in_served_refs` are the actions whose
-- code it has; a worker of the previous version does not say, and counts for all of its pools.
CREATE FUNCTION turnstile.register_worker(
    in_worker_id text, in_name text, in_host text, in_pid integer, in_pools text[], in_concurrency integer,
    in_lease_seconds double precision, in_served_refs text[] DEFAULT NULL
)
RETURNS void
LANGUAGE sql
SECURITY DEFINER
SET search_path = public, pg_temp
AS $$
    INSERT INTO worker (id, name, host, pid, pools, concurrency, served_refs, started_at, renewed_at,
                        lease_expires_at)
    VALUES (in_worker_id, in_name, in_host, in_pid, in_pools, in_concurrency, in_served_refs, clock_timestamp(),
            clock_timestamp(), clock_timestamp() + make_interval(secs => in_lease_seconds))
    ON CONFLICT (id) DO NOTHING;
$$;

-- renew: hold the lease for another `in_lease_seconds`. `alive` is false once the worker was given up:
-- it must stop what it runs and register anew. An overdue lease that nobody acted on may be renewed.
CREATE FUNCTION turnstile.renew(
    in_worker_id text, in_lease_seconds double precision, OUT alive boolean, OUT draining boolean
)
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = public, pg_temp
AS $$
BEGIN
    UPDATE worker w
    SET renewed_at = clock_timestamp(),
        lease_expires_at = clock_timestamp() + make_interval(secs => in_lease_seconds)
    WHERE w.id = in_worker_id AND w.lost_at IS NULL AND w.stopped_at IS NULL
    RETURNING true, w.draining_at IS NOT NULL INTO alive, draining;
    alive := coalesce(alive, false);
    draining := coalesce(draining, false);
END
$$;

-- sign_off: the worker leaves in good order; its lease ends at once.
CREATE FUNCTION turnstile.sign_off(in_worker_id text)
RETURNS void
LANGUAGE sql
SECURITY DEFINER
SET search_path = public, pg_temp
AS $$
    UPDATE worker SET stopped_at = clock_timestamp(), lease_expires_at = least(lease_expires_at, clock_timestamp())
    WHERE id = in_worker_id AND stopped_at IS NULL;
$$;

-- drain_worker: ask a worker to take nothing new, end or give back what it runs, and leave. It hears of it with its
-- next heartbeat. One that has left or was lost stays as it is.
CREATE FUNCTION turnstile.drain_worker(in_worker_id text)
RETURNS boolean
LANGUAGE sql
SET search_path = public, pg_temp
AS $$
    UPDATE worker SET draining_at = coalesce(draining_at, clock_timestamp())
    WHERE id = in_worker_id AND lost_at IS NULL AND stopped_at IS NULL
    RETURNING true;
$$;
