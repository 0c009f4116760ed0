-- Creates the partitions of the current month and of the next p_months_ahead months. Returns the names of the created
-- ones (A1).
--
-- PostgreSQL cannot attach a partition whose rows are in the DEFAULT partition, so those rows are moved first. If the
-- month has already begun, inserts wait meanwhile; otherwise new rows could reach DEFAULT after the move. The weaker
-- lock at the beginning lets one session maintain partitions at a time, and blocks no reads or writes.
--
-- The function runs with the privileges of the schema owner. Other roles can create partitions from the current month
-- to a year ahead, and for any month that has rows in DEFAULT. This limit keeps them from filling the catalogue.
CREATE OR REPLACE FUNCTION entitlement_audit_ensure_partitions(p_months_ahead integer, p_now timestamptz DEFAULT now())
RETURNS SETOF text LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    first_month timestamp := date_trunc('month', p_now AT TIME ZONE 'UTC');
    this_month  timestamp := date_trunc('month', now() AT TIME ZONE 'UTC');
    month_start timestamptz;
    month_end   timestamptz;
    partition   text;
BEGIN
    LOCK TABLE entitlement_audit IN SHARE UPDATE EXCLUSIVE MODE;
    FOR ahead IN 0 .. p_months_ahead LOOP
        month_start := (first_month + make_interval(months => ahead)) AT TIME ZONE 'UTC';
        month_end   := (first_month + make_interval(months => ahead + 1)) AT TIME ZONE 'UTC';
        partition   := to_char(first_month + make_interval(months => ahead), '"entitlement_audit_y"YYYY"m"MM');
        CONTINUE WHEN EXISTS (SELECT FROM pg_inherits
                               WHERE inhparent = 'entitlement_audit'::regclass AND inhrelid = to_regclass(partition));
        IF month_start AT TIME ZONE 'UTC' NOT BETWEEN this_month AND this_month + interval '12 months'
           AND NOT EXISTS (SELECT FROM entitlement_audit_default
                            WHERE occurred_at >= month_start AND occurred_at < month_end)
           AND NOT is_schema_owner() THEN
            RAISE EXCEPTION 'an audit partition for % can be created only by the schema owner', month_start
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        IF month_start <= clock_timestamp() THEN
            LOCK TABLE entitlement_audit IN SHARE ROW EXCLUSIVE MODE;
        END IF;
        EXECUTE format('CREATE TABLE %I (LIKE entitlement_audit INCLUDING ALL)', partition);
        EXECUTE format(
            'WITH moved AS (DELETE FROM entitlement_audit_default WHERE occurred_at >= %L AND occurred_at < %L RETURNING *)
             INSERT INTO %I SELECT * FROM moved', month_start, month_end, partition);
        EXECUTE format('ALTER TABLE entitlement_audit ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                       partition, month_start, month_end);
        RETURN NEXT partition;
    END LOOP;
END
$$;

-- A SECURITY DEFINER function must find only the tables of this schema, never a temporary table of its caller.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION entitlement_audit_ensure_partitions SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION entitlement_audit_ensure_partitions FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_audit_ensure_partitions TO grantwire_functions;
