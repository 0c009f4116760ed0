-- Privileges on the tables of the idempotency library, which does not know the roles of the service. Caller, route and
-- key of a row cannot be updated.

GRANT SELECT, INSERT, DELETE, UPDATE (request_hash, status_code, response_body, created_at, expires_at)
   ON idempotency_keys TO grantwire_functions;
GRANT SELECT, INSERT, UPDATE, DELETE ON processed_messages, distributed_locks TO grantwire_functions;
