-- The trigger function that keeps user_summaries equal to the rows of user_entitlements, for every statement that
-- changes them: events, rebuilds, and corrections by hand (G6). rows_before and rows_after are the transition
-- tables of the triggers in infra/sql/triggers.sql.
CREATE OR REPLACE FUNCTION user_summaries_maintain() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    before user_entitlements[] := '{}';
    after  user_entitlements[] := '{}';
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        PERFORM user_summaries_lock();
        DELETE FROM user_summaries;
        RETURN NULL;
    END IF;
    IF TG_OP IN ('UPDATE', 'DELETE') THEN
        before := ARRAY(SELECT ROW (b.*)::user_entitlements FROM rows_before b);
    END IF;
    IF TG_OP IN ('INSERT', 'UPDATE') THEN
        after := ARRAY(SELECT ROW (a.*)::user_entitlements FROM rows_after a);
    END IF;
    IF cardinality(before) + cardinality(after) > 0 THEN
        PERFORM user_summaries_apply(before, after);
    END IF;
    RETURN NULL;
END
$$;

REVOKE EXECUTE ON FUNCTION user_summaries_maintain FROM PUBLIC;
GRANT EXECUTE ON FUNCTION user_summaries_maintain TO grantwire_functions;
