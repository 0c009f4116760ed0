-- The scopes of the change feed (SPEC K9) and of operators (T1). The scope `ops`, which no route required, becomes the two
-- scopes of operators.

ALTER TABLE api_clients DROP CONSTRAINT api_clients_scopes;

UPDATE api_clients SET scopes = array_remove(scopes, 'ops') || ARRAY['ops:read', 'ops:write'] WHERE 'ops' = ANY (scopes);

ALTER TABLE api_clients ADD CONSTRAINT api_clients_scopes CHECK (
    cardinality(scopes) BETWEEN 1 AND 7
    AND scopes <@ ARRAY['entitlements:write', 'entitlements:read', 'notifications:read', 'changes:read', 'ops:read',
                        'ops:write', 'clients:write']);
