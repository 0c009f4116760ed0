-- Sets failed_at when an outbox event becomes FAILED, and removes it when the event is redriven or discarded. The time of
-- the failure is in next_retry_at. A trigger calls it (infra/sql/triggers.sql).
CREATE OR REPLACE FUNCTION outbox_events_failed_at() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.failed_at := CASE NEW.status WHEN 'FAILED' THEN NEW.next_retry_at END;
    RETURN NEW;
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_events_failed_at FROM PUBLIC;
