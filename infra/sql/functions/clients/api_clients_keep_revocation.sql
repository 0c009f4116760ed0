-- Trigger function: refuses to change or clear revoked_at once it is set (G3). It applies to every role; only the
-- owner of the schema can disable the trigger.
CREATE OR REPLACE FUNCTION api_clients_keep_revocation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'client % was revoked at %, and a revocation cannot be changed', OLD.client_id, OLD.revoked_at
        USING ERRCODE = 'restrict_violation';
END
$$;

REVOKE EXECUTE ON FUNCTION api_clients_keep_revocation FROM PUBLIC;
