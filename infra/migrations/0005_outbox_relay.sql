-- What the relay does to the outbox (SPEC O2, O5, O8, O9): close events, let their successors follow, wake up in time.
--
-- An event is open until it is published or discarded. `ready` marks the first open event of an aggregate, unless that
-- one has FAILED: then the aggregate stands still until an operator redrives or discards it. Whatever closes an event
-- calls outbox_promote in a second statement: its new snapshot shows what an enqueue committed while the first waited.
-- Rows are always locked in the order of aggregate and version, so that no two of these functions deadlock.

-- For retention. Neither mentions what a claim changes, so that a claim stays HOT.
CREATE INDEX outbox_events_published_at ON outbox_events (published_at) WHERE published_at IS NOT NULL;
CREATE INDEX outbox_events_discarded_at ON outbox_events (discarded_at) WHERE discarded_at IS NOT NULL;

-- Adds an event behind the earlier ones of its aggregate. The caller holds the lock on the aggregate's row, which gave
-- it p_aggregate_version. The share lock on the last open sibling closes a race: without it a relay could close that
-- sibling, not yet see this row, and leave it waiting for ever. Call it late in the transaction: the lock lasts to its end.
--
-- The wake-up stays last. An awake relay holds the lock (ASCII "gwawake!") and finds the event by itself; a NOTIFY in
-- every transaction would make all commits wait for each other.
CREATE OR REPLACE FUNCTION outbox_enqueue(
    p_event_id uuid, p_event_type text, p_aggregate_key text, p_aggregate_version bigint,
    p_payload jsonb, p_trace_id text
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM 1 FROM outbox_events o
      WHERE o.aggregate_key = p_aggregate_key AND o.published_at IS NULL AND o.discarded_at IS NULL
      ORDER BY o.aggregate_version DESC LIMIT 1
        FOR SHARE;
    INSERT INTO outbox_events (event_id, event_type, aggregate_key, aggregate_version, payload, trace_id, ready)
    VALUES (p_event_id, p_event_type, p_aggregate_key, p_aggregate_version, p_payload, p_trace_id, NOT FOUND);
    IF pg_try_advisory_xact_lock_shared(x'67776177616b6521'::bigint) THEN
        PERFORM pg_notify('outbox_events', '');
    END IF;
END
$$;

-- Makes the first open event of each aggregate ready, unless it has FAILED; how many were not ready before. Harmless to
-- repeat. The conditions on `o` are checked again if somebody changed the row in the meantime.
CREATE FUNCTION outbox_promote(p_aggregate_keys text[]) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    promoted integer;
BEGIN
    UPDATE outbox_events o
       SET ready = true
      FROM unnest(p_aggregate_keys) AS k (aggregate_key)
     CROSS JOIN LATERAL (
           SELECT x.event_id FROM outbox_events x
            WHERE x.aggregate_key = k.aggregate_key AND x.published_at IS NULL AND x.discarded_at IS NULL
            ORDER BY x.aggregate_version LIMIT 1) AS first
     WHERE o.event_id = first.event_id AND NOT o.ready AND o.status IN ('PENDING', 'IN_FLIGHT');
    GET DIAGNOSTICS promoted = ROW_COUNT;
    RETURN promoted;
END
$$;

-- Closes what the stream has, if it is still this claim's, and lets the successors follow; how many were closed.
CREATE FUNCTION outbox_finalise(p_claim text, p_event_ids uuid[], p_now timestamptz DEFAULT NULL)
RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    closed integer;
    keys   text[];
BEGIN
    WITH locked AS MATERIALIZED (
        SELECT o.event_id FROM outbox_events o
         WHERE o.event_id = ANY (p_event_ids) AND o.locked_by = p_claim AND o.status = 'IN_FLIGHT'
         ORDER BY o.aggregate_key, o.aggregate_version
           FOR UPDATE),
    published AS (
        UPDATE outbox_events o
           SET status = 'PUBLISHED', published_at = coalesce(p_now, now()), ready = false,
               locked_by = NULL, locked_at = NULL, lease_until = NULL
         WHERE o.event_id = ANY (ARRAY(SELECT l.event_id FROM locked l))
        RETURNING o.aggregate_key)
    SELECT count(*), array_agg(DISTINCT p.aggregate_key ORDER BY p.aggregate_key) INTO closed, keys FROM published p;
    PERFORM outbox_promote(keys);
    RETURN closed;
END
$$;

-- Gives FAILED events a new set of attempts; the ids that were FAILED. What is open before them is locked first: else
-- a relay could close it, still see FAILED here, and promote nothing.
CREATE FUNCTION outbox_redrive(p_event_ids uuid[], p_now timestamptz DEFAULT NULL)
RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ids  uuid[];
    keys text[];
BEGIN
    PERFORM 1 FROM outbox_events f
      JOIN outbox_events o ON o.aggregate_key = f.aggregate_key AND o.aggregate_version <= f.aggregate_version
     WHERE f.event_id = ANY (p_event_ids) AND f.status = 'FAILED'
       AND o.published_at IS NULL AND o.discarded_at IS NULL
     ORDER BY o.aggregate_key, o.aggregate_version
       FOR UPDATE OF o;
    WITH redriven AS (
        UPDATE outbox_events o
           SET status = 'PENDING', attempt_count = 0, next_retry_at = coalesce(p_now, now())
         WHERE o.event_id = ANY (p_event_ids) AND o.status = 'FAILED'
        RETURNING o.event_id, o.aggregate_key)
    SELECT array_agg(r.event_id), array_agg(DISTINCT r.aggregate_key ORDER BY r.aggregate_key)
      INTO ids, keys FROM redriven r;
    PERFORM outbox_promote(keys);
    RETURN QUERY SELECT unnest(ids);
END
$$;

-- Closes FAILED events unpublished and lets their successors follow; the ids that were FAILED.
CREATE FUNCTION outbox_discard(p_event_ids uuid[], p_now timestamptz DEFAULT NULL)
RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ids  uuid[];
    keys text[];
BEGIN
    PERFORM 1 FROM outbox_events o
     WHERE o.event_id = ANY (p_event_ids) AND o.status = 'FAILED'
     ORDER BY o.aggregate_key, o.aggregate_version
       FOR UPDATE;
    WITH discarded AS (
        UPDATE outbox_events o
           SET status = 'DISCARDED', discarded_at = coalesce(p_now, now())
         WHERE o.event_id = ANY (p_event_ids) AND o.status = 'FAILED'
        RETURNING o.event_id, o.aggregate_key)
    SELECT array_agg(d.event_id), array_agg(DISTINCT d.aggregate_key ORDER BY d.aggregate_key)
      INTO ids, keys FROM discarded d;
    PERFORM outbox_promote(keys);
    RETURN QUERY SELECT unnest(ids);
END
$$;

-- Looks for aggregates whose first open event is neither ready nor FAILED and lets them flow again; how many. There
-- should never be one: more than zero is a bug to be told about, and no reason to keep a right's events back.
CREATE FUNCTION outbox_promote_stuck() RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN outbox_promote(ARRAY(
        SELECT first.aggregate_key
          FROM (SELECT DISTINCT ON (o.aggregate_key) o.aggregate_key, o.ready, o.status
                  FROM outbox_events o
                 WHERE o.published_at IS NULL AND o.discarded_at IS NULL
                 ORDER BY o.aggregate_key, o.aggregate_version) AS first
         WHERE NOT first.ready AND first.status <> 'FAILED'));
END
$$;
