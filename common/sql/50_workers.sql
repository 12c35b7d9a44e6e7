-- Workers and their leases (P6). All arithmetic is on the database's clock.

-- register_worker: inserts a worker process; ids are never reused. `in_served_refs` are the actions whose code it
-- has. Null, from a worker of the previous version: it counts for all actions of its pools. `in_offers_per_message` is
-- the largest number of offers that it takes in one message; a worker of the previous version takes one.
CREATE FUNCTION turnstile.register_worker(
    in_worker_id text, in_name text, in_host text, in_pid integer, in_pools text[], in_concurrency integer,
    in_lease_seconds double precision, in_served_refs text[] DEFAULT NULL, in_offers_per_message integer DEFAULT 1
)
RETURNS void
LANGUAGE sql
SECURITY DEFINER
:settings
AS $$
    INSERT INTO worker (id, name, host, pid, pools, concurrency, served_refs, offers_per_message, started_at,
                        renewed_at, lease_expires_at)
    VALUES (in_worker_id, in_name, in_host, in_pid, in_pools, in_concurrency, in_served_refs, in_offers_per_message,
            clock_timestamp(), clock_timestamp(), clock_timestamp() + make_interval(secs => in_lease_seconds))
    ON CONFLICT (id) DO NOTHING;
$$;

-- renew: extends the lease by `in_lease_seconds`. `alive` is false once the worker was marked as lost: it must stop
-- its attempts and register again. An expired lease that was not acted on may be renewed.
CREATE FUNCTION turnstile.renew(
    in_worker_id text, in_lease_seconds double precision, OUT alive boolean, OUT draining boolean
)
LANGUAGE plpgsql
SECURITY DEFINER
:settings
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

-- sign_off: the worker stops regularly; its lease ends at once.
CREATE FUNCTION turnstile.sign_off(in_worker_id text)
RETURNS void
LANGUAGE sql
SECURITY DEFINER
:settings
AS $$
    UPDATE worker SET stopped_at = clock_timestamp(), lease_expires_at = least(lease_expires_at, clock_timestamp())
    WHERE id = in_worker_id AND stopped_at IS NULL;
$$;

-- drain_worker: requests that a worker claims nothing new, finishes or hands back its attempts, and stops. The worker
-- learns it with its next renewal. A worker that stopped or was lost stays unchanged.
CREATE FUNCTION turnstile.drain_worker(in_worker_id text)
RETURNS boolean
LANGUAGE sql
:settings
AS $$
    UPDATE worker SET draining_at = coalesce(draining_at, clock_timestamp())
    WHERE id = in_worker_id AND lost_at IS NULL AND stopped_at IS NULL
    RETURNING true;
$$;
