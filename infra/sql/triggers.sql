-- The last file of the schema: everything that depends on the SQL functions. It runs in the same transaction as they do, and
-- again each time that a function or a view has changed. Every statement must therefore be safe to repeat.

-- The idempotency library does not know the roles of the service, so privileges on its functions are granted here.
GRANT EXECUTE ON FUNCTION
    guarded_transaction_begin, guarded_transaction_end, guarded_transactions_refuse_commit, idempotency_begin,
    idempotency_finish, inbox_begin, inbox_check, inbox_finish, inbox_record, processed_message_check,
    processed_message_complete, processed_message_covers, processed_message_fail, processed_message_taken,
    request_guard_begin, request_guard_finish, request_guard_join
  TO grantwire_functions;

-- operate_clients serves requests with a role of its own.
GRANT EXECUTE ON FUNCTION client_tokens_take TO grantwire_clients;

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

-- A revocation is final (G3), and administrative actions are append-only (G4). ALWAYS: also for sessions that have switched
-- off ordinary triggers with session_replication_role.
CREATE OR REPLACE TRIGGER api_clients_keep_revocation
    BEFORE UPDATE ON api_clients
    FOR EACH ROW WHEN (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS DISTINCT FROM OLD.revoked_at)
    EXECUTE FUNCTION api_clients_keep_revocation();
ALTER TABLE api_clients ENABLE ALWAYS TRIGGER api_clients_keep_revocation;
CREATE OR REPLACE TRIGGER operator_actions_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON operator_actions
    FOR EACH STATEMENT EXECUTE FUNCTION operator_actions_append_only();
ALTER TABLE operator_actions ENABLE ALWAYS TRIGGER operator_actions_append_only;

-- Create the first partitions of the audit (A1). The sweep creates the later ones.
SELECT entitlement_audit_ensure_partitions(3, now());

-- The triggers that maintain user_summaries (G6).
CREATE OR REPLACE TRIGGER user_entitlements_inserted AFTER INSERT ON user_entitlements
    REFERENCING NEW TABLE AS rows_after
    FOR EACH STATEMENT EXECUTE FUNCTION user_summaries_maintain();
CREATE OR REPLACE TRIGGER user_entitlements_updated AFTER UPDATE ON user_entitlements
    REFERENCING OLD TABLE AS rows_before NEW TABLE AS rows_after
    FOR EACH STATEMENT EXECUTE FUNCTION user_summaries_maintain();
CREATE OR REPLACE TRIGGER user_entitlements_deleted AFTER DELETE ON user_entitlements
    REFERENCING OLD TABLE AS rows_before
    FOR EACH STATEMENT EXECUTE FUNCTION user_summaries_maintain();
CREATE OR REPLACE TRIGGER user_entitlements_truncated AFTER TRUNCATE ON user_entitlements
    FOR EACH STATEMENT EXECUTE FUNCTION user_summaries_maintain();

-- Sets failed_at when an outbox event becomes or is no longer FAILED.
CREATE OR REPLACE TRIGGER outbox_events_failed_at BEFORE UPDATE OF status ON outbox_events
    FOR EACH ROW WHEN ((NEW.status = 'FAILED') <> (OLD.status = 'FAILED'))
    EXECUTE FUNCTION outbox_events_failed_at();
