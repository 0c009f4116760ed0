-- Executes an operation (GRANT, REVOKE or EXTEND) on an entitlement if its status allows it (E1, E7, K3, K5).
-- `entitlement` is the row after the change. If the operation is refused, `refusal` has the reason. If a time of the
-- request is not possible by the clock of the database, `invalid` says which. In both cases `entitlement` is NULL.
--
-- A start or an end whose time has come is recorded first, with its own version, and stays recorded if the operation is
-- refused. So an entitlement that has ended can be granted again, and a revoke of it is refused.
--
-- The first grant has no row to lock, so ON CONFLICT decides between concurrent grants. Its expressions are evaluated
-- after the row was locked, so updated_at never decreases. It locks the row also if its condition is false.
CREATE OR REPLACE FUNCTION entitlement_transition(
    p_operation text, p_user_id text, p_sku text, p_purchase_id text, p_starts_at timestamptz, p_expires_at timestamptz,
    p_grace interval, p_notice interval, p_trace_id text,
    OUT refusal text, OUT invalid text, OUT entitlement entitlements
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    moment          timestamptz := clock_timestamp();
    -- A start in the past means now.
    effective_start timestamptz := CASE WHEN p_starts_at IS NOT NULL THEN greatest(p_starts_at, moment) END;
    -- Whether EntitlementExpiring will be recorded. An end that is nearer than the notice, or whose notice would come
    -- before the start, has none.
    has_notice      boolean := coalesce(
        p_notice > interval '0' AND p_expires_at - p_notice > greatest(effective_start, moment), false);
    known           entitlements;
BEGIN
    PERFORM pg_advisory_xact_lock(x'6777656e'::integer, entitlement_lock_key(p_user_id, p_sku));
    IF p_expires_at <= moment THEN
        invalid := 'expires_at must be in the future';
        RETURN;
    END IF;

    IF p_operation = 'GRANT' THEN
        -- At most twice: a row that is recorded as ACTIVE may have ended.
        FOR attempt IN 1..2 LOOP
            INSERT INTO entitlements AS e
                   (user_id, stock_keeping_unit, status, version, updated_at,
                    starts_at, expires_at, purchase_id, start_pending, expiring_pending)
            VALUES (p_user_id, p_sku, 'ACTIVE', 1, moment,
                    effective_start, p_expires_at, p_purchase_id, coalesce(effective_start > moment, false), has_notice)
            ON CONFLICT (user_id, stock_keeping_unit) DO UPDATE
               SET status           = EXCLUDED.status,
                   version          = e.version + 1,
                   updated_at       = greatest(clock_timestamp(), e.updated_at + interval '1 microsecond'),
                   starts_at        = EXCLUDED.starts_at,
                   expires_at       = EXCLUDED.expires_at,
                   purchase_id      = EXCLUDED.purchase_id,
                   start_pending    = EXCLUDED.start_pending,
                   expiring_pending = EXCLUDED.expiring_pending
             WHERE e.status <> EXCLUDED.status
            RETURNING e.* INTO entitlement;
            IF FOUND THEN
                RETURN;
            END IF;
            SELECT e.* INTO known FROM entitlements e WHERE e.user_id = p_user_id AND e.stock_keeping_unit = p_sku;
            known := entitlement_record_due(known, p_grace, p_notice, p_trace_id);
            EXIT WHEN known.status = 'ACTIVE';
        END LOOP;
        -- Not by the clock: if the end comes meanwhile, the entitlement was ACTIVE when this was decided.
        refusal := 'already ' || CASE WHEN known.start_pending THEN 'SCHEDULED' ELSE 'ACTIVE' END;
        RETURN;
    END IF;

    SELECT e.* INTO known FROM entitlements e
     WHERE e.user_id = p_user_id AND e.stock_keeping_unit = p_sku FOR UPDATE;
    IF NOT FOUND THEN
        refusal := 'not granted';
        RETURN;
    END IF;
    known := entitlement_record_due(known, p_grace, p_notice, p_trace_id);

    IF known.status <> 'ACTIVE' THEN
        refusal := 'already ' || known.status;
    ELSIF p_operation = 'REVOKE' THEN
        UPDATE entitlements e
           SET status           = 'REVOKED',
               version          = e.version + 1,
               updated_at       = greatest(clock_timestamp(), e.updated_at + interval '1 microsecond'),
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
               updated_at       = greatest(clock_timestamp(), e.updated_at + interval '1 microsecond'),
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
