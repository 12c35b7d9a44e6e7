-- The tables of the ledger, in a schema of their own. Only `ledger.py` writes them, one statement per turn.
--
-- Rows are written by their keys. No row is updated by every turn, and indexes are only on columns that never
-- change. There are no foreign keys: their checks would wait for a row that another session has locked.
CREATE SCHEMA ledger;

CREATE TYPE ledger.status AS ENUM (
    'delayed', 'queued', 'scheduled', 'running', 'completed', 'failed', 'timeout', 'cancelled', 'expired',
    'abandoned'
);

-- The fence: who leads. Only a takeover updates it; every turn reads it FOR SHARE.
CREATE TABLE ledger.leadership (
    is_only boolean PRIMARY KEY DEFAULT true,
    epoch bigint NOT NULL,
    executor text NOT NULL,
    taken_at timestamptz NOT NULL,
    -- There is one leader.
    CONSTRAINT leadership_is_one_row CHECK (is_only)
);
INSERT INTO ledger.leadership (epoch, executor, taken_at) VALUES (0, '', 'epoch');

-- One row per turn, as long as it is the newest, or its journal or checkpoint counts.
CREATE TABLE ledger.turn (
    epoch bigint NOT NULL,
    number bigint NOT NULL,
    at timestamptz NOT NULL,
    -- The turn before it, as the statement found it.
    after_epoch bigint NOT NULL,
    after_number bigint NOT NULL,
    after_counter bigint NOT NULL,
    -- What the next turn, or a load, must know.
    low_id bigint NOT NULL,
    reserved_id bigint NOT NULL,
    counter bigint NOT NULL,
    checkpoint_epoch bigint NOT NULL,
    checkpoint_number bigint NOT NULL,
    -- What the constraints check.
    first_counter bigint,
    last_id bigint,
    ends_decided integer NOT NULL,
    ends_written integer NOT NULL,
    journal text,
    checkpoint text,
    -- A number is used once.
    PRIMARY KEY (epoch, number),
    -- Numbers have no gaps, so a turn number never comes twice, even after its row was deleted.
    CONSTRAINT turn_follows_the_turn_before CHECK (
        epoch > after_epoch AND number = 1 OR epoch = after_epoch AND number = after_number + 1
    ),
    -- The counter of a grant is never used again within its epoch.
    CONSTRAINT turn_grants_with_new_numbers CHECK (first_counter > after_counter
        AND first_counter <= counter),
    -- Every end is written once, and after its admission.
    CONSTRAINT turn_ends_what_lives CHECK (ends_written = ends_decided),
    -- An id is durably reserved before an execution gets it.
    CONSTRAINT turn_admits_reserved_ids CHECK (last_id < reserved_id),
    -- What has no row of its own yet has an id from the low id on.
    CONSTRAINT turn_low_id_is_reserved CHECK (low_id <= reserved_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
INSERT INTO ledger.turn VALUES (0, 1, 'epoch', -1, 0, 0, 1, 1, 0, 0, 1, NULL, NULL, 0, 0, NULL, NULL);

-- The record of an execution: inserted at its admission, updated once at its end. Its id is given by the
-- leader.
CREATE TABLE ledger.execution (
    id bigint PRIMARY KEY,
    created_at timestamptz NOT NULL,
    run_at timestamptz,
    expires_at timestamptz,
    queued_at timestamptz,
    scheduled_at timestamptz,
    started_at timestamptz,
    completed_at timestamptz,
    timeout_seconds double precision,
    request_hash uuid NOT NULL,
    delivery_key uuid,
    retry_of bigint,
    status ledger.status NOT NULL,
    attempt integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    reclaims integer NOT NULL DEFAULT 0,
    priority smallint NOT NULL,
    action_ref text NOT NULL,
    key text NOT NULL,
    idempotency_key text,
    callback_url text,
    traceparent text,
    worker_id text,
    error_type text,
    error_message text,
    parameters jsonb NOT NULL,
    metadata jsonb,
    result jsonb,
    -- The gates that it passed: name, units, and the instants of arrival and passage.
    passages jsonb,
    -- Ids begin at 1.
    CONSTRAINT execution_id_is_positive CHECK (id > 0),
    -- There are five priorities.
    CONSTRAINT execution_priority_is_known CHECK (priority BETWEEN 1 AND 5),
    -- Parameters are passed by keyword.
    CONSTRAINT execution_parameters_are_an_object CHECK (jsonb_typeof(parameters) = 'object'),
    -- Metadata has names.
    CONSTRAINT execution_metadata_is_an_object CHECK (jsonb_typeof(metadata) = 'object'),
    -- Where an execution is before its end, other tables say.
    CONSTRAINT execution_is_granted_elsewhere CHECK (status NOT IN ('scheduled', 'running')),
    -- A terminal state has its instant, and no other state has one.
    CONSTRAINT execution_completed_at_iff_terminal CHECK (
        (completed_at IS NOT NULL) = (status NOT IN ('delayed', 'queued', 'scheduled', 'running'))
    ),
    -- The end fills in when it entered its queue first.
    CONSTRAINT execution_end_has_its_columns CHECK (completed_at IS NULL OR queued_at IS NOT NULL),
    -- Before the end nothing of an attempt is here.
    CONSTRAINT execution_without_end_has_no_attempt CHECK (
        completed_at IS NOT NULL
        OR attempt = 0 AND num_nonnulls(queued_at, scheduled_at, started_at, worker_id, result,
            error_type) = 0
    ),
    -- Only a worker completes an execution.
    CONSTRAINT execution_completed_by_a_worker CHECK (
        status <> 'completed' OR attempt > 0 AND worker_id IS NOT NULL AND scheduled_at IS NOT NULL
    ),
    -- A result means success.
    CONSTRAINT execution_result_only_when_completed CHECK (result IS NULL OR status = 'completed'),
    -- An error has a type and a message, and means no success.
    CONSTRAINT execution_error_is_whole CHECK (
        (error_type IS NULL) = (error_message IS NULL) AND (error_type IS NULL OR status <> 'completed')
    )
) WITH (fillfactor = 42, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
-- A message that is delivered twice is one execution.
CREATE UNIQUE INDEX execution_delivery_key_once ON ledger.execution (delivery_key) WHERE delivery_key IS
    NOT NULL;
-- A client's key names one execution.
CREATE UNIQUE INDEX execution_idempotency_key_once ON ledger.execution (idempotency_key)
WHERE idempotency_key IS NOT NULL;
-- The executions of an action, in order.
CREATE INDEX execution_of_action ON ledger.execution (action_ref, id);

-- Ends whose execution another session has locked. They count as written; a task writes them later.
CREATE TABLE ledger.pending_end (
    -- A second end is refused.
    execution_id bigint PRIMARY KEY,
    status ledger.status NOT NULL,
    attempt integer NOT NULL,
    failures integer NOT NULL,
    reclaims integer NOT NULL,
    worker_id text,
    queued_at timestamptz NOT NULL,
    scheduled_at timestamptz,
    started_at timestamptz,
    completed_at timestamptz NOT NULL,
    result jsonb,
    error_type text,
    error_message text,
    passages jsonb,
    -- It is an end: what the constraints of the execution refuse, a turn must not promise.
    CONSTRAINT pending_end_is_terminal CHECK (status NOT IN ('delayed', 'queued', 'scheduled', 'running')),
    -- Only a worker completes an execution.
    CONSTRAINT pending_end_completed_by_a_worker CHECK (
        status <> 'completed' OR attempt > 0 AND worker_id IS NOT NULL AND scheduled_at IS NOT NULL
    ),
    -- A result means success.
    CONSTRAINT pending_end_result_only_when_completed CHECK (result IS NULL OR status = 'completed'),
    -- An error has a type and a message, and means no success.
    CONSTRAINT pending_end_error_is_whole CHECK (
        (error_type IS NULL) = (error_message IS NULL) AND (error_type IS NULL OR status <> 'completed')
    )
);

-- Attempts that were not the last one.
CREATE TABLE ledger.attempt (
    execution_id bigint NOT NULL,
    attempt integer NOT NULL,
    outcome text NOT NULL,
    worker_id text NOT NULL,
    scheduled_at timestamptz NOT NULL,
    started_at timestamptz,
    ended_at timestamptz NOT NULL,
    error_type text,
    error_message text,
    -- An attempt ends once.
    PRIMARY KEY (execution_id, attempt),
    -- The first attempt is 1.
    CONSTRAINT attempt_is_positive CHECK (attempt > 0),
    -- An error has a type and a message.
    CONSTRAINT attempt_error_is_whole CHECK ((error_type IS NULL) = (error_message IS NULL))
);

-- Executions below the low id that have not ended and have no row in `live`.
CREATE TABLE ledger.waiting (
    -- It waits once.
    id bigint PRIMARY KEY,
    queued_at timestamptz NOT NULL,
    expires_at timestamptz,
    priority smallint NOT NULL,
    action_ref text NOT NULL,
    key text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0);

-- What one worker was granted in one turn; deleted once all of it has ended or was granted anew.
CREATE TABLE ledger.granted (
    epoch bigint NOT NULL,
    counter bigint NOT NULL,
    worker_id text NOT NULL,
    granted_at timestamptz NOT NULL,
    execution_ids bigint[] NOT NULL,
    -- The counter of each grant, less the counter of the row.
    offsets integer[] NOT NULL,
    -- A grant's number is used once.
    PRIMARY KEY (epoch, counter),
    -- Every grant has its own number.
    CONSTRAINT granted_has_a_number_for_each CHECK (
        cardinality(execution_ids) = cardinality(offsets) AND cardinality(offsets) > 0
    )
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);

-- Executions of which more is to be known than that they wait or were granted the first time.
CREATE TABLE ledger.live (
    id bigint PRIMARY KEY,
    action_ref text NOT NULL,
    key text NOT NULL,
    priority smallint NOT NULL,
    status ledger.status NOT NULL,
    attempt integer NOT NULL,
    failures integer NOT NULL,
    reclaims integer NOT NULL,
    queued_at timestamptz NOT NULL,
    expires_at timestamptz,
    due_at timestamptz,
    ttl_seconds double precision,
    timeout_seconds double precision,
    cancel_reason text,
    cancel_requested_at timestamptz,
    grant_epoch bigint,
    grant_counter bigint,
    worker_id text,
    scheduled_at timestamptz,
    started_at timestamptz,
    -- Resources and units.
    held jsonb,
    is_holding boolean NOT NULL,
    is_impatient boolean NOT NULL,
    passages jsonb,
    -- What has ended is not here.
    CONSTRAINT live_has_not_ended CHECK (status IN ('delayed', 'queued', 'scheduled', 'running')),
    -- What is at a worker has a grant; nothing else has one.
    CONSTRAINT live_grant_iff_at_a_worker CHECK (
        num_nonnulls(grant_epoch, grant_counter, worker_id, scheduled_at)
        = CASE WHEN status IN ('scheduled', 'running') THEN 4 ELSE 0 END
    ),
    -- What is delayed has an instant at which it is due.
    CONSTRAINT live_delayed_is_due CHECK (status <> 'delayed' OR due_at IS NOT NULL),
    -- What runs has started.
    CONSTRAINT live_running_has_started CHECK (status <> 'running' OR started_at IS NOT NULL)
) WITH (fillfactor = 70);

-- Workers that may hold something, and those that are gone.
CREATE TABLE ledger.worker (
    worker_id text PRIMARY KEY,
    session bigint NOT NULL,
    secret_hash bytea NOT NULL,
    name text NOT NULL,
    pools text[] NOT NULL,
    -- Null: it has the code of every action.
    actions text[],
    concurrency integer NOT NULL,
    lease_seconds double precision NOT NULL,
    is_taking boolean NOT NULL,
    is_draining boolean NOT NULL,
    -- When an operator asked for it, and what it held then.
    draining_at timestamptz,
    draining_count integer,
    -- Why it takes nothing, other than that it drains.
    not_ready text,
    -- What its hello said of it: host, pid, version, durations, notes.
    about jsonb NOT NULL,
    registered_at timestamptz NOT NULL,
    -- Its last heartbeat, when something else changed here, and when it was gone.
    heard_at timestamptz NOT NULL,
    -- It has left, or was lost; then it holds nothing, and retention deletes the row later.
    gone_at timestamptz,
    gone_why text,
    -- What it held then.
    held_ids bigint[],
    -- When an operator said that its loss needs no more attention.
    acknowledged_at timestamptz,
    -- A worker has no negative number of slots.
    CONSTRAINT worker_concurrency_is_a_count CHECK (concurrency >= 0),
    -- How a worker goes.
    CONSTRAINT worker_gone_why_is_known CHECK (gone_why IN ('stopped', 'lost')),
    -- What is gone has all of it.
    CONSTRAINT worker_gone_is_whole CHECK (num_nonnulls(gone_at, gone_why, held_ids) IN (0, 3)),
    -- Only a loss is acknowledged.
    CONSTRAINT worker_acknowledged_is_lost CHECK (
        acknowledged_at IS NULL OR coalesce(gone_why, '') = 'lost'
    )
);
-- Workers that may hold something.
CREATE INDEX worker_living ON ledger.worker (worker_id) WHERE gone_at IS NULL;
-- Those that are gone: lists, and retention.
CREATE INDEX worker_gone ON ledger.worker (registered_at) WHERE gone_at IS NOT NULL;

-- Actions, keys, resources, pools and schedules as they are now; and as `code`, by action, the JSON Schemas
-- that workers derived from their code: a body with `versions`, the one that was registered last at the end,
-- each with `hash`, `parameters`, `result` and `registered_at`. `ledger.worker.about` has the hashes of each
-- worker.
CREATE TABLE ledger.definition (
    kind text NOT NULL,
    -- Lists are in this order.
    name text COLLATE "C" NOT NULL,
    -- Shown of resources and pools.
    id bigint GENERATED ALWAYS AS IDENTITY,
    body jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    -- A name means one thing.
    PRIMARY KEY (kind, name),
    -- These are defined.
    CONSTRAINT definition_kind_is_known CHECK (
        kind IN ('action', 'key', 'resource', 'pool', 'schedule', 'code')
    )
);

-- Up to where each schedule is decided: written in the turn that admits its occurrences.
CREATE TABLE ledger.schedule (
    name text COLLATE "C" PRIMARY KEY,
    -- No occurrence up to this instant is decided again.
    decided_at timestamptz NOT NULL,
    -- When the next one is due; null: never.
    wake_at timestamptz,
    -- That of the last occurrence that was admitted.
    execution_id bigint,
    -- How many occurrences were admitted, left out because the one before had not ended, and refused.
    admitted bigint NOT NULL,
    skipped bigint NOT NULL,
    refused bigint NOT NULL,
    -- The last one that came while no executor led, and was left out.
    missed_at timestamptz,
    -- Why the last one was refused, or why there is none any more.
    problem text
) WITH (fillfactor = 70);

-- The ids of actions, as events and statistics show them. A deleted action keeps its id.
CREATE TABLE ledger.action_id (
    ref text PRIMARY KEY,
    id bigint NOT NULL,
    -- An id means one action.
    CONSTRAINT action_id_is_unique UNIQUE (id)
);

-- What operators did: who, when, what. A row is written in the transaction of its change.
CREATE TABLE ledger.audit_log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor text,
    address text,
    channel text,
    verb text NOT NULL,
    subject_kind text NOT NULL,
    subject text NOT NULL,
    action_ref text,
    -- What changed, before and after.
    before jsonb NOT NULL,
    after jsonb NOT NULL,
    -- How a change comes.
    CONSTRAINT audit_log_channel_is_known CHECK (
        channel IN ('api', 'cli', 'dashboard', 'worker', 'database')
    )
);
-- What happened to one subject.
CREATE INDEX audit_log_of_subject ON ledger.audit_log (subject_kind, subject, id);
-- What one operator did.
CREATE INDEX audit_log_of_actor ON ledger.audit_log (actor, id);
-- Old rows are deleted.
CREATE INDEX audit_log_recorded_at ON ledger.audit_log (recorded_at);
-- Deletes rows that are older than so many seconds, and never younger ones than 30 days: the account of an
-- executor, which has no right to delete here, must not be able to remove what it did. Returns how many.
CREATE FUNCTION ledger.prune_audit_log(in_keep_seconds double precision, in_limit integer) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH old AS MATERIALIZED (
        SELECT l.id FROM ledger.audit_log l
        WHERE l.recorded_at < clock_timestamp()
            - greatest(make_interval(secs => in_keep_seconds), interval '30 days')
        ORDER BY l.recorded_at LIMIT in_limit FOR UPDATE SKIP LOCKED
    ),
    pruned AS (DELETE FROM ledger.audit_log l USING old o WHERE l.id = ANY (ARRAY[o.id]) RETURNING 1)
    SELECT count(*) FROM pruned
$$;
REVOKE ALL ON FUNCTION ledger.prune_audit_log FROM PUBLIC;

-- What executions of an action did in a minute, as one leader counted it: inserted once the minute is over.
CREATE TABLE ledger.action_minute (
    at timestamptz NOT NULL,
    epoch bigint NOT NULL,
    slot_seconds double precision NOT NULL,
    admitted integer NOT NULL,
    started integer NOT NULL,
    completed integer NOT NULL,
    failed integer NOT NULL,
    timeout integer NOT NULL,
    cancelled integer NOT NULL,
    expired integer NOT NULL,
    abandoned integer NOT NULL,
    action_ref text NOT NULL,
    -- Histograms of seconds as numbers that can be added (`executor/histogram.py`).
    waiting numeric NOT NULL,
    running numeric NOT NULL,
    -- A leader counts a minute once.
    PRIMARY KEY (action_ref, at, epoch)
);
-- A window of all actions, and retention.
CREATE INDEX action_minute_at ON ledger.action_minute (at);

-- Messages that must be published although their inputs were acknowledged.
CREATE TABLE ledger.event (
    id bigint PRIMARY KEY,
    body bytea NOT NULL
);

-- Cancels of something that is not known yet.
CREATE TABLE ledger.early_cancel (
    id bigint PRIMARY KEY,
    execution_id bigint,
    idempotency_key text,
    reason text NOT NULL,
    kept_until timestamptz NOT NULL,
    -- Of its message, for its dead letter: JSON.
    properties text,
    -- It names an execution, by id or by key.
    CONSTRAINT early_cancel_names_one CHECK (num_nonnulls(execution_id, idempotency_key) = 1)
);

-- Living executions that have a name alone.
CREATE TABLE ledger.singleton (
    -- An execution has one name.
    execution_id bigint PRIMARY KEY,
    action_ref text NOT NULL,
    singleton text NOT NULL,
    -- Its queue and its place in it, by which it is found among what waits.
    key text NOT NULL,
    priority smallint NOT NULL
);

-- Commands that no turn has decided.
CREATE TABLE ledger.inbox (
    -- A command that is stored again is the same command.
    command_id uuid PRIMARY KEY,
    -- The order of decision. A submission gets it when its transaction commits.
    id bigint,
    kind text NOT NULL,
    -- It names many executions, and is decided beside the others.
    is_bulk boolean NOT NULL DEFAULT false,
    -- How many executions turns have cancelled with the action that it deletes.
    cancelled integer NOT NULL DEFAULT 0,
    size_bytes integer NOT NULL,
    submitted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    body jsonb NOT NULL,
    -- Of a request.
    parameters jsonb,
    metadata jsonb,
    -- A number is used once.
    CONSTRAINT inbox_id_is_unique UNIQUE (id),
    -- What a command can be.
    CONSTRAINT inbox_kind_is_known CHECK (kind IN ('request', 'submission', 'cancel', 'cancels',
        'definition'))
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
CREATE SEQUENCE ledger.inbox_id AS bigint OWNED BY ledger.inbox.id;

-- Draws the number of a command. Until the end of its transaction a lock says that the transaction has one: a
-- reader that lists these locks after it read the newest number knows who can still commit a smaller one.
--
-- The leader is notified, unless it says by its lock that it reads again within milliseconds: a transaction
-- with a notification commits alone. No session can stop commands by holding one of these locks: if it is the
-- first one, the leader is told to read all.
--
-- Its callers set the search path.
CREATE FUNCTION ledger.next_command_id() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    drawn bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(1953853038, 3) THEN
        PERFORM pg_notify('turnstile_commands', 'all');
    END IF;
    drawn := nextval('ledger.inbox_id');
    IF pg_try_advisory_xact_lock_shared(1953853038, 4) THEN
        PERFORM pg_notify('turnstile_commands', '');
    END IF;
    RETURN drawn;
END
$$;

CREATE FUNCTION ledger.number_command() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog,
    pg_temp AS $$
BEGIN
    NEW.size_bytes := pg_column_size(NEW.body) + coalesce(pg_column_size(NEW.parameters), 0)
        + coalesce(pg_column_size(NEW.metadata), 0);
    NEW.id := ledger.next_command_id();
    RETURN NEW;
END
$$;
CREATE TRIGGER inbox_is_numbered BEFORE INSERT ON ledger.inbox FOR EACH ROW WHEN (NEW.kind <> 'submission')
    EXECUTE FUNCTION ledger.number_command();

-- Large parameters and metadata of requests, stored before the turn that admits them, and deleted by it.
CREATE TABLE ledger.large_body (
    id uuid PRIMARY KEY,
    stored_at timestamptz NOT NULL DEFAULT now(),
    parameters jsonb NOT NULL,
    metadata jsonb
);
-- What no turn has used is deleted.
CREATE INDEX large_body_stored_at ON ledger.large_body (stored_at);

-- Answers to commands, kept for a while: the repetition of a command finds its answer.
CREATE TABLE ledger.answer (
    -- A command is decided once.
    command_id uuid PRIMARY KEY,
    kept_until timestamptz NOT NULL,
    body bytea NOT NULL
);
-- Old answers are deleted.
CREATE INDEX answer_kept_until ON ledger.answer (kept_until);
