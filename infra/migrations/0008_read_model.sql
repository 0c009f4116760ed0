-- The read model of each user's entitlements (SPEC P1, P2). The bridge maintains it from the events.
--
-- Each entitlement has one row, with the state after the newest projected event. The summary of a user is computed from
-- these rows when it is read. There are no stored counters that could become wrong, and the version of each entitlement
-- is enough to ignore older events.

CREATE TABLE user_entitlements (
    user_id            text        COLLATE "C" NOT NULL,
    stock_keeping_unit text        COLLATE "C" NOT NULL,
    status             text        NOT NULL,
    version            bigint      NOT NULL,
    -- occurred_at of the event, which equals updated_at in the system of record.
    changed_at         timestamptz NOT NULL,
    PRIMARY KEY (user_id, stock_keeping_unit),
    CONSTRAINT user_entitlements_status CHECK (status IN ('ACTIVE', 'REVOKED')),
    CONSTRAINT user_entitlements_version CHECK (version >= 1),
    CONSTRAINT user_entitlements_user_id_length CHECK (char_length(user_id) BETWEEN 1 AND 128),
    CONSTRAINT user_entitlements_sku_length CHECK (char_length(stock_keeping_unit) BETWEEN 1 AND 128)
) WITH (fillfactor = 80);

-- Differences between the read model and the system of record. An entitlement is committed before its event is
-- projected, so `missing` and `behind` can mean that an event is still on its way. The other differences are errors.
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
