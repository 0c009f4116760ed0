-- Makes the partition of the current month and of the p_months_ahead that follow; returns the names it made (SPEC A1).
-- A month whose rows are already in the DEFAULT partition cannot simply be created: they are moved first. While the
-- current month is made, and only then, inserts wait: otherwise new rows would land in DEFAULT behind the move. The
-- weaker lock that is taken always lets one maintainer work at a time and blocks no other statement.
--
-- It runs with the owner's privileges. Other roles make the months from this one to a year ahead, and any other month
-- only if the DEFAULT partition has rows of it: partitions without end would fill the catalogue.
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
            RAISE EXCEPTION 'the month of % is not one to make a partition of the audit for', month_start
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

-- A function that lends the owner's privileges must find this schema's tables and no others: not a temporary one either.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION entitlement_audit_ensure_partitions SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION entitlement_audit_ensure_partitions FROM PUBLIC;
GRANT EXECUTE ON FUNCTION entitlement_audit_ensure_partitions TO grantwire_functions;
