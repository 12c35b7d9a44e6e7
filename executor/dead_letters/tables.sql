-- Messages that no service could use, drained from the broker and kept until an operator replays or purges
-- them. After the tables of the leader.
CREATE TABLE ledger.dead_letter (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- Of the message and its dead-lettering: the same for each delivery and each copy.
    fingerprint text NOT NULL,
    code text NOT NULL,
    error text NOT NULL,
    type text,
    message_id text,
    correlation_id text,
    app_id text,
    reply_to text,
    content_type text,
    exchange text NOT NULL,
    routing_key text NOT NULL,
    -- With which it is replayed.
    original_routing_key text NOT NULL,
    tries integer NOT NULL,
    published_at timestamptz,
    -- When it was stored, if the message does not say when it was dead-lettered.
    died_at timestamptz NOT NULL,
    stored_at timestamptz NOT NULL,
    headers jsonb NOT NULL,
    -- Cut if it is larger than any message that a service takes.
    body bytea NOT NULL,
    -- The size of the whole body.
    body_bytes bigint NOT NULL,
    -- The size of this row, uncompressed: it counts for the bound on all of them.
    stored_bytes integer NOT NULL,
    -- A dead letter that is delivered again after it was stored is no second row.
    CONSTRAINT dead_letter_fingerprint_once UNIQUE (fingerprint),
    -- What is stored is a part of it.
    CONSTRAINT dead_letter_body_within_its_size CHECK (octet_length(body) <= body_bytes),
    -- The size covers the body.
    CONSTRAINT dead_letter_body_within_what_is_stored CHECK (octet_length(body) <= stored_bytes),
    -- Tries are counted from 0.
    CONSTRAINT dead_letter_tries_is_a_count CHECK (tries >= 0)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
-- Lists and replays of all.
CREATE INDEX dead_letter_died_at ON ledger.dead_letter (died_at, id);
-- Those of one code.
CREATE INDEX dead_letter_code ON ledger.dead_letter (code, died_at, id);
-- Those that a message id names.
CREATE INDEX dead_letter_message_id ON ledger.dead_letter (message_id);
-- Retention sums up the sizes from the index alone.
CREATE INDEX dead_letter_size ON ledger.dead_letter (id) INCLUDE (stored_bytes);
