-- Deliveries of ended executions to their callback URLs. A turn inserts them in the statement that ends the
-- execution, so none is lost and none is written twice (P4).
CREATE TABLE ledger.webhook (
    execution_id bigint PRIMARY KEY,
    -- The same in every attempt: receivers recognise copies by it.
    event_id uuid NOT NULL DEFAULT gen_random_uuid(),
    url text NOT NULL,
    -- Scheme, host and port: a receiver that is slow or down delays no other (P9).
    origin text NOT NULL,
    state text NOT NULL DEFAULT 'pending',
    attempts integer NOT NULL DEFAULT 0,
    -- The earliest instant of the next attempt.
    due_at timestamptz NOT NULL,
    -- The end of the current claim's lease, which also identifies the claim.
    claimed_until timestamptz,
    last_status integer,
    last_error text,
    -- When the execution ended, or the delivery was last replayed. Its age counts from here.
    created_at timestamptz NOT NULL,
    ended_at timestamptz,
    -- These three are known.
    CONSTRAINT webhook_state_is_known CHECK (state IN ('pending', 'delivered', 'failed')),
    -- What is over has its instant.
    CONSTRAINT webhook_ended_iff_not_pending CHECK ((ended_at IS NOT NULL) = (state <> 'pending')),
    -- Only what is pending is claimed.
    CONSTRAINT webhook_claimed_while_pending CHECK (claimed_until IS NULL OR state = 'pending'),
    -- Attempts are counted from 0.
    CONSTRAINT webhook_attempts_is_a_count CHECK (attempts >= 0)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
-- One queue per receiver.
CREATE INDEX webhook_due ON ledger.webhook (origin, due_at) WHERE state = 'pending';
-- What is new.
CREATE INDEX webhook_created_at ON ledger.webhook (created_at);
-- Lists.
CREATE INDEX webhook_state ON ledger.webhook (state, execution_id);
-- What is old.
CREATE INDEX webhook_ended_at ON ledger.webhook (ended_at) WHERE ended_at IS NOT NULL;

-- The receiver of a URL: scheme, host and port; empty for an invalid one.
CREATE FUNCTION ledger.origin_of(in_url text) RETURNS text LANGUAGE sql IMMUTABLE
RETURN lower(coalesce(substring(in_url FROM '^[^:/?#]+://[^/?#]*'), ''));
