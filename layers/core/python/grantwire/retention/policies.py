"""What is deleted, when, in which order and by which index: one policy for each kind of row (R1-R3, Q4, C7).

One statement deletes for all of them. A batch locks what it deletes and passes over what another transaction has
locked, so that sweeps that overlap share the work and none waits. It takes the oldest first, from an index that holds
nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING

from grantwire.database import sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from typing import LiteralString

    from grantwire.database import Connection
    from grantwire.retention.settings import RetentionSettings

_DELETE = sql.SQL("""
DELETE FROM {table} WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM {table}
   WHERE {time} {older} coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval AND {condition}
   ORDER BY {time} LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Rows of `table` go when `time` is older than `keep` and `condition` holds; `index` finds them."""

    name: str
    table: LiteralString
    time: LiteralString
    index: str
    keep: Callable[[RetentionSettings], timedelta]
    condition: LiteralString = "true"
    # Whether a row goes that is exactly as old as `keep`.
    edge_goes: bool = False
    of_notifications: bool = False

    @property
    def delete(self) -> sql.Composed:
        """The statement; it takes %(now)s, %(keep)s and %(limit)s."""
        return _DELETE.format(
            table=sql.Identifier(self.table),
            time=sql.Identifier(self.time),
            older=sql.SQL("<=") if self.edge_goes else sql.SQL("<"),
            condition=sql.SQL(self.condition),
        )


POLICIES = (
    Policy(
        name="idempotency_keys",
        table="idempotency_keys",
        time="expires_at",
        index="idempotency_keys_expiry",
        keep=lambda _: timedelta(0),
        edge_goes=True,
    ),
    Policy(
        name="outbox_published",
        table="outbox_events",
        time="published_at",
        index="outbox_events_published_at",
        keep=attrgetter("outbox"),
        condition="status = 'PUBLISHED'",
    ),
    Policy(
        name="outbox_discarded",
        table="outbox_events",
        time="discarded_at",
        index="outbox_events_discarded_at",
        keep=attrgetter("outbox"),
        condition="status = 'DISCARDED'",
    ),
    Policy(
        name="processed_events",
        table="processed_events",
        time="processed_at",
        index="processed_events_time",
        keep=attrgetter("inbox"),
        of_notifications=True,
    ),
    # What is neither SENT nor FAILED after all this time stays, and is reported (checks).
    Policy(
        name="notifications",
        table="notifications",
        time="created_at",
        index="notifications_created_at",
        keep=attrgetter("inbox"),
        condition="status IN ('SENT', 'FAILED')",
        of_notifications=True,
    ),
    Policy(
        name="notification_dlq",
        table="notification_dlq",
        time="closed_at",
        index="notification_dlq_closed_at",
        keep=attrgetter("dead_letters"),
        condition="status <> 'OPEN'",
        of_notifications=True,
    ),
    Policy(
        name="notification_nats_dlq",
        table="notification_nats_dlq",
        time="closed_at",
        index="notification_nats_dlq_closed",
        keep=attrgetter("dead_letters"),
        condition="status <> 'OPEN'",
        of_notifications=True,
    ),
    Policy(
        name="processed_messages",
        table="processed_messages",
        time="expires_at",
        index="processed_messages_expiry",
        keep=attrgetter("processed_messages"),
    ),
    # A lock whose owner never came back is free to be taken as soon as its lease has ended.
    Policy(
        name="distributed_locks",
        table="distributed_locks",
        time="lease_until",
        index="distributed_locks_expiry",
        keep=attrgetter("locks"),
    ),
)


def policies(settings: RetentionSettings) -> Iterator[Policy]:
    """The policies that are switched on (R5)."""
    return (policy for policy in POLICIES if settings.notifications or not policy.of_notifications)


def delete_batch(tx: Connection, policy: Policy, settings: RetentionSettings, now: datetime | None = None) -> int:
    """Delete the oldest rows that may go, at most one batch; how many."""
    parameters = {"now": now, "keep": policy.keep(settings), "limit": settings.batch_size}
    return tx.execute(policy.delete, parameters).rowcount
