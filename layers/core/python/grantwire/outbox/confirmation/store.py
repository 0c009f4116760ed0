"""The SQL of the confirmation of published events (W1): the tables outbox_confirmation and outbox_unconfirmed.

Each statement is bounded. Two relays whose turns overlap do no harm: what they write is checked against the rows.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from grantwire.database import Connection
    from grantwire.jetstream.stream_state import StreamState


# How long to wait for the entitlements of the events to put back.
_LOCK_WAIT = timedelta(seconds=1)


class PublishedEvent(NamedTuple):
    """An event that was published, and where."""

    event_id: str
    stream_sequence: int | None
    published_at: datetime


class Turn(NamedTuple):
    """The turn of one relay: the time of the check, and what the last check knew about the stream.

    `newest` was one of the newest events then, and `latest` is one now. Neither is covered by a known loss.
    """

    token: str
    now: datetime
    stream: str | None
    stream_created_at: datetime | None
    generation_since: datetime | None
    first_sequence: int | None
    last_sequence: int | None
    deleted_messages: int | None
    losses_until: datetime | None
    newest: PublishedEvent | None
    latest: PublishedEvent | None


# The mark goes back if the clock of the database does. `latest` has the highest sequence of the last events.
_BEGIN = """
WITH turn AS (
  UPDATE outbox_confirmation c
     SET claim = %(token)s, lease_until = m.now + %(lease)s, checked_at = m.now,
         mark = least(c.mark, m.now - %(grace)s::interval)
    FROM (SELECT coalesce(%(now)s::timestamptz, now()) AS now) AS m
   WHERE (c.claim IS NULL OR c.lease_until <= m.now)
     AND (c.has_more OR c.checked_at IS NULL OR c.checked_at <= m.now - %(interval)s::interval OR c.checked_at > m.now)
  RETURNING c.*)
SELECT t.checked_at, t.stream, t.stream_created_at, t.generation_since, t.first_sequence, t.last_sequence,
       t.deleted_messages, t.losses_until, t.newest_event_id::text, t.newest_sequence, t.newest_published_at,
       latest.event_id::text, latest.stream_sequence, latest.published_at
  FROM turn t
  LEFT JOIN LATERAL (
       SELECT last.*
         FROM (SELECT o.event_id, o.stream_sequence, o.published_at FROM outbox_events o
                WHERE o.published_at IS NOT NULL ORDER BY o.published_at DESC LIMIT 20) AS last
        WHERE last.published_at > coalesce(t.losses_until, '-infinity')
          AND last.published_at > coalesce(t.generation_since, '-infinity')
        ORDER BY last.stream_sequence DESC NULLS LAST LIMIT 1) AS latest ON true
"""


def begin(
    tx: Connection, token: str, *, interval: timedelta, grace: timedelta, lease: timedelta, now: datetime | None = None
) -> Turn | None:
    """Take the turn to check, if the last check is an interval ago and no other relay has it."""
    parameters = {"token": token, "interval": interval, "grace": grace, "lease": lease, "now": now}
    row = tx.execute(_BEGIN, parameters).fetchone()
    if row is None:
        return None
    return Turn._make((token, *row[:8], _to_event(row[8:11]), _to_event(row[11:14])))


def _to_event(columns: Sequence[object]) -> PublishedEvent | None:
    return None if columns[0] is None else PublishedEvent._make(columns)


_NEXT_TURN = """
UPDATE outbox_confirmation
   SET claim = NULL, lease_until = NULL, has_more = %(has_more)s,
       completed_at = CASE WHEN %(completed)s THEN checked_at ELSE completed_at END
 WHERE claim = %(token)s
"""


def end(tx: Connection, token: str, *, completed: bool, has_more: bool) -> None:
    """Give the turn back. If there is more to do, the next turn begins at once."""
    tx.execute(_NEXT_TURN, {"token": token, "completed": completed, "has_more": has_more})


_REMEMBER = """
UPDATE outbox_confirmation c
   SET stream = %(stream)s, stream_created_at = %(created_at)s, first_sequence = %(first)s, last_sequence = %(last)s,
       deleted_messages = %(deleted)s,
       generation_since = CASE WHEN c.stream = %(stream)s AND c.stream_created_at = %(created_at)s
                               THEN c.generation_since ELSE %(now)s END,
       losses_until = CASE WHEN %(lost)s THEN %(now)s ELSE c.losses_until END,
       newest_event_id = %(newest_id)s::uuid, newest_sequence = %(newest_sequence)s,
       newest_published_at = %(newest_at)s
 WHERE c.claim = %(token)s
