-- Types of the rows that the protocol's functions return.
--
-- Planner settings of all files. A session may keep a plan that it made while the tables were empty. With `id
-- = x` such a plan may read a whole table, to merge or hash it with a few rows. `id = ANY (ARRAY[x])` means
-- the same, but can be neither merged nor hashed: each row is looked up in the index, whatever the planner
-- estimates. So it is used wherever a few rows join a table that grows, with `enable_seqscan = off`; where
-- nothing is written, a scalar subquery does the same. `jit = off`: a server that overestimates such a lookup
-- would compile it on each call. `enable_bitmapscan = off` where the order of an index limits the rows that
-- are read.

-- A change of a queue's state, to be added to its newest version. `first_id` is the lowest id of priority 3
-- that returned to the queue, or null; `first_places` are the first places of what entered it, by priority,
-- or null if all has priority 3.
CREATE TYPE turnstile.queue_change AS (
    queue_id bigint,
    depth bigint,
    held bigint,
    first_id bigint,
    enqueued bigint,
    completed bigint,
    first_places bigint[]
);

-- A change of a gate's or pool's state: released units are negative. `depth` counts its lists.
CREATE TYPE turnstile.gate_change AS (
    gate_id bigint,
    held bigint,
    depth bigint
);

-- The last tag of an action's executions that took a worker slot of their pool, or one of its first places
-- there.
CREATE TYPE turnstile.turn_charge AS (
    action_id bigint,
    priority integer,
    tag bigint
);

-- An action whose workers are busy (14_worker_sets.sql): how many executions may start in this set of
-- workers.
CREATE TYPE turnstile.scarce_action AS (
    action_id bigint,
    set_number integer,
    room bigint
);

-- An execution that has passed its queue. It holds `gate_units` at `gate_ids`, the gates that it has passed
-- since. `passed_ats`: when it passed its queue, then each of these gates.
CREATE TYPE turnstile.passage AS (
    execution_id bigint,
    action_id bigint,
    queue_id bigint,
    place bigint,
    gate_ids bigint[],
    gate_units integer[],
    passed_ats timestamptz[]
);

-- A gate whose counters were wrong: the old and the new ones.
CREATE TYPE turnstile.repaired_gate AS (
    gate_id bigint,
    gate text,
    old_depth bigint,
    new_depth bigint,
    old_held bigint,
    new_held bigint
);

-- The worker slots of a pool that its list may take, the virtual times of the pool, and the first turn of the
-- plain actions that wait there, null if none waits.
CREATE TYPE turnstile.free_place AS (
    pool_id bigint,
    places bigint,
    virtual_times bigint[],
    fair boolean,
    weights jsonb,
    rival_priority integer,
    rival_tag bigint,
    rival_place bigint
);

-- A granted slot: the content of `execution.scheduled`.
CREATE TYPE turnstile.granted AS (
    execution_id bigint,
    attempt integer,
    action_ref text,
    pool text,
    traceparent text,
    -- In its queue, on this server's clock; null where the same grant is offered again.
    waited_seconds double precision
);

-- The outcome of one request. `code` is null if it was accepted.
CREATE TYPE turnstile.admitted AS (
    code text,
    detail text,
    execution_id bigint,
    status text,
    queue_position bigint,
    duplicate boolean
);

-- The outcome of one retry: the terminal execution, and the outcome of the request made from it.
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

-- The outcome of one claim. Only a row with the verdict 'claimed' may run.
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
    -- From entering its queue to this start, on this server's clock.
    waited_seconds double precision,
    metadata jsonb,
    concurrency_key text,
    idempotency_key text
);

-- The outcome of one finish. Publish 'applied' and 'already'; 'stale' and 'lease_over' changed nothing.
CREATE TYPE turnstile.finished AS (
    execution_id bigint,
    attempt integer,
    verdict text,
    status text,
    ended_at timestamptz
);

-- A change of an execution's state that no worker reported.
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

-- A queue whose counters were wrong.
CREATE TYPE turnstile.repaired AS (
    queue_id bigint,
    depth_before bigint,
    depth bigint,
    held_before bigint,
    held bigint
);

-- A claimed delivery. `claimed_until` identifies the claim when its outcome is recorded.
CREATE TYPE turnstile.webhook AS (
    execution_id bigint,
    event_id uuid,
    url text,
    attempts integer,
    claimed_until timestamptz
);
