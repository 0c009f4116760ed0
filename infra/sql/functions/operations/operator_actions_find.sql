-- The newest p_limit actions of operators on these dead letters, newest first, as a JSON array
-- (G4, T1, T2). At most 1,000 dead letters can be given.
--
-- The function runs with the privileges of the schema owner: the role of the functions can add actions, but not read
-- them. The result tells a caller only about objects whose ids it knows.
CREATE OR REPLACE FUNCTION operator_actions_find(p_dead_letter_ids uuid[], p_limit integer)
RETURNS jsonb LANGUAGE plpgsql STABLE SECURITY DEFINER SET enable_seqscan = off AS $$
BEGIN
    IF cardinality(p_dead_letter_ids) > 1000 OR p_limit > 1000 THEN
        RAISE EXCEPTION 'at most 1000 dead letters and 1000 actions' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN coalesce((
        SELECT jsonb_agg(jsonb_build_object(
                 'action_id', a.action_id, 'action', a.action, 'actor', a.actor, 'reason', a.reason,
                 'source', a.source, 'dry_run', a.dry_run, 'at', rfc3339(a.occurred_at),
                 'dead_letter_ids', a.ids) ORDER BY a.occurred_at DESC, a.batch DESC)
          FROM (SELECT o.*, ARRAY(SELECT unnest(o.dead_letter_ids)
                                  INTERSECT SELECT unnest(p_dead_letter_ids)) AS ids
                  FROM operator_actions o
                 WHERE o.dead_letter_ids && p_dead_letter_ids
                 ORDER BY o.occurred_at DESC
                 LIMIT p_limit) AS a), '[]');
END
$$;

-- A SECURITY DEFINER function must find only the tables of this schema, never a temporary table of its caller.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION operator_actions_find SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION operator_actions_find FROM PUBLIC;
GRANT EXECUTE ON FUNCTION operator_actions_find TO grantwire_functions;
