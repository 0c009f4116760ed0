-- Allows one transaction at a time to write user_summaries. A statement can change entitlements of many users, and its
-- triggers for inserted and updated rows run one after the other. So two transactions could lock rows of user_summaries
-- in different orders and deadlock. The lock is always taken after the rows of user_entitlements are locked.
CREATE OR REPLACE FUNCTION user_summaries_lock() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    -- Two integers are a separate key space from the keys of single requests, which are one bigint.
    PERFORM pg_advisory_xact_lock(hashtext('grantwire'), hashtext('user_summaries'));
END
$$;

REVOKE EXECUTE ON FUNCTION user_summaries_lock FROM PUBLIC;
GRANT EXECUTE ON FUNCTION user_summaries_lock TO grantwire_functions;
