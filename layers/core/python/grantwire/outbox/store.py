"""The SQL of the table outbox_events: claim, renew, complete, fail and release events (O2), redrive and discard them.

Completing, redriving and discarding take two statements each, so they are SQL functions
(infra/sql/functions/outbox_*.sql).
"""

from __future__ import annotations

import json
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from grantwire.database import Connection
    from grantwire.workers.leases import Completion, Failure


class ClaimedEvent(NamedTuple):
    """A claimed outbox event; `reclaimed` means that an earlier claim of it expired.

    `republication` is how often it was put back because the stream had lost it; None if never.
    """

    event_id: str
    event_type: str
    aggregate_key: str
    aggregate_version: int
    payload: Any
    trace_id: str | None
    attempt_count: int
    reclaimed: bool
    republication: int | None = None


_by_aggregate_and_version = attrgetter("aggregate_key", "aggregate_version")


# Claims due heads, oldest first. Behind each head that never failed it claims a run of successors, up to the first gap.
# It reclaims at most one head whose lease expired: that event may have killed its worker, and the others must not lose
# an attempt if it does so again.
#
# An event that was never tried has the next_retry_at with which it was created. It is due whatever the clock says, so
# that a clock that was set back does not delay it (W6).
#
# Two details keep the planner on the indexes even with stale statistics. The CASE has no statistics, so the planner
# cannot assume that few heads are due and that sorting all of them is cheap. It expects an array to be short, while it
# might expect a join to be large. Rows are updated by event_id, not by ctid, because the ctid of a head that another
# transaction has updated since the snapshot is outdated.
CLAIM = """
WITH heads AS MATERIALIZED (
  SELECT event_id, aggregate_key, aggregate_version, status, attempt_count
    FROM outbox_events
   WHERE ready
     AND CASE WHEN status <> 'PENDING' THEN lease_until
              WHEN next_retry_at > created_at THEN next_retry_at
              ELSE '-infinity' END <= coalesce(%(now)s::timestamptz, now())
   ORDER BY created_at
   LIMIT %(limit)s
     FOR UPDATE SKIP LOCKED),
fresh AS MATERIALIZED (
  SELECT aggregate_key, aggregate_version, %(limit)s / count(*) OVER () - 1 AS room
    FROM heads
   WHERE status = 'PENDING' AND attempt_count = 0),
followers AS MATERIALIZED (
  SELECT f.event_id, f.aggregate_version - h.aggregate_version AS distance,
         row_number() OVER (PARTITION BY h.aggregate_key ORDER BY f.aggregate_version) AS place
    FROM fresh h
   CROSS JOIN LATERAL (
         SELECT o.event_id, o.aggregate_version
           FROM outbox_events o
          WHERE o.aggregate_key = h.aggregate_key AND o.aggregate_version > h.aggregate_version
            AND o.published_at IS NULL AND o.discarded_at IS NULL AND o.attempt_count = 0
            AND o.status = 'PENDING'
            AND (o.next_retry_at <= o.created_at OR o.next_retry_at <= coalesce(%(now)s::timestamptz, now()))
          ORDER BY o.aggregate_version
          LIMIT h.room
            FOR UPDATE OF o SKIP LOCKED) f
   WHERE h.room > 0)
UPDATE outbox_events o
   SET status = 'IN_FLIGHT', locked_by = %(token)s, locked_at = coalesce(%(now)s::timestamptz, now()),
       lease_until = coalesce(%(now)s::timestamptz, now()) + %(lease)s,
       attempt_count = o.attempt_count + (o.status = 'IN_FLIGHT')::integer,
       last_error = CASE o.status WHEN 'IN_FLIGHT' THEN 'the lease of ' || o.locked_by || ' expired' END
 WHERE o.event_id = ANY (ARRAY(
         SELECT event_id FROM heads WHERE status = 'PENDING'
         UNION ALL (SELECT event_id FROM heads WHERE status = 'IN_FLIGHT' LIMIT 1)
         UNION ALL SELECT event_id FROM followers WHERE distance = place))
RETURNING o.event_id::text, o.event_type, o.aggregate_key, o.aggregate_version, o.payload::text, o.trace_id,
          o.attempt_count, o.last_error IS NOT NULL, o.republication
"""

# Faster than json.loads, which also detects the encoding and skips surrounding whitespace. PostgreSQL's JSON text needs
# neither.
_decode_json = json.JSONDecoder().raw_decode


def claim(
    tx: Connection, token: str, *, limit: int, lease: timedelta, now: datetime | None = None
) -> list[ClaimedEvent]:
    """Claim up to `limit` events: due heads and the runs behind them, sorted by aggregate and version.

    Reclaiming an event whose lease expired counts as one failed attempt. If that was the last attempt, the caller must
    fail the event.
    """
    rows = tx.execute(CLAIM, {"token": token, "limit": limit, "lease": lease, "now": now}).fetchall()
    events = [ClaimedEvent._make((*row[:4], _decode_json(row[4])[0], *row[5:])) for row in rows]
    events.sort(key=_by_aggregate_and_version)
    return events


def get_id(event: ClaimedEvent) -> str:
    """Return the id of a claimed event."""
    return event.event_id


def _to_array(event_ids: Sequence[str]) -> str:
    """Format ids as the text of a PostgreSQL array."""
    return "{" + ",".join(event_ids) + "}"


