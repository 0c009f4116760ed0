-- Takes at least p_count tokens from the bucket of a client, or none (G6). One call serves several requests: it
-- takes a tenth of the tokens in the bucket, if that is more. A tenth of what is left, not of the burst: so the first
-- request of another execution environment still finds tokens.
--
-- The bucket is full at first, gets `rate` tokens a second, and never holds more than `burst`. The limits of the client
-- in api_clients replace the defaults in the arguments; `burst` is the one that applies. `granted` is 0 if there are
-- too few tokens. Then p_count tokens, at least a tenth of the burst, are available after `retry_after` seconds, unless
-- p_count is greater than the burst. The row lock makes concurrent calls exact; p_now replaces the clock in tests.
--
-- A clock that was set back, or that of a new primary, adds no tokens: the bucket keeps what it has, and is filled from
-- the new time on.

CREATE OR REPLACE FUNCTION client_tokens_take(
    p_client_id text, p_rate integer, p_burst integer, p_now timestamptz DEFAULT NULL, p_count integer DEFAULT 1,
    OUT granted integer, OUT retry_after double precision, OUT burst integer
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    rate      integer;
    bucket    client_buckets;
    now       timestamptz;
    available double precision;
BEGIN
    SELECT c.rate_limit, c.burst_limit INTO rate, burst FROM api_clients c WHERE c.client_id = p_client_id;
    rate  := coalesce(rate, p_rate);
    burst := coalesce(burst, p_burst);

    LOOP
        SELECT * INTO bucket FROM client_buckets b WHERE b.client_id = p_client_id FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO client_buckets (client_id, tokens, filled_at)
        VALUES (p_client_id, burst, coalesce(p_now, clock_timestamp()))
            ON CONFLICT (client_id) DO NOTHING;
    END LOOP;

    -- After the lock, so that time does not run backwards between two concurrent calls.
    now         := coalesce(p_now, clock_timestamp());
    available   := least(burst, bucket.tokens + rate * greatest(0, extract(epoch FROM now - bucket.filled_at)));
    granted     := CASE WHEN available >= p_count THEN greatest(p_count, floor(available / 10)) ELSE 0 END;
    retry_after := CASE WHEN granted = 0 THEN (greatest(p_count, burst / 10.0) - available) / rate ELSE 0 END;
    UPDATE client_buckets SET tokens = available - granted, filled_at = now WHERE client_id = p_client_id;
END
$$;

REVOKE EXECUTE ON FUNCTION client_tokens_take FROM PUBLIC;
GRANT EXECUTE ON FUNCTION client_tokens_take TO grantwire_functions;
