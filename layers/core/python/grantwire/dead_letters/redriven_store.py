"""The SQL of redriven dead letters whose events have not arrived yet (W1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from grantwire.dead_letters.store import Redrive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from grantwire.database import Connection

# A dead letter of the message that the redrive published takes the place of the redriven one. Others with the same
# event id do not count: anyone who can publish can cause them (G1).
_CONFIRM = """
UPDATE notification_nats_dlq d
   SET redrive_confirmed = true
 WHERE d.status = 'REDRIVEN' AND NOT d.redrive_confirmed AND d.event_id IS NOT NULL
   AND (EXISTS (SELECT FROM processed_events p WHERE p.event_id = d.event_id)
        OR EXISTS (SELECT FROM notification_nats_dlq n
                    WHERE n.event_id = d.event_id AND n.stream_seq = d.redriven_sequence
                      AND n.dead_letter_id <> d.dead_letter_id))
"""


def confirm(tx: Connection) -> int:
    """Mark redriven dead letters whose events arrived, or are dead letters again; return how many."""
    return tx.execute(_CONFIRM).rowcount


class Redriven(NamedTuple):
    """A redriven dead letter whose event has not arrived; the sequence is None if a crash left it unknown."""

    dead_letter_id: UUID
    event_id: str
    stream_sequence: int | None


# The wait doubles with each redrive, up to ten minutes. An old event is published again only if an operator forced it.
_FIND = """
SELECT d.dead_letter_id, d.event_id::text, d.redriven_sequence
  FROM notification_nats_dlq d
 WHERE d.status = 'REDRIVEN' AND NOT d.redrive_confirmed AND d.event_id IS NOT NULL
   AND d.redriven_at < %(now)s::timestamptz
                       - least(interval '10 minutes', %(grace)s::interval * 2 ^ least(d.redrive_count - 1, 20))
   AND (d.forced OR d.event_time >= %(oldest)s)
 ORDER BY d.redriven_at LIMIT %(limit)s
"""


def find_unconfirmed(
    tx: Connection, *, now: datetime, grace: timedelta, oldest: datetime, limit: int
) -> list[Redriven]:
    """Return redriven dead letters that should have arrived, oldest first; not those from before `oldest`."""
    parameters = {"now": now, "grace": grace, "oldest": oldest, "limit": limit}
    return [Redriven(*row) for row in tx.execute(_FIND, parameters)]


# As in begin_redrive: a number that was committed is used until its message is stored.
_BEGIN_AGAIN = """
UPDATE notification_nats_dlq d
   SET redrive_count = CASE WHEN d.redriven_sequence IS NULL THEN d.redrive_count ELSE next.number END,
       redrive_id = CASE WHEN d.redriven_sequence IS NULL THEN d.redrive_id
                    ELSE d.event_id || ':redrive:' || next.number END,
       redriven_sequence = NULL, redriven_at = %(now)s
  FROM (SELECT c.dead_letter_id, a.sequence,
               row_number() OVER (PARTITION BY c.event_id ORDER BY c.dead_letter_id)
               + (SELECT max(s.redrive_count) FROM notification_nats_dlq s WHERE s.event_id = c.event_id) AS number
          FROM unnest(%(ids)s::uuid[], %(sequences)s::bigint[]) AS a (dead_letter_id, sequence)
          JOIN notification_nats_dlq c USING (dead_letter_id)) AS next
 WHERE d.dead_letter_id = next.dead_letter_id AND d.status = 'REDRIVEN' AND NOT d.redrive_confirmed
   AND d.redriven_sequence IS NOT DISTINCT FROM next.sequence
   AND NOT EXISTS (SELECT FROM processed_events p WHERE p.event_id = d.event_id)
   AND NOT EXISTS (SELECT FROM notification_nats_dlq n
                    WHERE n.event_id = d.event_id AND n.stream_seq = d.redriven_sequence
                      AND n.dead_letter_id <> d.dead_letter_id)
RETURNING d.dead_letter_id, d.subject, d.headers, d.payload, d.redrive_id
"""


def begin_again(tx: Connection, lost: Sequence[Redriven], now: datetime) -> list[Redrive]:
    """Assign the next redrive id to dead letters whose copy is lost; commit before you publish them."""
    parameters = {
        "ids": [item.dead_letter_id for item in lost],
        "sequences": [item.stream_sequence for item in lost],
        "now": now,
    }
    return [Redrive(*row) for row in tx.execute(_BEGIN_AGAIN, parameters)]


_FINISH_AGAIN = """
UPDATE notification_nats_dlq d
   SET redriven_sequence = s.sequence, redriven_at = %(now)s
  FROM unnest(%(ids)s::uuid[], %(sequences)s::bigint[]) AS s (dead_letter_id, sequence)
 WHERE d.dead_letter_id = s.dead_letter_id AND d.status = 'REDRIVEN' AND d.redriven_sequence IS NULL
"""


def finish_again(tx: Connection, stored: Mapping[UUID, int], now: datetime) -> None:
    """Keep the sequences of the messages that JetStream has stored."""
    tx.execute(_FINISH_AGAIN, {"ids": list(stored), "sequences": list(stored.values()), "now": now})
