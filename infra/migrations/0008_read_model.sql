-- The read model of each user's entitlements (SPEC P1, P2), which the bridge keeps from the events.
--
-- One row for each entitlement, as the newest event that was projected left it. A user's summary is made of that user's
-- rows when it is read: so the version of an entitlement guards all there is to guard, and there are no counters to
-- drift.

CREATE TABLE user_entitlements (
    user_id            text        COLLATE "C" NOT NULL,
    stock_keeping_unit text        COLLATE "C" NOT NULL,
    status             text        NOT NULL,
    version            bigint      NOT NULL,
    -- The event's occurred_at, which is the updated_at of the entitlement in the system of record.
    changed_at         timestamptz NOT NULL,
    PRIMARY KEY (user_id, stock_keeping_unit),
    CONSTRAINT user_entitlements_status CHECK (status IN ('ACTIVE', 'REVOKED')),
    CONSTRAINT user_entitlements_version CHECK (version >= 1),
    CONSTRAINT user_entitlements_user_id_length CHECK (char_length(user_id) BETWEEN 1 AND 128),
    CONSTRAINT user_entitlements_sku_length CHECK (char_length(stock_keeping_unit) BETWEEN 1 AND 128)
) WITH (fillfactor = 80);

-- Where the read model differs from the system of record. An entitlement is committed before its event can be projected:
-- what is missing or behind may be an event on its way, everything else is wrong.
CREATE VIEW user_entitlements_differences AS
SELECT user_id, stock_keeping_unit,
       CASE WHEN r.version IS NULL THEN 'missing'
            WHEN e.version IS NULL THEN 'extra'
            WHEN r.version < e.version THEN 'behind'
            WHEN r.version > e.version THEN 'ahead'
            ELSE 'wrong' END AS difference,
       e.status, e.version, e.updated_at,
       r.status AS seen_status, r.version AS seen_version, r.changed_at AS seen_changed_at
  FROM entitlements e FULL JOIN user_entitlements r USING (user_id, stock_keeping_unit)
 WHERE (e.status, e.version, e.updated_at) IS DISTINCT FROM (r.status, r.version, r.changed_at);

GRANT SELECT, INSERT, DELETE, UPDATE (status, version, changed_at) ON user_entitlements TO grantwire_functions;
GRANT SELECT ON user_entitlements_differences TO grantwire_functions;
