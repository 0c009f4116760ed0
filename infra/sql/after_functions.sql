-- The last step of a migration: everything that depends on the SQL functions. It runs in the same transaction as they
-- do, and again each time that one of them has changed. Every statement must therefore be safe to repeat.

-- The idempotency library does not know the roles of the service, so privileges on its functions are granted here.
GRANT EXECUTE ON FUNCTION
    guarded_transaction_begin, guarded_transaction_end, guarded_transactions_refuse_commit, idempotency_begin,
    idempotency_finish, inbox_begin, inbox_finish, processed_message_check, processed_message_complete,
    processed_message_covers, processed_message_fail, processed_message_taken, request_guard_begin, request_guard_finish
  TO grantwire_functions;

-- Only events of a known type become notifications. The function defines these types, so adding one needs no migration.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_constraint
                    WHERE conrelid = 'notifications'::regclass AND conname = 'notifications_event_type') THEN
        ALTER TABLE notifications
            ADD CONSTRAINT notifications_event_type CHECK (entitlement_status_after(event_type) IS NOT NULL);
    END IF;
END
$$;

-- Create the first partitions of the audit (SPEC A1). The sweep creates the later ones.
SELECT entitlement_audit_ensure_partitions(3);
