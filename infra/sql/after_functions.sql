-- The last step of a migration: what needs the functions. It runs in their transaction, and again each time that one of
-- them changed, so every statement here must be harmless when repeated.

-- The idempotency library knows no roles; its functions are granted here.
GRANT EXECUTE ON FUNCTION
    idempotency_begin, idempotency_finish, processed_message_check, processed_message_complete, processed_message_covers,
    processed_message_fail, processed_message_taken
  TO grantwire_functions;

-- Only events of a known type become notifications. The function is the list of types: one more needs no migration.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_constraint
                    WHERE conrelid = 'notifications'::regclass AND conname = 'notifications_event_type') THEN
        ALTER TABLE notifications
            ADD CONSTRAINT notifications_event_type CHECK (entitlement_status_after(event_type) IS NOT NULL);
    END IF;
END
$$;

-- The first months of the audit (SPEC A1); the sweep makes the later ones.
SELECT entitlement_audit_ensure_partitions(3);
