-- API tokens. Rows are never deleted: as long as there is one, the API requires a token. After the tables of
-- the leader.
CREATE TABLE ledger.api_token (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    role text NOT NULL,
    -- Prefixes of the actions that it may use; null: all.
    scope text[],
    -- SHA-256 of the token, which is random and long: a slow hash would add nothing.
    digest bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text,
    expires_at timestamptz,
    -- Within a minute.
    last_used_at timestamptz,
    revoked_at timestamptz,
    revoked_by text,
    -- A token has one entry.
    CONSTRAINT api_token_digest_once UNIQUE (digest),
    -- There are four roles.
    CONSTRAINT api_token_role_is_known CHECK (role IN ('read', 'submit', 'operate', 'admin')),
    -- A scope names something.
    CONSTRAINT api_token_scope_is_not_empty CHECK (cardinality(scope) > 0),
    -- An admin is for all actions.
    CONSTRAINT api_token_admin_has_no_scope CHECK (role <> 'admin' OR scope IS NULL)
);
