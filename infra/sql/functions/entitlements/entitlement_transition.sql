-- Executes a change (GRANT, REVOKE or EXTEND) of an entitlement if its status allows it (E1, E7, K3, K5).
-- `entitlement` is the row after the change. If the operation is refused, `refusal` has the reason. If a time of the
-- request is not possible by the clock of the database, `invalid` says which. In both cases `entitlement` is NULL.
--
-- A start or an end whose time has come is recorded first, with its own version, and stays recorded if the operation is
-- refused. So an entitlement that has ended can be granted again, and a revoke of it is refused.
--
-- The clock is read once, after the locks (W5): what is decided before a wait may be wrong after it. The same time decides
-- about start and end and becomes updated_at, so the response agrees with history, feed and check of its version. It is
-- always after the last change, also if the clock was set back (E1, W6). The advisory lock is for an entitlement that does
-- not exist yet, and orders all changes of one (entitlements_lock).
CREATE OR REPLACE FUNCTION entitlement_transition(
    p_change entitlement_change, p_grace interval, p_notice interval,
    OUT refusal text, OUT invalid text, OUT entitlement entitlements
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    current         entitlements;
    decided_at      timestamptz;
    effective_start timestamptz;
    has_notice      boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(
        x'6777656e'::integer, entitlement_lock_key(p_change.user_id, p_change.stock_keeping_unit));
    SELECT e.* INTO current FROM entitlements e
     WHERE e.user_id = p_change.user_id AND e.stock_keeping_unit = p_change.stock_keeping_unit FOR UPDATE;
    decided_at := greatest(clock_timestamp(), current.updated_at + interval '1 microsecond');
    IF current.version IS NOT NULL THEN
        current    := apply_due(current, p_grace, p_notice, p_change.trace_id, decided_at);
        decided_at := greatest(decided_at, current.updated_at + interval '1 microsecond');
    END IF;

    IF p_change.expires_at <= decided_at THEN
        invalid := 'expires_at must be in the future';
        RETURN;
    END IF;
    -- A start in the past means now.
    effective_start := CASE WHEN p_change.starts_at IS NOT NULL THEN greatest(p_change.starts_at, decided_at) END;
    -- Whether EntitlementExpiring will be recorded. An end that is nearer than the notice, or whose notice would come
    -- before the start, has none.
    has_notice := coalesce(
        p_notice > interval '0' AND p_change.expires_at - p_notice > greatest(effective_start, decided_at), false);

    IF p_change.operation = 'GRANT' THEN
        IF current.version IS NULL THEN
            INSERT INTO entitlements AS e
                   (user_id, stock_keeping_unit, status, version, updated_at, starts_at, expires_at, purchase_id,
                    start_pending, expiring_pending)
            VALUES (p_change.user_id, p_change.stock_keeping_unit, 'ACTIVE', 1, decided_at, effective_start,
                    p_change.expires_at, p_change.purchase_id, coalesce(effective_start > decided_at, false), has_notice)
            RETURNING e.* INTO entitlement;
        ELSIF current.status = 'ACTIVE' THEN
            refusal := 'already ' || CASE WHEN current.start_pending THEN 'SCHEDULED' ELSE 'ACTIVE' END;
        ELSE
            UPDATE entitlements e
               SET status           = 'ACTIVE',
                   version          = e.version + 1,
                   updated_at       = decided_at,
                   starts_at        = effective_start,
                   expires_at       = p_change.expires_at,
                   purchase_id      = p_change.purchase_id,
                   start_pending    = coalesce(effective_start > decided_at, false),
                   expiring_pending = has_notice
             WHERE e.user_id = p_change.user_id AND e.stock_keeping_unit = p_change.stock_keeping_unit
            RETURNING e.* INTO entitlement;
        END IF;
    ELSIF current.version IS NULL THEN
        refusal := 'not granted';
    ELSIF current.status <> 'ACTIVE' THEN
        refusal := 'already ' || current.status;
    ELSIF p_change.operation = 'REVOKE' THEN
        UPDATE entitlements e
           SET status           = 'REVOKED',
               version          = e.version + 1,
               updated_at       = decided_at,
               start_pending    = false,
               expiring_pending = false
         WHERE e.user_id = p_change.user_id AND e.stock_keeping_unit = p_change.stock_keeping_unit
        RETURNING e.* INTO entitlement;
    ELSIF p_change.expires_at IS NOT DISTINCT FROM current.expires_at THEN
        refusal := coalesce('already ends at ' || rfc3339(current.expires_at), 'already has no end');
    ELSIF p_change.expires_at <= current.starts_at THEN
        refusal := 'starts at ' || rfc3339(current.starts_at) || ', so it cannot end earlier';
    ELSE
        UPDATE entitlements e
           SET version          = e.version + 1,
               updated_at       = decided_at,
               expires_at       = p_change.expires_at,
               purchase_id      = p_change.purchase_id,
               expiring_pending = has_notice AND coalesce(p_change.expires_at - p_notice > e.starts_at, true)
         WHERE e.user_id = p_change.user_id AND e.stock_keeping_unit = p_change.stock_keeping_unit
        RETURNING e.* INTO entitlement;
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION entitlement_transition FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_transition TO grantwire_functions;
