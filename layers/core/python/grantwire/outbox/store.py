"""The SQL of outbox_events: how events are claimed, kept, closed, put off and given back (O2), redriven and discarded.

Whatever closes an event or wakes one from FAILED is an SQL function, because it takes two statements
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
    from grantwire.workers.leases import Failure


class ClaimedEvent(NamedTuple):
    """An event that is ours until its lease runs out; `reclaimed` means that somebody let it go before."""

    event_id: str
    event_type: str
    aggregate_key: str
    aggregate_version: int
    payload: Any
    trace_id: str | None
    attempt_count: int
    reclaimed: bool


_ORDER = attrgetter("aggregate_key", "aggregate_version")


# Heads, oldest first, and behind each head that was never in trouble a run of its successors, cut at the first gap. Of
# the heads whose lease ran out only one: it may be the one that killed its worker, and must not count against others.
# Two things keep the planner to the indexes, whatever its statistics say: with CASE it cannot believe that so few heads
# are due that all of them had better be read and sorted, and an array is short to it, where a join might be long. The
# rows are found by event_id, not by ctid: a head that changed since the snapshot has moved.
CLAIM = """
WITH heads AS MATERIALIZED (
  SELECT event_id, aggregate_key, aggregate_version, status, attempt_count
    FROM outbox_events
   WHERE ready
     AND CASE status WHEN 'PENDING' THEN next_retry_at ELSE lease_until END <= coalesce(%(now)s::timestamptz, now())
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
            AND o.status = 'PENDING' AND o.next_retry_at <= coalesce(%(now)s::timestamptz, now())
          ORDER BY o.aggregate_version
          LIMIT h.room
            FOR UPDATE OF o SKIP LOCKED) f
   WHERE h.room > 0)
UPDATE outbox_events o
   SET status = 'IN_FLIGHT', locked_by = %(token)s, locked_at = coalesce(%(now)s::timestamptz, now()),
       lease_until = coalesce(%(now)s::timestamptz, now()) + %(lease)s,
       attempt_count = o.attempt_count + (o.status = 'IN_FLIGHT')::integer,
       last_error = CASE o.status WHEN 'IN_FLIGHT' THEN 'the lease of ' || o.locked_by || ' ran out' END
 WHERE o.event_id = ANY (ARRAY(
         SELECT event_id FROM heads WHERE status = 'PENDING'
         UNION ALL (SELECT event_id FROM heads WHERE status = 'IN_FLIGHT' LIMIT 1)
         UNION ALL SELECT event_id FROM followers WHERE distance = place))
RETURNING o.event_id::text, o.event_type, o.aggregate_key, o.aggregate_version, o.payload::text, o.trace_id,
          o.attempt_count, o.last_error IS NOT NULL
"""

# PostgreSQL's own JSON needs no second look at its encoding, nor for what may stand around it.
_decode = json.JSONDecoder().raw_decode


def claim(
    tx: Connection, token: str, *, limit: int, lease: timedelta, now: datetime | None = None
) -> list[ClaimedEvent]:
    """Claim up to `limit` events: due heads and the runs behind them, in the order of aggregate and version.

    Taking over an event whose lease ran out counts as one failed attempt; the caller must fail it if that was the last.
    """
    rows = tx.execute(CLAIM, {"token": token, "limit": limit, "lease": lease, "now": now}).fetchall()
    events = [ClaimedEvent._make((*row[:4], _decode(row[4])[0], *row[5:])) for row in rows]
    events.sort(key=_ORDER)
    return events


def get_id(event: ClaimedEvent) -> str:
    """The key of a claimed row."""
    return event.event_id


def _array(event_ids: Sequence[str]) -> str:
    """Ids as PostgreSQL writes an array."""
    return "{" + ",".join(event_ids) + "}"


_RENEW = """
UPDATE outbox_events
   SET lease_until = coalesce(%(now)s::timestamptz, now()) + %(lease)s
 WHERE event_id = ANY (%(ids)s::uuid[]) AND locked_by = %(token)s AND status = 'IN_FLIGHT'
"""


def renew(tx: Connection, token: str, ids: Sequence[str], *, lease: timedelta, now: datetime | None = None) -> int:
    """Keep events for another lease; how many were still the claim's."""
    return tx.execute(_RENEW, {"token": token, "ids": _array(ids), "lease": lease, "now": now}).rowcount


_COMPLETE = "SELECT outbox_finalise(%(token)s, %(ids)s::uuid[], %(now)s)"


def complete(tx: Connection, token: str, ids: Sequence[str], *, now: datetime | None = None) -> int:
    """Mark events as published and let their successors follow; how many were still the claim's."""
    row = tx.execute(_COMPLETE, {"token": token, "ids": _array(ids), "now": now}).fetchone()
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
 WHERE o.event_id = f.event_id AND o.locked_by = %(token)s AND o.status = 'IN_FLIGHT'
"""


def fail(tx: Connection, token: str, failures: Sequence[Failure], *, now: datetime | None = None) -> int:
    """Put failed events off or give them up, each as decided; how many were still the claim's."""
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
 WHERE event_id = ANY (%(ids)s::uuid[]) AND locked_by = %(token)s AND status = 'IN_FLIGHT'
"""


def release(tx: Connection, token: str, ids: Sequence[str]) -> int:
    """Give events back as they were; how many were still the claim's."""
    return tx.execute(_RELEASE, {"token": token, "ids": _array(ids)}).rowcount


_REDRIVE = "SELECT outbox_redrive(%(ids)s, %(now)s)"


def redrive(tx: Connection, event_ids: Sequence[UUID], now: datetime | None = None) -> list[UUID]:
    """Try FAILED events again, as if for the first time, with the same ids; those that were FAILED."""
    return [event_id for (event_id,) in tx.execute(_REDRIVE, {"ids": list(event_ids), "now": now})]


_DISCARD = "SELECT outbox_discard(%(ids)s, %(now)s)"


def discard(tx: Connection, event_ids: Sequence[UUID], now: datetime | None = None) -> list[UUID]:
    """Close FAILED events unpublished and let their successors follow; those that were FAILED."""
    return [event_id for (event_id,) in tx.execute(_DISCARD, {"ids": list(event_ids), "now": now})]


_OLDEST_AGE = """
SELECT extract(epoch FROM coalesce(%(now)s::timestamptz, now()) - created_at)::double precision
  FROM outbox_events
 WHERE ready
 ORDER BY created_at
 LIMIT 1
"""


def oldest_age(tx: Connection, now: datetime | None = None) -> float:
    """Seconds that the oldest event has waited which may be published; 0 if there is none."""
    row = tx.execute(_OLDEST_AGE, {"now": now}).fetchone()
    return 0.0 if row is None else max(0.0, float(row[0]))


_PROMOTE_STUCK = "SELECT outbox_promote_stuck()"


def promote_stuck(tx: Connection) -> int:
    """Let aggregates flow that stand still for no reason; how many. More than zero is a bug to be told about."""
    row = tx.execute(_PROMOTE_STUCK).fetchone()
    return 0 if row is None else int(row[0])
