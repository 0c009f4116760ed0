-- The time of a change in its audit row (SPEC K8). occurred_at is the time at which the row was written, a moment after the
-- change. Responses and events have the time of the change, so history and past checks need it: a check as of the
-- updated_at of a grant must see that grant.
--
-- The column has no default and is NULL in older rows, so PostgreSQL does not rewrite the table. Readers then use
-- occurred_at.

ALTER TABLE entitlement_audit ADD COLUMN changed_at timestamptz;

COMMENT ON COLUMN entitlement_audit.changed_at IS
    'updated_at of the entitlement after the change; NULL if the operation was refused, and in rows from before this column.';

GRANT INSERT (changed_at) ON entitlement_audit TO grantwire_functions;
