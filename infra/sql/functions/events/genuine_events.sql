-- Returns the positions, from 1, of those events that are genuine (G1, ADR 0028). Each array has one element for
-- each event. An event is genuine if the audit has an APPLIED row with its id, user, sku, version and optional fields
-- (p_fields, as entitlement_fields renders them), and with the operation that causes events of its type. Where a month was
-- dropped from the audit, a forced redrive takes its place: a dead letter with the event's id and the same message, which
-- p_digests identifies by SHA-256.
--
-- The first search is limited to a day around the time of the event, so that it reads one or two partitions. The time of
-- an event can be further from that of its audit row, because updated_at never decreases even if the clock does. So the
-- events that were not found are searched for once more, without a time.
--
-- The function runs with the privileges of the schema owner, because the role of the functions cannot read the audit.
-- The result tells a caller only whether an event that it knows already is genuine. LATERAL with LIMIT and the planner
-- settings force index scans, because a plan made while the partitions are empty would read them completely.
CREATE OR REPLACE FUNCTION genuine_events(
    p_event_ids uuid[], p_user_ids text[], p_skus text[], p_event_types text[], p_versions bigint[],
    p_times timestamptz[], p_digests bytea[], p_fields text[]
) RETURNS integer[] LANGUAGE plpgsql STABLE SECURITY DEFINER SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    positions integer[];
BEGIN
    IF cardinality(p_event_ids) > 5000 THEN
        RAISE EXCEPTION 'at most 5000 events can be checked at once, not %', cardinality(p_event_ids)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    positions := ARRAY(
        SELECT e.position::integer
          FROM unnest(p_event_ids, p_user_ids, p_skus, p_event_types, p_versions, p_times, p_fields)
               WITH ORDINALITY AS e (event_id, user_id, sku, event_type, version, occurred_at, fields, position)
         CROSS JOIN LATERAL (
               SELECT FROM entitlement_audit a
                WHERE a.user_id = e.user_id AND a.stock_keeping_unit = e.sku AND a.operation_id = e.event_id
                  AND a.occurred_at > e.occurred_at - interval '1 day'
                  AND a.occurred_at < e.occurred_at + interval '1 day'
                  AND a.outcome = 'APPLIED'
                  AND a.version = e.version
                  AND entitlement_event_type(a.operation) = e.event_type
                  AND entitlement_fields(a, false) = e.fields
                LIMIT 1) AS audited);
    IF cardinality(positions) = cardinality(p_event_ids) THEN
        RETURN positions;
    END IF;

    positions := positions || ARRAY(
        SELECT e.position::integer
          FROM unnest(p_event_ids, p_user_ids, p_skus, p_event_types, p_versions, p_fields)
               WITH ORDINALITY AS e (event_id, user_id, sku, event_type, version, fields, position)
         CROSS JOIN LATERAL (
               SELECT FROM entitlement_audit a
                WHERE a.user_id = e.user_id AND a.stock_keeping_unit = e.sku AND a.operation_id = e.event_id
                  AND a.outcome = 'APPLIED'
                  AND a.version = e.version
                  AND entitlement_event_type(a.operation) = e.event_type
                  AND entitlement_fields(a, false) = e.fields
                LIMIT 1) AS audited
         WHERE e.position <> ALL (positions));

    RETURN positions || ARRAY(
        SELECT e.position::integer
          FROM unnest(p_event_ids, p_digests) WITH ORDINALITY AS e (event_id, digest, position)
         CROSS JOIN LATERAL (
               SELECT FROM notification_nats_dlq d
                WHERE d.event_id = e.event_id AND d.forced AND sha256(d.payload) = e.digest
                LIMIT 1) AS forced
         WHERE e.position <> ALL (positions));
END
$$;

-- A SECURITY DEFINER function must find only the tables of this schema, never a temporary table of its caller.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION genuine_events SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION genuine_events FROM PUBLIC;
GRANT EXECUTE ON FUNCTION genuine_events TO grantwire_functions;
