-- Returns one page of the change feed: the applied changes after a position, in the order (transaction_id, occurred_at,
-- operation_id), as the items of a JSON array (K9, ADR 0040).
--
-- The page ends below the oldest transaction that is still running. Every transaction below it has ended, and its rows
-- are visible. So no change can appear later at a position that was passed. Rows whose transaction id was removed by
-- installation_renew are in no page.
--
-- The status of a change is that after it, SCHEDULED before the start. So a copy of the snapshot and the feed are the same.
--
-- `outcome` is OK, REPLACED (the position belongs to another history of the database) or DROPPED (changes after the
-- position were dropped with a month of the audit). p_installation is the identity in the cursor; without it the feed
-- begins at the oldest change that is kept. If has_more, next_* is the position of the last change of the page.
-- Otherwise the page contains everything below the transaction visible_before.
--
-- A change that cannot be shown is an error: leaving it out would lose it.
--
-- VOLATILE, so that the check for dropped changes has a later snapshot than the page: the page may have waited for the
-- lock of the transaction that dropped them. The function runs with the privileges of the schema owner, because the role
-- of the functions cannot read the audit. The planner settings force ordered index scans, because a plan made while the
-- partitions are empty would read and sort them completely.
CREATE OR REPLACE FUNCTION change_feed_page(
    p_installation text, p_transaction_id xid8, p_occurred_at timestamptz, p_operation_id uuid, p_limit integer,
    OUT outcome text, OUT identity text, OUT changes text, OUT has_more boolean, OUT next_transaction_id xid8,
    OUT next_occurred_at timestamptz, OUT next_operation_id uuid, OUT visible_before xid8
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    first_unused xid8;
    incomplete   uuid;
BEGIN
    IF p_limit NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'a page has between 1 and 1000 changes, not %', p_limit
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    WITH page AS (
      SELECT a.*, entitlement_fields(a, false) AS fields,
             row_number() OVER (ORDER BY a.transaction_id, a.occurred_at, a.operation_id) AS number
        FROM entitlement_audit a
       WHERE a.outcome = 'APPLIED'
         AND (a.transaction_id, a.occurred_at, a.operation_id)
             > (coalesce(p_transaction_id, '0'), coalesce(p_occurred_at, '-infinity'),
                coalesce(p_operation_id, '00000000-0000-0000-0000-000000000000'))
         AND a.transaction_id < pg_snapshot_xmin(pg_current_snapshot())
       ORDER BY a.transaction_id, a.occurred_at, a.operation_id
       LIMIT p_limit + 1),
    items AS (
      SELECT p.transaction_id, p.occurred_at, p.operation_id, p.number,
             '{"event_id":"' || p.operation_id || '","event_type":"' || entitlement_event_type(p.operation)
             || '","user_id":' || to_json(p.user_id) || ',"stock_keeping_unit":' || to_json(p.stock_keeping_unit)
             || ',"status":"' || entitlement_state(p.status, p.starts_at, NULL, '0', p.changed_at)
             || '","version":' || p.version
             || ',"occurred_at":"' || rfc3339(p.changed_at)
             || '","reason":' || coalesce(to_json(p.detail->>'reason')::text, 'null')
             || ',"purchase_id":' || coalesce(to_json(p.purchase_id)::text, 'null')
             || ',"caller":' || to_json(p.caller) || p.fields || '}' AS item
        FROM page p)
    SELECT coalesce(string_agg(i.item, ',' ORDER BY i.number) FILTER (WHERE i.number <= p_limit), ''),
           count(*) > p_limit,
           (array_agg(i.transaction_id) FILTER (WHERE i.number = p_limit))[1],
           (array_agg(i.occurred_at) FILTER (WHERE i.number = p_limit))[1],
           (array_agg(i.operation_id) FILTER (WHERE i.number = p_limit))[1],
           pg_snapshot_xmin(pg_current_snapshot()), pg_snapshot_xmax(pg_current_snapshot()),
           (array_agg(i.operation_id) FILTER (WHERE i.item IS NULL))[1]
      INTO changes, has_more, next_transaction_id, next_occurred_at, next_operation_id, visible_before, first_unused,
           incomplete
      FROM items i;
    IF incomplete IS NOT NULL THEN
        RAISE EXCEPTION 'the audit row of change % has an unknown operation', incomplete;
    END IF;

    identity := installation_identity();
    outcome  := CASE
        WHEN p_installation <> identity OR p_transaction_id >= first_unused THEN 'REPLACED'
        WHEN p_installation = identity AND EXISTS (
            SELECT FROM installation i
             WHERE i.dropped_in = identity
               AND (i.dropped_transaction_id, i.dropped_occurred_at, i.dropped_operation_id)
                   > (p_transaction_id, p_occurred_at, p_operation_id)) THEN 'DROPPED'
        ELSE 'OK' END;
END
$$;

-- A SECURITY DEFINER function must find only the tables of this schema, never a temporary table of its caller.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION change_feed_page SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION change_feed_page FROM PUBLIC;
GRANT EXECUTE ON FUNCTION change_feed_page TO grantwire_functions;
