"""The SQL of `notification_nats_dlq`: dead letters of messages that JetStream stopped delivering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grantwire.database import Jsonb
from grantwire.errors import RejectedError
from grantwire.events.decoding import decode_payload
from grantwire.identifiers import uuid7
from grantwire.validation import MAX_NAME_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from grantwire.database import Connection
    from grantwire.dead_letters.advisories import Advisory, MessageCopy

# The unique constraint decides between two recorders. NOT EXISTS also recognises an advisory that is delivered again
# after its message has left the stream, when message_time is no longer known.
_RECORD = """
INSERT INTO notification_nats_dlq
       (dead_letter_id, stream, consumer, stream_seq, kind, deliveries, reason, advised_at,
        subject, headers, payload, event_id, event_time, message_time, origin, user_id, stock_keeping_unit)
SELECT %(dead_letter_id)s, %(stream)s, %(consumer)s, %(stream_seq)s, %(kind)s, %(deliveries)s, %(reason)s,
       %(advised_at)s, %(subject)s, %(headers)s::jsonb, %(payload)s::bytea, %(event_id)s::uuid,
       %(event_time)s::timestamptz, %(message_time)s::timestamptz, %(origin)s::uuid, %(user_id)s::text,
       %(stock_keeping_unit)s::text
 WHERE NOT EXISTS (
         SELECT FROM notification_nats_dlq d
          WHERE d.stream = %(stream)s AND d.stream_seq = %(stream_seq)s
            AND d.consumer = %(consumer)s AND d.kind = %(kind)s
            AND coalesce(d.message_time = %(message_time)s::timestamptz, true))
ON CONFLICT ON CONSTRAINT notification_nats_dlq_message DO NOTHING
RETURNING dead_letter_id
"""


def record(tx: Connection, advisory: Advisory, copied: MessageCopy | None) -> UUID | None:
    """Record an advisory with the copy of its message; return the new dead letter's id, None if it exists already."""
    user_id, stock_keeping_unit = (None, None) if copied is None else _read_names(copied.payload)
    row = tx.execute(
        _RECORD,
        {
            "dead_letter_id": uuid7(),
            "stream": advisory.stream,
            "consumer": advisory.consumer,
            "stream_seq": advisory.stream_seq,
            "kind": advisory.kind,
            "deliveries": advisory.deliveries,
            "reason": advisory.reason,
            "advised_at": advisory.advised_at,
            "subject": copied.subject if copied else None,
            "headers": Jsonb(dict(copied.headers)) if copied else None,
            "payload": copied.payload if copied else None,
            "event_id": copied.event_id if copied else None,
            "event_time": copied.event_time if copied else None,
            "message_time": copied.message_time if copied else None,
            "origin": copied.origin if copied else None,
            "user_id": user_id,
            "stock_keeping_unit": stock_keeping_unit,
        },
    ).fetchone()
    return None if row is None else row[0]


def _read_names(message: bytes) -> tuple[str | None, str | None]:
    """Return the user and the stock keeping unit of an event; None if the message is no event or a name is too long."""
    try:
        event = decode_payload(message)
    except RejectedError:
        return None, None
    user_id, sku = (
        name if len(name) <= MAX_NAME_LENGTH else None for name in (event["user_id"], event["stock_keeping_unit"])
    )
    return user_id, sku


# JetStream counts deliveries, not effects: the last delivery may have been processed after all, before or after the
# advisory. A terminated message stays open: its payload was refused, even if its header names a processed event.
_CLOSE_PROCESSED = """
UPDATE notification_nats_dlq d
   SET status = 'PROCESSED', closed_at = coalesce(%(now)s::timestamptz, now())
 WHERE d.status = 'OPEN' AND d.kind = 'MAX_DELIVERIES' AND d.consumer = %(consumer)s
   AND EXISTS (SELECT FROM processed_events p WHERE p.event_id = d.event_id)
RETURNING d.dead_letter_id
"""


def close_processed(tx: Connection, consumer: str, now: datetime | None = None) -> list[UUID]:
    """Close the dead letters of `consumer` whose events are in the inbox after all; return their ids.

    `consumer` must be the bridge's, because the inbox holds only the events that the bridge has recorded.
    """
    return [row[0] for row in tx.execute(_CLOSE_PROCESSED, {"consumer": consumer, "now": now})]


