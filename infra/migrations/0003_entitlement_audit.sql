-- Every operation on a right, refusals included (SPEC A1), partitioned by month in UTC so that old months are dropped
-- instead of deleted row by row. A row that no month takes lands in the DEFAULT partition: never lost, and alarming.

CREATE TABLE entitlement_audit (
    operation_id       uuid        NOT NULL,
    occurred_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    caller             text        NOT NULL,
    operation          text        NOT NULL,
    outcome            text        NOT NULL,
    user_id            text        COLLATE "C" NOT NULL,
    stock_keeping_unit text        COLLATE "C" NOT NULL,
    trace_id           text,
    detail             jsonb       NOT NULL,
    -- The one index answers "what happened to this right" and is the identity that replication needs.
    PRIMARY KEY (user_id, stock_keeping_unit, occurred_at, operation_id),
    CONSTRAINT entitlement_audit_operation CHECK (operation IN ('GRANT', 'REVOKE')),
    CONSTRAINT entitlement_audit_outcome 
        CHECK (outcome IN ('APPLIED', 'ENTITLEMENT_STATE_CONFLICT', 'IDEMPOTENCY_KEY_CONFLICT'))
) PARTITION BY RANGE (occurred_at);

CREATE TABLE entitlement_audit_default PARTITION OF entitlement_audit DEFAULT;

COMMENT ON COLUMN entitlement_audit.operation_id IS
    'Equals the event_id of the event that the operation caused, if it caused one.';

-- Makes the partition of the current month and of the p_months_ahead that follow; returns the names it made.
-- A month whose rows are already in the DEFAULT partition cannot simply be created: they are moved first. While the
-- current month is made, and only then, inserts wait: otherwise new rows would land in DEFAULT behind the move.
-- The weaker lock that is taken always lets one maintainer work at a time and stops nobody else.
CREATE FUNCTION entitlement_audit_ensure_partitions(p_months_ahead integer, p_now timestamptz DEFAULT now())
RETURNS SETOF text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    first_month timestamp := date_trunc('month', p_now AT TIME ZONE 'UTC');
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

SELECT entitlement_audit_ensure_partitions(3);
