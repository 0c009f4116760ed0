-- The correlation id of a change in its audit row (SPEC T2): the id that API Gateway gave the request. Log lines have it,
-- and an INTERNAL error tells the client to report it, so a trace must find the change by it.
--
-- The column has no default and is NULL in older rows, so PostgreSQL does not rewrite the table. The next migration checks
-- the constraint and builds the index, in a transaction of its own: here the table is locked only briefly.

ALTER TABLE entitlement_audit
    ADD COLUMN correlation_id text,
    ADD CONSTRAINT entitlement_audit_correlation_id_length CHECK (char_length(correlation_id) BETWEEN 1 AND 128) NOT VALID;

COMMENT ON COLUMN entitlement_audit.correlation_id IS
    'The id that API Gateway gave the request; NULL for events of time, and in rows from before this column.';

GRANT INSERT (correlation_id) ON entitlement_audit TO grantwire_functions;