@dataclass(frozen=True, slots=True)
class Redrive:
    """A message to publish again. Its `redrive_id` is committed, so a repeat after a crash has the same id."""

    dead_letter_id: UUID
    subject: str
    headers: Mapping[str, Any]
    payload: bytes
    redrive_id: str


# An unconfirmed redrive keeps its number, because its message may have been published. A new number is higher than
# those of all dead letters of the event: JetStream would drop a message with a known id as a duplicate.
_BEGIN_REDRIVE = """
UPDATE notification_nats_dlq d
   SET redrive_count = CASE WHEN d.redrive_id IS NULL THEN next.number ELSE d.redrive_count END,
       forced = d.forced OR d.dead_letter_id = ANY(%(forced)s::uuid[]),
       redrive_id = coalesce(
         d.redrive_id,
         coalesce(d.event_id::text, 'dlq:' || d.stream || ':' || d.stream_seq) || ':redrive:' || next.number)
  FROM (SELECT c.dead_letter_id,
               CASE WHEN c.event_id IS NULL THEN 1
                    ELSE row_number() OVER (PARTITION BY c.event_id ORDER BY c.dead_letter_id)
                         + (SELECT max(s.redrive_count) FROM notification_nats_dlq s WHERE s.event_id = c.event_id)
                END AS number
          FROM notification_nats_dlq c
         WHERE c.dead_letter_id = ANY(%(ids)s)) AS next
 WHERE d.dead_letter_id = next.dead_letter_id AND d.status = 'OPEN' AND d.payload IS NOT NULL
RETURNING d.dead_letter_id, d.subject, d.headers, d.payload, d.redrive_id
"""


def begin_redrive(tx: Connection, ids: Sequence[UUID], forced: Iterable[UUID] = ()) -> list[Redrive]:
    """Assign redrive ids to open dead letters and return their messages; commit before you publish them (Q2).

    The bridge accepts the messages of `forced` although the audit does not have their events (G1).
    """
    return [Redrive(*row) for row in tx.execute(_BEGIN_REDRIVE, {"ids": list(ids), "forced": list(forced)})]


_READ_MESSAGES = """
SELECT dead_letter_id, event_id, substr(payload, 1, %(max_bytes)s) FROM notification_nats_dlq
 WHERE dead_letter_id = ANY(%(ids)s) AND payload IS NOT NULL
"""


def read_messages(tx: Connection, ids: Sequence[UUID], max_bytes: int) -> list[tuple[UUID, UUID | None, bytes]]:
    """Return id, event id in the headers, and payload of dead letters, each up to the limit."""
    return tx.execute(_READ_MESSAGES, {"ids": list(ids), "max_bytes": max_bytes}).fetchall()


_FINISH_REDRIVE = """
UPDATE notification_nats_dlq d
   SET status = 'REDRIVEN', closed_at = coalesce(%(now)s::timestamptz, now()),
       redriven_at = coalesce(%(now)s::timestamptz, now()), redriven_sequence = s.sequence
  FROM unnest(%(ids)s::uuid[], %(sequences)s::bigint[]) AS s (dead_letter_id, sequence)
 WHERE d.dead_letter_id = s.dead_letter_id AND d.status = 'OPEN' AND d.redrive_id IS NOT NULL
"""


def finish_redrive(tx: Connection, stored: Mapping[UUID, int], now: datetime | None = None) -> None:
    """Close dead letters whose message JetStream has stored again, each at its sequence.

    Those that were closed meanwhile are not changed.
    """
    parameters = {"ids": list(stored), "sequences": list(stored.values()), "now": now}
    tx.execute(_FINISH_REDRIVE, parameters)


_DISCARD = """
UPDATE notification_nats_dlq
   SET status = 'DISCARDED', closed_at = coalesce(%(now)s::timestamptz, now())
 WHERE dead_letter_id = ANY(%(ids)s) AND status = 'OPEN'
RETURNING dead_letter_id
"""


def discard(tx: Connection, ids: Sequence[UUID], now: datetime | None = None) -> list[UUID]:
    """Discard open dead letters and return the ids of those that were open."""
    return [row[0] for row in tx.execute(_DISCARD, {"ids": list(ids), "now": now})]
