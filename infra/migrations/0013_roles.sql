-- What the functions may do, and nothing else: the rights of their role (SPEC E6, A1).
--
-- The owner of this schema migrates it. The functions log in with a role of their own, a member of grantwire_functions,
-- which may neither change the schema nor rewrite what happened: the audit and the operators' actions can be added to,
-- with the time that the database gives them, and never be changed or deleted. Months of the audit are made and dropped by
-- two functions that run with the owner's rights, and only as far as the owner allows.
--
-- No default privileges: each later migration grants what the functions need of what it makes. PUBLIC gets nothing.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'grantwire_functions') THEN
        CREATE ROLE grantwire_functions NOLOGIN;
    END IF;
EXCEPTION
    -- Roles belong to the whole cluster: another database of it was migrated at the same moment.
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'the role grantwire_functions is missing, and % may not create it', current_user
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Let somebody who may run: CREATE ROLE grantwire_functions NOLOGIN; then migrate again.';
END
$$;

-- How many months of the audit the owner lets the functions keep at least. No row: they may drop none.
CREATE TABLE audit_retention (
    single      boolean PRIMARY KEY DEFAULT true,
    keep_months integer NOT NULL,
    CONSTRAINT audit_retention_single CHECK (single),
    CONSTRAINT audit_retention_months CHECK (keep_months >= 1)
);

COMMENT ON TABLE audit_retention IS
    'Written by migrations, as the owner: whoever has only the rights of the functions cannot shorten the audit''s memory.';

-- Whether whoever is connected has the owner's rights, also if a function lends them to somebody who has not.
CREATE FUNCTION is_schema_owner() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT pg_has_role(session_user, c.relowner, 'MEMBER') FROM pg_class c WHERE c.oid = 'entitlement_audit'::regclass
$$;

-- As before (0003), with the owner's rights. Others make the months from this one to a year ahead, and any other month only
-- if the DEFAULT partition has rows of it: partitions without end would be a way to fill the catalogue.
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

-- As before (0008), with the owner's rights. Others keep at least what audit_retention says, by the database's clock.
CREATE OR REPLACE FUNCTION entitlement_audit_drop_oldest(p_keep_months integer, p_now timestamptz DEFAULT now())
RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET lock_timeout = '500ms' AS $$
DECLARE
    allowed    integer;
    keep       integer     := p_keep_months;
    moment     timestamptz := p_now;
    first_kept text;
    oldest     text;
BEGIN
    IF p_keep_months < 1 THEN
        RAISE EXCEPTION 'at least one month of the audit is kept, not %', p_keep_months
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT is_schema_owner() THEN
        SELECT r.keep_months INTO allowed FROM audit_retention r;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the owner lets nobody drop months of the audit: set ENTITLEMENT_AUDIT_RETENTION_MONTHS for migrate_database too, and invoke it'
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        keep   := greatest(p_keep_months, allowed);
        moment := least(p_now, now());
    END IF;
    first_kept := to_char(date_trunc('month', moment AT TIME ZONE 'UTC') - make_interval(months => keep),
                          '"entitlement_audit_y"YYYY"m"MM');
    -- One maintainer at a time; nobody else notices this lock.
    LOCK TABLE entitlement_audit IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT min(c.relname COLLATE "C") INTO oldest
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'entitlement_audit'::regclass
       AND c.relname ~ '^entitlement_audit_y\d{4}m\d{2}$' AND c.relname COLLATE "C" < first_kept;
    IF oldest IS NOT NULL THEN
        EXECUTE format('DROP TABLE %I', oldest);
    END IF;
    RETURN oldest;
END
$$;

-- A function that lends the owner's rights must find this schema's tables and nobody else's: not a temporary one either.
DO $$
DECLARE
    home text := quote_ident(current_schema());
BEGIN
    EXECUTE format('ALTER FUNCTION entitlement_audit_ensure_partitions SET search_path = %s, pg_temp', home);
    EXECUTE format('ALTER FUNCTION entitlement_audit_drop_oldest SET search_path = %s, pg_temp', home);
    EXECUTE format('REVOKE CREATE ON SCHEMA %s FROM PUBLIC', home);
    EXECUTE format('GRANT USAGE ON SCHEMA %s TO grantwire_functions', home);
END
$$;

-- Rights, their answers and their events. A right is never deleted, and neither its name nor the content of an event or of
-- a request's identity can be changed.
GRANT SELECT, INSERT, UPDATE (status, version, updated_at) ON entitlements TO grantwire_functions;
GRANT SELECT, INSERT, DELETE, UPDATE (request_hash, status_code, response_body, created_at, expires_at)
   ON idempotency_keys TO grantwire_functions;
GRANT SELECT, INSERT, DELETE,
      UPDATE (status, ready, attempt_count, next_retry_at, locked_by, locked_at, lease_until, last_error, published_at,
              discarded_at)
   ON outbox_events TO grantwire_functions;

-- What happened, for good: occurred_at is the database's to say. The sweep looks for months that DEFAULT has rows of.
GRANT INSERT (operation_id, caller, operation, outcome, user_id, stock_keeping_unit, trace_id, detail)
   ON entitlement_audit TO grantwire_functions;
GRANT SELECT (occurred_at) ON entitlement_audit_default TO grantwire_functions;
GRANT INSERT (action_id, batch, actor, reason, action, kind, selection, dry_run, letter_ids, count)
   ON operator_actions TO grantwire_functions;

-- Inbox, notifications, dead letters and the read model. Whoever locks a row to delete it needs UPDATE of one column.
GRANT SELECT, INSERT, DELETE, UPDATE (processed_at) ON processed_events TO grantwire_functions;
GRANT SELECT, INSERT, UPDATE, DELETE ON notifications, notification_dlq, notification_nats_dlq TO grantwire_functions;
GRANT SELECT, INSERT, DELETE, UPDATE (status, version, changed_at) ON user_rights TO grantwire_functions;
GRANT SELECT ON dead_letters, user_rights_differences TO grantwire_functions;

-- Stores of the idempotency library.
GRANT SELECT, INSERT, UPDATE, DELETE ON processed_messages, distributed_locks TO grantwire_functions;

-- Clients of the API: one that was revoked stays, and keeps its id, its name and its scopes.
GRANT SELECT, INSERT,
      UPDATE (token_hash, previous_hash, previous_until, rotated_at, expires_at, revoked_at, last_used_at)
   ON api_clients TO grantwire_functions;

REVOKE EXECUTE ON FUNCTION
    change_entitlement, entitlement_aggregate_key, entitlement_audit_drop_oldest, entitlement_audit_ensure_partitions,
    entitlement_transition, idempotency_begin, idempotency_finish, is_schema_owner, outbox_discard, outbox_enqueue,
    outbox_finalise, outbox_promote, outbox_promote_stuck, outbox_redrive, processed_message_check,
    processed_message_complete, processed_message_covers, processed_message_fail, processed_message_taken, rfc3339
  FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    change_entitlement, entitlement_aggregate_key, entitlement_audit_drop_oldest, entitlement_audit_ensure_partitions,
    entitlement_transition, idempotency_begin, idempotency_finish, outbox_discard, outbox_enqueue, outbox_finalise,
    outbox_promote, outbox_promote_stuck, outbox_redrive, processed_message_check, processed_message_complete,
    processed_message_covers, processed_message_fail, processed_message_taken, rfc3339
  TO grantwire_functions;
