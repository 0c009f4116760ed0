-- Every administrative action leaves a row in operator_actions, in the transaction of the action (SPEC G4; ADR 0029):
-- also those on clients and on the read model, not only those on dead letters. `source` says where the command came from.
--
-- A trigger refuses changes of existing rows (infra/sql/after_functions.sql). The owner of the schema can disable it.

ALTER TABLE entitlement_audit VALIDATE CONSTRAINT entitlement_audit_caller_length;
ALTER TABLE entitlement_audit VALIDATE CONSTRAINT entitlement_audit_detail_length;
ALTER TABLE idempotency_keys VALIDATE CONSTRAINT idempotency_keys_caller_length;

ALTER TABLE operator_actions
    -- The default is for rows of earlier releases, and for their functions until the new ones are deployed.
    ADD COLUMN source text NOT NULL DEFAULT 'not recorded',
    ADD COLUMN client_id text COLLATE "C",
    ALTER COLUMN dead_letter_ids DROP NOT NULL,
    DROP CONSTRAINT operator_actions_action,
    DROP CONSTRAINT operator_actions_kind,
    DROP CONSTRAINT operator_actions_count,
    DROP CONSTRAINT operator_actions_actor,
    DROP CONSTRAINT operator_actions_reason,
    ADD CONSTRAINT operator_actions_action CHECK (
        CASE kind WHEN 'client' THEN action IN ('create', 'rotate', 'revoke')
                  WHEN 'read_model' THEN action = 'rebuild'
                  WHEN 'outbox' THEN action IN ('redrive', 'discard')
                  WHEN 'notification' THEN action IN ('redrive', 'discard')
                  WHEN 'nats' THEN action IN ('redrive', 'discard')
                  ELSE false END),
    -- No role but the owner can insert both columns, so a role can only record actions of its own kind.
    ADD CONSTRAINT operator_actions_client CHECK ((kind = 'client') = (client_id IS NOT NULL)),
    ADD CONSTRAINT operator_actions_dead_letters
        CHECK ((kind IN ('outbox', 'notification', 'nats')) = (dead_letter_ids IS NOT NULL)),
    ADD CONSTRAINT operator_actions_count
        CHECK (count >= 0 AND (dead_letter_ids IS NULL OR count = cardinality(dead_letter_ids))),
    ADD CONSTRAINT operator_actions_actor CHECK (char_length(actor) BETWEEN 1 AND 500),
    ADD CONSTRAINT operator_actions_reason CHECK (char_length(reason) BETWEEN 1 AND 500),
    ADD CONSTRAINT operator_actions_source CHECK (char_length(source) BETWEEN 1 AND 500);

CREATE INDEX operator_actions_client ON operator_actions (client_id, occurred_at) WHERE client_id IS NOT NULL;

COMMENT ON TABLE operator_actions IS 'Administrative actions. Rows are only added, and the sweep never deletes them.';
COMMENT ON COLUMN operator_actions.source IS
    'Where the command came from, stated by the program that executed it: function and request id, or host and program.';
COMMENT ON COLUMN operator_actions.selection IS 'The parameters of the command, without secrets.';
COMMENT ON COLUMN operator_actions.count IS
    'How many dead letters, clients or rows of the read model this transaction changed.';

GRANT INSERT (source) ON operator_actions TO grantwire_functions;
GRANT INSERT (action_id, batch, actor, reason, source, action, kind, selection, dry_run, client_id, count)
   ON operator_actions TO grantwire_clients;
