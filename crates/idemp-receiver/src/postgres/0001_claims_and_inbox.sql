-- Keys are compared byte for byte: collation "C".

-- Claims with a lease. token is there while a claim is pending; fingerprint is not there for a mark without a body.
CREATE TABLE IF NOT EXISTS idemp_claims (
    scope text COLLATE "C" NOT NULL,
    event_key text COLLATE "C" NOT NULL,
    token bytea CHECK (octet_length(token) = 16),
    epoch bigint NOT NULL,
    fingerprint bytea CHECK (octet_length(fingerprint) = 16),
    until timestamptz NOT NULL,
    PRIMARY KEY (scope, event_key)
);
CREATE INDEX IF NOT EXISTS idemp_claims_by_end ON idemp_claims (until);

-- Marks that commit with the handler's own work.
CREATE TABLE IF NOT EXISTS idemp_inbox (
    scope text COLLATE "C" NOT NULL,
    event_key text COLLATE "C" NOT NULL,
    fingerprint bytea CHECK (octet_length(fingerprint) = 16),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (scope, event_key)
);
CREATE INDEX IF NOT EXISTS idemp_inbox_by_time ON idemp_inbox (created_at);
