-- Returns up to which time every change has arrived: it was SENT, or it is an open dead letter (W3). The JSON object has
-- that time (`through`), its age, and for each stage the time of its oldest change that has not arrived; `held_back_by` is
-- the stage with the oldest one.
--
--   transactions   a running transaction that writes entitlements or events: when it started
--   times          a start or an end of an entitlement that is due and not recorded: when it was due
--   outbox         an event that is not published. Events behind an open dead letter are not counted
--   stream         a published event that neither the inbox nor a dead letter has, or a redriven one
--   notifications  a notification that is not SENT and not FAILED
--
-- Each stage has an index by the time of the change, so that the cost does not depend on the size of the tables. Two
-- searches read at most p_cap rows: published events behind the mark of the confirmation, and events that are published
-- again although they have arrived. Behind such a limit the result is earlier than it could be, never later.
--
-- VOLATILE: the running transactions are read before the snapshot of the stages. A change is in one of the two, because a
-- transaction locks the table before it takes the time of its change. Transactions of other logins are seen only if the
-- owner of the schema has the privileges of pg_read_all_stats. enable_seqscan is off for the reason in operations_status.
CREATE OR REPLACE FUNCTION settled_through(p_cap integer, p_grace interval, p_now timestamptz DEFAULT NULL)
RETURNS jsonb LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    now     timestamptz := coalesce(p_now, now());
    writing timestamptz;
    stages  record;
    settled timestamptz;
BEGIN
    -- The owner sees the transactions of every login, unless it lacks a privilege. Then this role sees its own.
    writing := least(oldest_writing_transaction_of_all(), oldest_writing_transaction());

    SELECT least((SELECT e.starts_at FROM entitlements e
                   WHERE e.start_pending AND e.starts_at <= now ORDER BY e.starts_at LIMIT 1),
                 (SELECT e.expires_at + p_grace FROM entitlements e
                   WHERE e.status = 'ACTIVE' AND e.expires_at <= now - p_grace ORDER BY e.expires_at LIMIT 1)) AS times,
           outbox_oldest_unpublished(p_cap) AS outbox,
           outbox_oldest_unconfirmed(p_cap) AS stream,
           (SELECT n.occurred_at FROM notifications n
             WHERE n.next_retry_at IS NOT NULL ORDER BY n.occurred_at LIMIT 1) AS notifications
      INTO stages;

    settled := least(now, writing, stages.times, stages.outbox, stages.stream, stages.notifications);
    RETURN jsonb_build_object(
        'through', rfc3339(settled), 'age_seconds', extract(epoch FROM now - settled),
        'held_back_by', CASE WHEN settled < now THEN
            CASE settled WHEN stages.notifications THEN 'notifications' WHEN stages.stream THEN 'stream'
                         WHEN stages.outbox THEN 'outbox' WHEN stages.times THEN 'times' ELSE 'transactions' END END,
        'oldest', jsonb_build_object(
            'transactions', rfc3339(writing), 'times', rfc3339(stages.times), 'outbox', rfc3339(stages.outbox),
            'stream', rfc3339(stages.stream), 'notifications', rfc3339(stages.notifications)));
END
$$;

REVOKE EXECUTE ON FUNCTION settled_through FROM PUBLIC;
GRANT EXECUTE ON FUNCTION settled_through TO grantwire_functions;