# This and the next statements lock the events in the order of aggregate and version before they change them (W7). A
# change locks the event that its own event will follow, so an update in any other order could deadlock with a batch.
_RENEW = """
UPDATE outbox_events
   SET lease_until = coalesce(%(now)s::timestamptz, now()) + %(lease)s
 WHERE event_id = ANY (ARRAY(
         SELECT event_id FROM outbox_events
          WHERE event_id = ANY (%(ids)s::uuid[]) AND locked_by = %(token)s AND status = 'IN_FLIGHT'
          ORDER BY aggregate_key, aggregate_version
            FOR UPDATE))
"""


def renew(tx: Connection, token: str, ids: Sequence[str], *, lease: timedelta, now: datetime | None = None) -> int:
    """Extend the lease of events; return how many still belonged to the claim."""
    return tx.execute(_RENEW, {"token": token, "ids": _to_array(ids), "lease": lease, "now": now}).rowcount


_COMPLETE = "SELECT outbox_finalise(%(token)s, %(ids)s::uuid[], %(now)s, %(sequences)s::bigint[])"


def complete(tx: Connection, token: str, completions: Sequence[Completion], *, now: datetime | None = None) -> int:
    """Mark events PUBLISHED and make their successors claimable; return how many still belonged to the claim.

    The evidence of an event is the sequence number of its message in the stream.
    """
    ids, sequences = zip(*completions, strict=True)
    parameters = {"token": token, "ids": _to_array(ids), "now": now, "sequences": list(sequences)}
    row = tx.execute(_COMPLETE, parameters).fetchone()
    return 0 if row is None else int(row[0])


_FAIL = """
UPDATE outbox_events o
   SET status = CASE WHEN f.retry_after IS NULL THEN 'FAILED' ELSE 'PENDING' END,
       ready = o.ready AND f.retry_after IS NOT NULL,
       attempt_count = f.attempt_count,
       next_retry_at = coalesce(%(now)s::timestamptz, now()) + coalesce(f.retry_after, interval '0'),
       last_error = f.reason, locked_by = NULL, locked_at = NULL, lease_until = NULL
  FROM unnest(%(ids)s::uuid[], %(attempts)s::integer[], %(retries)s::interval[], %(reasons)s::text[])
       AS f (event_id, attempt_count, retry_after, reason)
 WHERE o.event_id = f.event_id
   AND o.event_id = ANY (ARRAY(
         SELECT event_id FROM outbox_events
          WHERE event_id = ANY (%(ids)s::uuid[]) AND locked_by = %(token)s AND status = 'IN_FLIGHT'
          ORDER BY aggregate_key, aggregate_version
            FOR UPDATE))
"""


def fail(tx: Connection, token: str, failures: Sequence[Failure], *, now: datetime | None = None) -> int:
    """Retry events later or mark them FAILED, each as decided; return how many still belonged to the claim."""
    return tx.execute(
        _FAIL,
        {
            "token": token,
            "ids": [failure.id for failure in failures],
            "attempts": [failure.decision.attempt_count for failure in failures],
            "retries": [failure.decision.retry_after for failure in failures],
            "reasons": [failure.reason for failure in failures],
            "now": now,
        },
    ).rowcount


_RELEASE = """
UPDATE outbox_events
   SET status = 'PENDING', locked_by = NULL, locked_at = NULL, lease_until = NULL
 WHERE event_id = ANY (ARRAY(
         SELECT event_id FROM outbox_events
          WHERE event_id = ANY (%(ids)s::uuid[]) AND locked_by = %(token)s AND status = 'IN_FLIGHT'
          ORDER BY aggregate_key, aggregate_version
            FOR UPDATE))
"""


def release(tx: Connection, token: str, ids: Sequence[str]) -> int:
    """Make events PENDING again without counting an attempt; return how many still belonged to the claim."""
    return tx.execute(_RELEASE, {"token": token, "ids": _to_array(ids)}).rowcount


_REDRIVE = "SELECT outbox_redrive(%(ids)s, %(now)s)"


def redrive(tx: Connection, event_ids: Sequence[UUID], now: datetime | None = None) -> list[UUID]:
    """Make FAILED events, and lost ones that are TOO_OLD, PENDING again; return the ids of those that were."""
    return [event_id for (event_id,) in tx.execute(_REDRIVE, {"ids": list(event_ids), "now": now})]


_DISCARD = "SELECT outbox_discard(%(ids)s, %(now)s)"


def discard(tx: Connection, event_ids: Sequence[UUID], now: datetime | None = None) -> list[UUID]:
    """Mark FAILED events, and lost ones that are TOO_OLD, DISCARDED; return the ids of those that were.

    The successors of FAILED ones become claimable.
    """
    return [event_id for (event_id,) in tx.execute(_DISCARD, {"ids": list(event_ids), "now": now})]


_OLDEST_AGE = """
SELECT extract(epoch FROM coalesce(%(now)s::timestamptz, now()) - created_at)::double precision
  FROM outbox_events
 WHERE ready
 ORDER BY created_at
 LIMIT 1
"""


def oldest_age_seconds(tx: Connection, now: datetime | None = None) -> float:
    """Return the age in seconds of the oldest head that is not FAILED; 0 if there is none."""
    row = tx.execute(_OLDEST_AGE, {"now": now}).fetchone()
    return 0.0 if row is None else max(0.0, float(row[0]))


_PROMOTE_STUCK = "SELECT outbox_promote_stuck()"


def promote_stuck(tx: Connection) -> int:
    """Make heads claimable that wrongly are not, and return how many; more than zero indicates a bug."""
    row = tx.execute(_PROMOTE_STUCK).fetchone()
    return 0 if row is None else int(row[0])
