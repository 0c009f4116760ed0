-- Projects a batch of events: applies them to the read model. Returns how many rows changed (P1). Each array has
-- one element for each event. Arrays cost less than JSON, and their types do not depend on the table.
--
-- Events can be applied in any order and repeatedly. Only the newest event of an entitlement counts, and an event that
-- is not newer than the row changes nothing. A version can be missing permanently, so the condition requires a later
-- version, not the next one.
--
-- Rows are written in the order of the primary key, so that concurrent bridges and rebuilds cannot deadlock.
--
-- p_starts_at and p_expires_at are the times of the entitlements after the events; an element is NULL where there is no
-- such time.
CREATE OR REPLACE FUNCTION user_entitlements_project(
    p_user_ids text[], p_skus text[], p_event_types text[], p_versions bigint[], p_times timestamptz[],
    p_starts_at timestamptz[], p_expires_at timestamptz[]
) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    changed integer;
BEGIN
    INSERT INTO user_entitlements AS known
           (user_id, stock_keeping_unit, status, version, changed_at, starts_at, expires_at)
    SELECT DISTINCT ON (e.user_id COLLATE "C", e.sku COLLATE "C")
           e.user_id, e.sku, entitlement_status_after(e.event_type), e.version, e.occurred_at, e.starts_at, e.expires_at
      FROM unnest(p_user_ids, p_skus, p_event_types, p_versions, p_times, p_starts_at, p_expires_at)
           AS e (user_id, sku, event_type, version, occurred_at, starts_at, expires_at)
     ORDER BY e.user_id COLLATE "C", e.sku COLLATE "C", e.version DESC
        ON CONFLICT (user_id, stock_keeping_unit) DO UPDATE
       SET status = EXCLUDED.status, version = EXCLUDED.version, changed_at = EXCLUDED.changed_at,
           starts_at = EXCLUDED.starts_at, expires_at = EXCLUDED.expires_at
     WHERE known.version < EXCLUDED.version;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END
$$;

REVOKE EXECUTE ON FUNCTION user_entitlements_project FROM PUBLIC;
GRANT EXECUTE ON FUNCTION user_entitlements_project TO grantwire_functions;
