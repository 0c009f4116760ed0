-- The time at which a client expires: its own time, or that of a client above it if that is earlier (G11, ADR 0048). NULL if
-- it never expires, and if there is no such client. It is computed and not stored, so that no statement can let a client
-- outlive the one that created it.
--
-- A loop, not a recursive query: the planner of that would read the whole table for each client above. enable_seqscan is
-- off for the reason in outbox_enqueue.
CREATE OR REPLACE FUNCTION client_expires_at(p_client_id text) RETURNS timestamptz
LANGUAGE plpgsql STABLE STRICT SET enable_seqscan = off AS $$
DECLARE
    next_id  text := p_client_id;
    earliest timestamptz;
BEGIN
    WHILE next_id IS NOT NULL LOOP
        SELECT c.created_by, least(earliest, c.expires_at) INTO next_id, earliest
          FROM api_clients c WHERE c.client_id = next_id;
    END LOOP;
    RETURN earliest;
END
$$;

REVOKE EXECUTE ON FUNCTION client_expires_at FROM PUBLIC;
GRANT EXECUTE ON FUNCTION client_expires_at TO grantwire_functions, grantwire_clients;
