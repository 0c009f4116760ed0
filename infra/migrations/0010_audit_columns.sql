-- Typed columns of the audit for its readers (SPEC G1, G7): the bridge compares events with them, and history and traces
-- read them, through SECURITY DEFINER functions. The role of the functions can write the columns, but still cannot read
-- the audit.
--
-- The columns are added without a default and are NULL in older rows, so that PostgreSQL does not rewrite the table. The
-- default of transaction_id is set afterwards, for new rows only.

ALTER TABLE entitlement_audit
    ADD COLUMN version        bigint,
    ADD COLUMN status         text,
    ADD COLUMN purchase_id    text,
    ADD COLUMN source_address inet,
    ADD COLUMN transaction_id xid8;

ALTER TABLE entitlement_audit ALTER COLUMN transaction_id SET DEFAULT pg_current_xact_id();

-- Rows from before this migration had these values in `detail`.
UPDATE entitlement_audit
   SET version     = (detail->>'version')::bigint,
       status      = CASE WHEN outcome <> 'APPLIED' THEN NULL WHEN operation = 'GRANT' THEN 'ACTIVE' ELSE 'REVOKED' END,
       purchase_id = detail->>'purchase_id',
       detail      = detail - 'version' - 'purchase_id';

-- An applied row may lack version and status: the function of the previous release can run until the functions are
-- replaced, and it writes them to `detail`.
ALTER TABLE entitlement_audit
    ADD CONSTRAINT entitlement_audit_version CHECK (version >= 1),
    ADD CONSTRAINT entitlement_audit_status CHECK (status IN ('ACTIVE', 'REVOKED')),
    ADD CONSTRAINT entitlement_audit_purchase_id_length CHECK (char_length(purchase_id) BETWEEN 1 AND 128),
    -- One address, not a network.
    ADD CONSTRAINT entitlement_audit_source_address
        CHECK (masklen(source_address) = CASE family(source_address) WHEN 4 THEN 32 ELSE 128 END);

COMMENT ON COLUMN entitlement_audit.version IS
    'The version of the entitlement after the change; NULL if the operation was refused.';
COMMENT ON COLUMN entitlement_audit.status IS
    'The status of the entitlement after the change; NULL if the operation was refused.';
COMMENT ON COLUMN entitlement_audit.source_address IS
    'The address that API Gateway received the request from; NULL if it named none.';
COMMENT ON COLUMN entitlement_audit.transaction_id IS
    'The transaction that wrote the row; NULL in rows from before this column. A dump that is restored to another cluster keeps the ids of the old one.';

-- transaction_id and occurred_at always have their defaults.
GRANT INSERT (version, status, purchase_id, source_address) ON entitlement_audit TO grantwire_functions;
