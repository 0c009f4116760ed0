-- Executes an operation (GRANT, REVOKE or EXTEND) on an entitlement if its status allows it (E1, E7, K3, K5).
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
    p_operation text, p_user_id text, p_sku text, p_purchase_id text, p_starts_at timestamptz, p_expires_at timestamptz,
    p_grace interval, p_notice interval, p_trace_id text,
    OUT refusal text, OUT invalid text, OUT entitlement entitlements
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    known           entitlements;
    decided_at      timestamptz;
    effective_start timestamptz;
    has_notice      boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(x'6777656e'::integer, entitlement_lock_key(p_user_id, p_sku));
    SELECT e.* INTO known FROM entitlements e
     WHERE e.user_id = p_user_id AND e.stock_keeping_unit = p_sku FOR UPDATE;
    decided_at := greatest(clock_timestamp(), known.updated_at + interval '1 microsecond');
    IF known.version IS NOT NULL THEN
        known      := entitlement_record_due(known, p_grace, p_notice, p_trace_id, decided_at);
        decided_at := greatest(decided_at, known.updated_at + interval '1 microsecond');
    END IF;

    IF p_expires_at <= decided_at THEN
        invalid := 'expires_at must be in the future';
        RETURN;
    END IF;
    -- A start in the past means now.
    effective_start := CASE WHEN p_starts_at IS NOT NULL THEN greatest(p_starts_at, decided_at) END;
    -- Whether EntitlementExpiring will be recorded. An end that is nearer than the notice, or whose notice would come
    -- before the start, has none.
    has_notice := coalesce(
        p_notice > interval '0' AND p_expires_at - p_notice > greatest(effective_start, decided_at), false);

    IF p_operation = 'GRANT' THEN
        IF known.version IS NULL THEN
            INSERT INTO entitlements AS e
                   (user_id, stock_keeping_unit, status, version, updated_at, starts_at, expires_at, purchase_id,
                    start_pending, expiring_pending)
            VALUES (p_user_id, p_sku, 'ACTIVE', 1, decided_at, effective_start, p_expires_at, p_purchase_id,
                    coalesce(effective_start > decided_at, false), has_notice)
            RETURNING e.* INTO entitlement;
        ELSIF known.status = 'ACTIVE' THEN
            refusal := 'already ' || CASE WHEN known.start_pending THEN 'SCHEDULED' ELSE 'ACTIVE' END;
        ELSE
            UPDATE entitlements e
               SET status           = 'ACTIVE',
                   version          = e.version + 1,
                   updated_at       = decided_at,
                   starts_at        = effective_start,
                   expires_at       = p_expires_at,
                   purchase_id      = p_purchase_id,
                   start_pending    = coalesce(effective_start > decided_at, false),
                   expiring_pending = has_notice
             WHERE e.user_id = p_user_id AND e.stock_keeping_unit = p_sku
            RETURNING e.* INTO entitlement;
        END IF;
    ELSIF known.version IS NULL THEN
        refusal := 'not granted';
    ELSIF known.status <> 'ACTIVE' THEN
        refusal := 'already ' || known.status;
    ELSIF p_operation = 'REVOKE' THEN
        UPDATE entitlements e
           SET status           = 'REVOKED',
               version          = e.version + 1,
               updated_at       = decided_at,
               start_pending    = false,
               expiring_pending = false
         WHERE e.user_id = p_user_id AND e.stock_keeping_unit = p_sku
        RETURNING e.* INTO entitlement;
    ELSIF p_expires_at IS NOT DISTINCT FROM known.expires_at THEN
        refusal := coalesce('already ends at ' || rfc3339(known.expires_at), 'already has no end');
    ELSIF p_expires_at <= known.starts_at THEN
        refusal := 'starts at ' || rfc3339(known.starts_at) || ', so it cannot end earlier';
    ELSE
        UPDATE entitlements e
           SET version          = e.version + 1,
               updated_at       = decided_at,
               expires_at       = p_expires_at,
               purchase_id      = p_purchase_id,
               expiring_pending = has_notice AND coalesce(p_expires_at - p_notice > e.starts_at, true)
         WHERE e.user_id = p_user_id AND e.stock_keeping_unit = p_sku
        RETURNING e.* INTO entitlement;
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION entitlement_transition FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_transition TO grantwire_functions;