"""


def remember(
    tx: Connection, turn: Turn, stream: str, state: StreamState, newest: PublishedEvent | None, *, lost: bool
) -> None:
    """Keep what the stream looks like now; `lost` if a loss was recorded that covers the events until now."""
    tx.execute(
        _REMEMBER,
        {
            "token": turn.token,
            "now": turn.now,
            "stream": stream,
            "created_at": state.created_at,
            "first": state.first_sequence,
            "last": state.last_sequence,
            "deleted": state.deleted_messages,
            "lost": lost,
            "newest_id": newest.event_id if newest else None,
            "newest_sequence": newest.stream_sequence if newest else None,
            "newest_at": newest.published_at if newest else None,
        },
    )


# The mark passes finished events, and lists the others until there is no room. It is a scalar subquery, because the
# planner would join a table by another plan (ADR 0045). An event whose message is a dead letter is not listed: an
# open or discarded one finishes it, and a redriven one is confirmed in notification_nats_dlq.
SCAN = """
WITH page AS MATERIALIZED (
  SELECT o.event_id, o.stream_sequence, o.published_at, o.created_at FROM outbox_events o
   WHERE o.published_at > (SELECT c.mark FROM outbox_confirmation c)
     AND o.published_at < %(now)s::timestamptz - %(grace)s::interval
   ORDER BY o.published_at FETCH FIRST %(limit)s ROWS WITH TIES),
absent AS MATERIALIZED (
  SELECT p.* FROM page p WHERE NOT EXISTS (SELECT FROM processed_events e WHERE e.event_id = p.event_id)),
missing AS MATERIALIZED (
  SELECT a.*, row_number() OVER (ORDER BY a.published_at, a.stream_sequence) AS place FROM absent a
   WHERE NOT EXISTS (SELECT FROM notification_nats_dlq d
                      WHERE d.event_id = a.event_id AND d.stream_seq = a.stream_sequence)),
listed AS (
  INSERT INTO outbox_unconfirmed AS u (event_id, state, changed_at, stream_sequence, found_at)
  SELECT m.event_id, 'WAITING', m.created_at, m.stream_sequence, %(now)s::timestamptz FROM missing m
   WHERE m.place <= %(room)s
      ON CONFLICT (event_id) DO UPDATE
     SET state = 'WAITING', stream_sequence = EXCLUDED.stream_sequence, found_at = EXCLUDED.found_at,
         passed_at = NULL, examined_at = NULL
   WHERE u.stream_sequence IS DISTINCT FROM EXCLUDED.stream_sequence OR u.state = 'REPUBLISHED'
  RETURNING 1),
moved AS (
  UPDATE outbox_confirmation c SET mark = x.at
    FROM (SELECT max(p.published_at) AS at FROM page p
           WHERE p.published_at < (SELECT coalesce(min(m.published_at), 'infinity') FROM missing m
                                    WHERE m.place > %(room)s)) AS x
   WHERE c.claim = %(token)s AND x.at > c.mark
  RETURNING 1)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM listed), (SELECT count(*) FROM moved)
"""


class Scan(NamedTuple):
    """What a page of the scan found: events read, unfinished events listed, and whether the mark moved."""

    read: int
    listed: int
    moved: bool


def scan(tx: Connection, turn: Turn, *, grace: timedelta, limit: int, room: int) -> Scan:
    """Move the mark over one page of events, and list the unfinished ones, at most `room`."""
    parameters = {"token": turn.token, "now": turn.now, "grace": grace, "limit": limit, "room": room}
    row = tx.execute(SCAN, parameters).fetchone()
    return Scan(0, 0, moved=False) if row is None else Scan(row[0], row[1], moved=row[2] > 0)


_COUNT_LISTED = "SELECT count(*) FROM (SELECT FROM outbox_unconfirmed WHERE state = 'WAITING' LIMIT %(limit)s) AS w"


def count_waiting(tx: Connection, limit: int) -> int:
    """Return how many unfinished events are listed as WAITING, at most `limit`."""
    row = tx.execute(_COUNT_LISTED, {"limit": limit}).fetchone()
    return 0 if row is None else int(row[0])


_COUNT_UNCONFIRMED = "SELECT count(*) FROM (SELECT FROM outbox_unconfirmed LIMIT 10000) AS listed"


def count_unconfirmed(tx: Connection) -> int:
    """Return how many unfinished events are listed, at most 10,000."""
    row = tx.execute(_COUNT_UNCONFIRMED).fetchone()
    return 0 if row is None else int(row[0])


class UnconfirmedEvent(NamedTuple):
    """A listed event that is neither in the inbox nor a dead letter; `passed_at` as in outbox_unconfirmed."""

    event_id: str
    stream_sequence: int | None
    passed_at: datetime | None


# Those of the page that are finished, or that are no longer published where they were, leave the list.
_EXAMINE = """
WITH page AS MATERIALIZED (
  SELECT u.event_id, u.state, u.stream_sequence, u.passed_at FROM outbox_unconfirmed u
   WHERE u.examined_at IS NULL OR u.examined_at < %(now)s
   ORDER BY u.examined_at NULLS FIRST, u.stream_sequence LIMIT %(limit)s),
