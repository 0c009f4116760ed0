-- Returns the status of an entitlement at a time: NONE, SCHEDULED, ACTIVE, EXPIRED or REVOKED (K3, K5). Every read
-- uses this function, so that an entitlement ends on time although no worker has recorded its end yet. p_status is the
-- recorded status; NULL means that the entitlement was never granted. It ends at p_expires_at plus p_grace.
--
-- Reads of the current state pass greatest(now, updated_at) as p_now: a start that was recorded stays recorded, like an end,
-- if the clock is set back (W6).
CREATE OR REPLACE FUNCTION entitlement_state(
    p_status text, p_starts_at timestamptz, p_expires_at timestamptz, p_grace interval, p_now timestamptz
) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN p_status IS NULL THEN 'NONE'
            WHEN p_status <> 'ACTIVE' THEN p_status
            WHEN p_starts_at > p_now THEN 'SCHEDULED'
            WHEN p_expires_at + p_grace <= p_now THEN 'EXPIRED'
            ELSE 'ACTIVE' END;

REVOKE EXECUTE ON FUNCTION entitlement_state FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_state TO grantwire_functions;
