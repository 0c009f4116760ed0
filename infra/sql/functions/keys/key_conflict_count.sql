-- Counts a key conflict, and returns how many the key had on this day (UTC), this one included (G6). Only the first
-- one is audited. The caller holds the lock of the key, so conflicts of one key are counted one after the other.
CREATE OR REPLACE FUNCTION key_conflict_count(
    p_caller text, p_route text, p_key text, p_operation_id uuid
) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    counted bigint;
BEGIN
    INSERT INTO key_conflicts AS known (caller, route, key_hash, day, operation_id)
    VALUES (p_caller, p_route, encode(sha256(convert_to(p_key, 'UTF8')), 'hex'),
            (clock_timestamp() AT TIME ZONE 'UTC')::date, p_operation_id)
        ON CONFLICT (caller, route, key_hash, day) DO UPDATE
       SET conflicts = known.conflicts + 1, last_at = clock_timestamp()
    RETURNING conflicts INTO counted;
    RETURN counted;
END
$$;

REVOKE EXECUTE ON FUNCTION key_conflict_count FROM PUBLIC;
GRANT EXECUTE ON FUNCTION key_conflict_count TO grantwire_functions;
