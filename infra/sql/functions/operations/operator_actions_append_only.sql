-- Trigger function: refuses to change or delete the rows of operator_actions (G4). It applies to every role; only
-- the owner of the schema can disable the trigger.
CREATE OR REPLACE FUNCTION operator_actions_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'operator_actions is append-only: % is not allowed', TG_OP USING ERRCODE = 'restrict_violation';
END
$$;

REVOKE EXECUTE ON FUNCTION operator_actions_append_only FROM PUBLIC;
