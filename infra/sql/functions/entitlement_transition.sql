-- Changes the status of an entitlement to p_status if its current status allows it (SPEC E1, E7). Otherwise `refusal`
-- has the reason, and version and time are NULL.
--
-- The first grant has no row to lock, so ON CONFLICT decides between concurrent grants. Its expressions are evaluated
-- after the row was locked, so updated_at never decreases.
CREATE OR REPLACE FUNCTION entitlement_transition(
    p_status text, p_user_id text, p_sku text,
    OUT refusal text, OUT new_version bigint, OUT changed_at timestamptz
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    current_status text;
BEGIN
    IF p_status = 'ACTIVE' THEN
        INSERT INTO entitlements AS e (user_id, stock_keeping_unit, status, version, updated_at)
        VALUES (p_user_id, p_sku, 'ACTIVE', 1, clock_timestamp())
        ON CONFLICT (user_id, stock_keeping_unit) DO UPDATE
           SET status     = EXCLUDED.status,
               version    = e.version + 1,
               updated_at = greatest(clock_timestamp(), e.updated_at + interval '1 microsecond')
         WHERE e.status <> EXCLUDED.status
        RETURNING version, updated_at INTO new_version, changed_at;
        IF NOT FOUND THEN
            refusal := 'already ACTIVE';
        END IF;
        RETURN;
    END IF;

    SELECT e.status INTO current_status FROM entitlements e
     WHERE e.user_id = p_user_id AND e.stock_keeping_unit = p_sku FOR UPDATE;
    IF NOT FOUND THEN
        refusal := 'not granted';
    ELSIF current_status = p_status THEN
        refusal := 'already REVOKED';
    ELSE
        UPDATE entitlements e
           SET status     = p_status,
               version    = e.version + 1,
               updated_at = greatest(clock_timestamp(), e.updated_at + interval '1 microsecond')
         WHERE e.user_id = p_user_id AND e.stock_keeping_unit = p_sku
        RETURNING e.version, e.updated_at INTO new_version, changed_at;
    END IF;
END
$$;

REVOKE EXECUTE ON FUNCTION entitlement_transition FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_transition TO grantwire_functions;
