-- Brings the read model up to a batch of events; how many of its rows changed (SPEC P1). The arrays have one element for
-- each event: arrays, because they cost less than JSON and do not change with the table, as rows of it would.
--
-- In any order and any number of times: of several events of one entitlement the newest counts, and an event that is not
-- newer than what is known changes nothing. A version may be missing for good, so the guard asks for a later one, never
-- for the next one.
--
-- Rows are written in the order of the primary key: two bridges, or a bridge and a rebuild, that have entitlements in
-- common wait for each other in one order, never in a circle.
CREATE OR REPLACE FUNCTION user_entitlements_project(
    p_user_ids text[], p_skus text[], p_event_types text[], p_versions bigint[], p_times timestamptz[]
) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    changed integer;
BEGIN
    INSERT INTO user_entitlements AS known (user_id, stock_keeping_unit, status, version, changed_at)
    SELECT DISTINCT ON (e.user_id COLLATE "C", e.sku COLLATE "C")
           e.user_id, e.sku, entitlement_status_after(e.event_type), e.version, e.occurred_at
      FROM unnest(p_user_ids, p_skus, p_event_types, p_versions, p_times)
           AS e (user_id, sku, event_type, version, occurred_at)
     ORDER BY e.user_id COLLATE "C", e.sku COLLATE "C", e.version DESC
        ON CONFLICT (user_id, stock_keeping_unit) DO UPDATE
       SET status = EXCLUDED.status, version = EXCLUDED.version, changed_at = EXCLUDED.changed_at
     WHERE known.version < EXCLUDED.version;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END
$$;

REVOKE EXECUTE ON FUNCTION user_entitlements_project FROM PUBLIC;
GRANT EXECUTE ON FUNCTION user_entitlements_project TO grantwire_functions;
