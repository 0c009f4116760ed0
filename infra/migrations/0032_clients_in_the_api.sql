-- Administration of clients in the operations API (SPEC T1): operate_clients serves requests with the role of
-- manage_clients. It counts the requests of its callers. SQL functions store its responses, so that the role reads no
-- stored response of another route.

GRANT SELECT, INSERT, UPDATE (tokens, filled_at) ON client_buckets TO grantwire_clients;
