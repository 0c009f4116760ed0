-- Returns 16 hexadecimal digits that identify this history of the database (K9). Every cursor contains them. They
-- differ after a restore that continues from an earlier state, because transaction ids are then used a second time:
--
-- - a dump, restored anywhere: another cluster, another database or another table entitlement_audit
-- - a recovery to a point in time, and a promoted replica: another timeline
-- - installation_renew(), for restores that none of these shows
--
-- The timeline is that of the current write position, because pg_control_checkpoint() shows the old one until the first
-- checkpoint. Aurora may have neither cluster id nor timeline; then only the other parts count.
CREATE OR REPLACE FUNCTION installation_identity() RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    cluster  text := '-';
    timeline text := '-';
BEGIN
    BEGIN
        cluster := (SELECT c.system_identifier FROM pg_control_system() c);
    EXCEPTION WHEN feature_not_supported OR object_not_in_prerequisite_state OR insufficient_privilege THEN
        NULL;
    END;
    BEGIN
        timeline := left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
    EXCEPTION WHEN feature_not_supported OR object_not_in_prerequisite_state OR insufficient_privilege THEN
        NULL;
    END;
    RETURN (SELECT left(encode(sha256(convert_to(concat_ws('/', i.installation_id, cluster, timeline, d.oid,
                                                           'entitlement_audit'::regclass::oid), 'UTF8')), 'hex'), 16)
              FROM installation i, pg_database d
             WHERE d.datname = current_database());
END
$$;

REVOKE EXECUTE ON FUNCTION installation_identity FROM PUBLIC;
GRANT EXECUTE ON FUNCTION installation_identity TO grantwire_functions;
