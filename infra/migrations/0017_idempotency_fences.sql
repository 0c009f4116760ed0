-- Privileges on what version 4 of the idempotency library's schema added.

GRANT SELECT, INSERT, DELETE ON guarded_transactions TO grantwire_functions;
GRANT USAGE ON SEQUENCE idempotency_fences TO grantwire_functions;