judged AS MATERIALIZED (
  SELECT p.*,
         EXISTS (SELECT FROM processed_events e WHERE e.event_id = p.event_id)
         OR EXISTS (SELECT FROM notification_nats_dlq d JOIN outbox_events o ON o.event_id = d.event_id
                     WHERE d.event_id = p.event_id AND d.stream_seq = o.stream_sequence)
         OR NOT EXISTS (SELECT FROM outbox_events o
                         WHERE o.event_id = p.event_id AND o.status NOT IN ('FAILED', 'DISCARDED')
                           AND (p.state = 'REPUBLISHED' OR (
                                o.status = 'PUBLISHED'
                                AND o.stream_sequence IS NOT DISTINCT FROM p.stream_sequence))) AS is_over
    FROM page p),
removed AS (
  DELETE FROM outbox_unconfirmed u USING judged j WHERE u.event_id = j.event_id AND j.is_over RETURNING 1),
examined AS (
  UPDATE outbox_unconfirmed u SET examined_at = %(now)s FROM judged j WHERE u.event_id = j.event_id AND NOT j.is_over
  RETURNING 1)
SELECT j.event_id::text, j.stream_sequence, j.passed_at, (SELECT count(*) FROM page), (SELECT count(*) FROM removed),
       (SELECT count(*) FROM examined)
  FROM judged j WHERE NOT j.is_over AND j.state = 'WAITING'
UNION ALL
SELECT NULL, NULL, NULL, (SELECT count(*) FROM page), (SELECT count(*) FROM removed), (SELECT count(*) FROM examined)
"""


class Examination(NamedTuple):
    """A page of the list: the events that are still waiting, how many were read, and how many left the list."""

    waiting: list[UnconfirmedEvent]
    read: int
    removed: int


def examine(tx: Connection, turn: Turn, *, limit: int) -> Examination:
    """Remove finished events from the next page of the list, and return those that wait; each once in a turn."""
    rows = tx.execute(_EXAMINE, {"now": turn.now, "limit": limit}).fetchall()
    waiting = [UnconfirmedEvent(*row[:3]) for row in rows if row[0] is not None]
    return Examination(waiting, rows[-1][3], rows[-1][4])


_MARK_PASSED = """
UPDATE outbox_unconfirmed SET passed_at = %(now)s
 WHERE event_id = ANY (%(ids)s::uuid[]) AND passed_at IS NULL AND state = 'WAITING'
"""


def mark_passed(tx: Connection, turn: Turn, event_ids: Sequence[str]) -> None:
    """Note that the stream has the messages of these events, but its consumer will not deliver them again."""
    tx.execute(_MARK_PASSED, {"ids": list(event_ids), "now": turn.now})


_PUT_BACK = """
SELECT put_back, too_old FROM outbox_put_back(
    %(ids)s::uuid[], %(sequences)s::bigint[], %(cause)s, %(loss_id)s, %(arrived)s, %(oldest)s, %(backoff)s,
    %(lock_wait_ms)s, %(now)s)
"""


class PutBack(NamedTuple):
    """How many events were put back, and how many are too old for that."""

    put_back: int
    too_old: int


def put_back(  # noqa: PLR0913 - passed by name
    tx: Connection,
    events: Sequence[tuple[str, int | None]],
    *,
    cause: str,
    oldest: datetime,
    backoff: timedelta,
    now: datetime,
    loss_id: int | None = None,
    arrived: bool = False,
    lock_wait: timedelta = _LOCK_WAIT,
) -> PutBack | None:
    """Put back events that were lost, each with the sequence of its lost message (infra/sql: outbox_put_back).

    Return None, and change nothing, if another transaction holds one of their entitlements for `lock_wait`.
    """
    ids, sequences = zip(*events, strict=True)
    parameters = {
        "ids": list(ids),
        "sequences": list(sequences),
        "cause": cause,
        "loss_id": loss_id,
        "arrived": arrived,
        "oldest": oldest,
        "backoff": backoff,
        "lock_wait_ms": int(lock_wait.total_seconds() * 1000),
        "now": now,
    }
    row = tx.execute(_PUT_BACK, parameters).fetchone()
    return None if row is None or row[0] is None else PutBack(*row)
