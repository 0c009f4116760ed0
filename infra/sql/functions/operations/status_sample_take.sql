-- Writes the sample of the current minute (T8) and returns it as JSON, with the numbers that only the metrics need
-- (T7). Returns NULL if the minute has a sample already: of several workers one writes it. p_late_after has the seconds
-- after which each worker is late, p_grace the grace of entitlements.
CREATE OR REPLACE FUNCTION status_sample_take(p_late_after jsonb, p_grace interval, p_now timestamptz DEFAULT NULL)
RETURNS jsonb LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now    timestamptz := coalesce(p_now, now());
    minute timestamptz := date_trunc('minute', coalesce(p_now, now()));
    status jsonb;
    settled jsonb;
    taken  status_samples;
BEGIN
    IF EXISTS (SELECT FROM status_samples s WHERE s.sampled_at = minute) THEN
        RETURN NULL;
    END IF;
    settled := settled_through(10000, p_grace, now);
    status := operations_status(10000, now);
    INSERT INTO status_samples AS s
    SELECT minute, (status#>>'{outbox,pending}')::bigint + (status#>>'{outbox,in_flight}')::bigint,
           (status#>>'{outbox,failed}')::bigint, (status#>>'{outbox,oldest_pending_seconds}')::double precision,
           (SELECT (w.result->>'consumer_lag')::bigint FROM worker_heartbeats w
             WHERE w.worker = 'bridge_events'
               AND coalesce((w.result->>'consumer_lag_at')::timestamptz, w.finished_at) 
                   > now - (p_late_after->>'bridge_events')::double precision / 2 * interval '1 second'),
           (status#>>'{notifications,pending}')::bigint + (status#>>'{notifications,processing}')::bigint,
           (status#>>'{dead_letters,open}')::bigint, (status#>>'{outbox,published_last_minute}')::bigint,
           (status#>>'{notifications,processed_last_minute}')::bigint,
           (status#>>'{notifications,sent_last_minute}')::bigint,
           (settled->>'through')::timestamptz, (settled->>'age_seconds')::double precision
        ON CONFLICT (sampled_at) DO NOTHING
    RETURNING s.* INTO taken;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN to_jsonb(taken) || jsonb_build_object(
        'leases_expired', (status#>>'{outbox,expired}')::bigint + (status#>>'{notifications,expired}')::bigint
                          + (status#>>'{commands,expired}')::bigint,
        'months_missing', greatest(0, 3 - (status#>>'{partitions,months_ahead}')::bigint),
        'workers_late', (SELECT count(*) FROM worker_heartbeats w
                          WHERE greatest(w.finished_at, w.resumed_at)
                                < now - (p_late_after->>w.worker)::double precision * interval '1 second'));
END
$$;

REVOKE EXECUTE ON FUNCTION status_sample_take FROM PUBLIC;
GRANT EXECUTE ON FUNCTION status_sample_take TO grantwire_functions;
