-- The system of record (SPEC E1). Only the SQL function change_entitlement writes to it. Key, entitlement, event, audit
-- row and stored response commit together or not at all (E6).

CREATE TABLE entitlements (
    user_id            text        COLLATE "C" NOT NULL,
    stock_keeping_unit text        COLLATE "C" NOT NULL,
    status             text        NOT NULL,
    version            bigint      NOT NULL,
    updated_at         timestamptz NOT NULL,
    PRIMARY KEY (user_id, stock_keeping_unit),
    CONSTRAINT entitlements_status CHECK (status IN ('ACTIVE', 'REVOKED')),
    CONSTRAINT entitlements_version CHECK (version >= 1),
    CONSTRAINT entitlements_user_id_length CHECK (char_length(user_id) BETWEEN 1 AND 128),
    CONSTRAINT entitlements_sku_length CHECK (char_length(stock_keeping_unit) BETWEEN 1 AND 128)
) WITH (fillfactor = 80);

-- An entitlement is never deleted, and its primary key never changes.
GRANT SELECT, INSERT, UPDATE (status, version, updated_at) ON entitlements TO grantwire_functions;
