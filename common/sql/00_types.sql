-- The rows that the statements hand back.
--
-- A word on plans, for all files that follow. A session may keep a plan for as long as it lives, made when the
-- tables were empty: with `id = x` such a plan may read a whole table, to merge or to hash it with a handful of
-- rows. `id = ANY (ARRAY[x])` means the same and can be neither merged nor hashed: each row is looked up by the
-- index, whatever the planner believes. So it is written wherever few rows meet a table that grows, together
-- with `enable_seqscan = off`; a scalar subquery serves where nothing is written. Without `jit = off`, a
-- server that overestimates such a lookup would compile it each time.

-- A slot was given: what `execution.scheduled` must say.
CREATE TYPE turnstile.granted AS (
    execution_id bigint,
    attempt integer,
    action_ref text,
    pool text,
    traceparent text,
    -- In line, on this server's clock; null where the same grant is offered again.
    waited_seconds double precision
);

-- What became of one request. `code` is null when it was accepted.
CREATE TYPE turnstile.admitted AS (
    code text,
    detail text,
    execution_id bigint,
    status text,
    queue_position bigint,
    duplicate boolean
);

-- What became of one retry: the ended execution, and what became of the request made of it.
CREATE TYPE turnstile.retried AS (
    retry_of bigint,
    previous_status text,
    action_ref text,
    code text,
    detail text,
    execution_id bigint,
    status text,
    queue_position bigint,
    duplicate boolean
);

-- What became of one claim. Only a row with verdict 'claimed' may run.
CREATE TYPE turnstile.claimed AS (
    execution_id bigint,
    attempt integer,
    verdict text,
    action_id bigint,
    action_ref text,
    runner text,
    entrypoint jsonb,
    parameters jsonb,
    timeout_seconds double precision,
    failures integer,
    retry_max_attempts integer,
    retry_delay_seconds double precision,
    retry_factor double precision,
    retry_max_delay_seconds double precision,
    retry_jitter double precision,
    traceparent text,
    -- From its place in line to this start, on this server's clock.
    waited_seconds double precision
);

-- What became of one finish. 'applied' and 'already' are to be told; 'stale' and 'lease_over' changed nothing.
CREATE TYPE turnstile.finished AS (
    execution_id bigint,
    attempt integer,
    verdict text,
    status text,
    ended_at timestamptz
);

-- An execution that came to its end, or moved, without a worker's doing.
CREATE TYPE turnstile.moved AS (
    execution_id bigint,
    attempt integer,
    action_id bigint,
    action_ref text,
    previous_status text,
    status text,
    worker_id text,
    moved_at timestamptz
);

-- A queue whose counters were off.
CREATE TYPE turnstile.repaired AS (
    queue_id bigint,
    depth_before bigint,
    depth bigint
);

-- A delivery that was claimed. Whoever notes what became of it names the end of its lease.
CREATE TYPE turnstile.webhook AS (
    execution_id bigint,
    event_id uuid,
    url text,
    attempts integer,
    claimed_until timestamptz
);
