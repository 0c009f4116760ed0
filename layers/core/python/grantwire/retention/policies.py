"""What is deleted, when, in which order and by which index: one policy for each kind of row (R1-R3, Q4, C7).

A batch locks what it deletes and passes over what somebody else has locked, so that sweeps that overlap share the work
and nobody waits. Each statement takes the oldest first, from an index that holds nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from typing import LiteralString

    from grantwire.database import Connection
    from grantwire.retention.settings import RetentionSettings


@dataclass(frozen=True, slots=True)
class Policy:
    """Rows of `table` go when they are older than `keep`; `delete` takes %(now)s, %(keep)s and %(limit)s."""

    name: str
    table: str
    index: str
    keep: Callable[[RetentionSettings], timedelta]
    delete: LiteralString
    of_notifications: bool = False


_IDEMPOTENCY_KEYS = """
DELETE FROM idempotency_keys WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM idempotency_keys
   WHERE expires_at <= coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval
   ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
"""

_OUTBOX_PUBLISHED = """
DELETE FROM outbox_events WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM outbox_events
   WHERE published_at < coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval AND status = 'PUBLISHED'
   ORDER BY published_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
"""

_OUTBOX_DISCARDED = """
DELETE FROM outbox_events WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM outbox_events
   WHERE discarded_at < coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval AND status = 'DISCARDED'
   ORDER BY discarded_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
"""

_PROCESSED_EVENTS = """
DELETE FROM processed_events WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM processed_events
   WHERE processed_at < coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval
   ORDER BY processed_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
"""

# What is neither SENT nor FAILED after all this time stays, and is told about (checks).
_NOTIFICATIONS = """
DELETE FROM notifications WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM notifications
   WHERE created_at < coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval AND status IN ('SENT', 'FAILED')
   ORDER BY created_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
"""

_NOTIFICATION_DLQ = """
DELETE FROM notification_dlq WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM notification_dlq
   WHERE closed_at < coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval AND status <> 'OPEN'
   ORDER BY closed_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
"""

_NOTIFICATION_NATS_DLQ = """
DELETE FROM notification_nats_dlq WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM notification_nats_dlq
   WHERE closed_at < coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval AND status <> 'OPEN'
   ORDER BY closed_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
"""

_PROCESSED_MESSAGES = """
DELETE FROM processed_messages WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM processed_messages
   WHERE expires_at < coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval
   ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
"""

# A lock whose owner never came back is free for anybody as soon as its lease has ended.
_DISTRIBUTED_LOCKS = """
DELETE FROM distributed_locks WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM distributed_locks
   WHERE lease_until < coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval
   ORDER BY lease_until LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
"""

POLICIES = (
    Policy(
        "idempotency_keys", "idempotency_keys", "idempotency_keys_expiry", lambda _: timedelta(0), _IDEMPOTENCY_KEYS
    ),
    Policy(
        "outbox_published", "outbox_events", "outbox_events_published_at", lambda keep: keep.outbox, _OUTBOX_PUBLISHED
    ),
    Policy(
        "outbox_discarded", "outbox_events", "outbox_events_discarded_at", lambda keep: keep.outbox, _OUTBOX_DISCARDED
    ),
    Policy(
        "processed_events",
        "processed_events",
        "processed_events_time",
        lambda keep: keep.inbox,
        _PROCESSED_EVENTS,
        of_notifications=True,
    ),
    Policy(
        "notifications",
        "notifications",
        "notifications_created_at",
        lambda keep: keep.inbox,
        _NOTIFICATIONS,
        of_notifications=True,
    ),
    Policy(
        "notification_dlq",
        "notification_dlq",
        "notification_dlq_closed_at",
        lambda keep: keep.dead_letters,
        _NOTIFICATION_DLQ,
        of_notifications=True,
    ),
    Policy(
        "notification_nats_dlq",
        "notification_nats_dlq",
        "notification_nats_dlq_closed",
        lambda keep: keep.dead_letters,
        _NOTIFICATION_NATS_DLQ,
        of_notifications=True,
    ),
    Policy(
        "processed_messages",
        "processed_messages",
        "processed_messages_expiry",
        lambda keep: keep.processed_messages,
        _PROCESSED_MESSAGES,
    ),
    Policy(
        "distributed_locks",
        "distributed_locks",
        "distributed_locks_expiry",
        lambda keep: keep.locks,
        _DISTRIBUTED_LOCKS,
    ),
)


def policies(settings: RetentionSettings) -> Iterator[Policy]:
    """The policies that are switched on (R5)."""
    return (policy for policy in POLICIES if settings.notifications or not policy.of_notifications)


def delete_batch(tx: Connection, policy: Policy, settings: RetentionSettings, now: datetime | None = None) -> int:
    """Delete the oldest rows that may go, at most one batch; how many."""
    parameters = {"now": now, "keep": policy.keep(settings), "limit": settings.batch_size}
    return tx.execute(policy.delete, parameters).rowcount
