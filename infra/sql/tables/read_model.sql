-- The read model of each user's entitlements (P1, P2). The bridge maintains it from the events.

-- Each entitlement has one row, with the state after the newest projected event. The version of each entitlement is enough
-- to ignore older events.
CREATE TABLE user_entitlements (
    user_id            text        COLLATE "C" NOT NULL,
    stock_keeping_unit text        COLLATE "C" NOT NULL,
    status             text        NOT NULL,
    version            bigint      NOT NULL,
    -- occurred_at of the event, which equals updated_at in the system of record.
    changed_at         timestamptz NOT NULL,
    -- A summary is exact before the worker has recorded a start or an end.
    starts_at          timestamptz,
    expires_at         timestamptz,
    PRIMARY KEY (user_id, stock_keeping_unit),
    CONSTRAINT user_entitlements_status CHECK (status IN ('ACTIVE', 'REVOKED', 'EXPIRED')),
    CONSTRAINT user_entitlements_version CHECK (version >= 1),
    CONSTRAINT user_entitlements_user_id_length CHECK (char_length(user_id) BETWEEN 1 AND 128),
    CONSTRAINT user_entitlements_sku_length CHECK (char_length(stock_keeping_unit) BETWEEN 1 AND 128)
) WITH (fillfactor = 80);

-- Lists the active entitlements of a user in pages, without reading the others.
CREATE INDEX user_entitlements_active ON user_entitlements (user_id, stock_keeping_unit) WHERE status = 'ACTIVE';
-- Entitlements of a user that are scheduled, and those that have ended but are not recorded as EXPIRED.
CREATE INDEX user_entitlements_starting ON user_entitlements (user_id, starts_at)
    WHERE status = 'ACTIVE' AND starts_at IS NOT NULL;
CREATE INDEX user_entitlements_ending ON user_entitlements (user_id, expires_at)
    WHERE status = 'ACTIVE' AND expires_at IS NOT NULL;

GRANT SELECT, INSERT, DELETE, UPDATE (status, version, changed_at, starts_at, expires_at)
   ON user_entitlements TO grantwire_functions;

-- One row for each user, with the counts and the last change of the summary (G6, P1; ADR 0033), so that the cost of a
-- summary does not depend on the number of entitlements. Triggers on user_entitlements maintain it in the transaction of
-- every change.
CREATE TABLE user_summaries (
    user_id                 text        COLLATE "C" PRIMARY KEY,
    active                  bigint      NOT NULL,
    revoked                 bigint      NOT NULL,
    expired                 bigint      NOT NULL,
    -- The entitlement that changed last; NULL if the user has none.
    last_stock_keeping_unit text        COLLATE "C",
    last_status             text,
    last_version            bigint,
    last_changed_at         timestamptz,
    CONSTRAINT user_summaries_counts CHECK (active >= 0 AND revoked >= 0 AND expired >= 0),
    CONSTRAINT user_summaries_last CHECK (
        num_nulls(last_stock_keeping_unit, last_status, last_version, last_changed_at)
        = CASE active + revoked + expired WHEN 0 THEN 4 ELSE 0 END)
) WITH (fillfactor = 70);

GRANT SELECT, INSERT, UPDATE ON user_summaries TO grantwire_functions;
