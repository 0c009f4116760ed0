"""Retention policies: which rows are deleted, and when; one policy for each kind of row (R1-R3, Q4, C7).

All policies use the same statement. A batch locks the rows that it deletes and skips rows that another transaction has
locked. Sweeps that overlap therefore share the work without waiting for each other. A batch deletes the oldest rows
first, and an index finds them without reading rows that must stay.
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
   WHERE {time_column} {older} coalesce(%(now)s::timestamptz, now()) - %(retention)s::interval AND {condition}
   ORDER BY {time_column} LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Delete rows of `table` whose `time_column` is older than the retention and that match `condition`.

    `index` is the index that finds these rows; a test checks that the plan uses it.
    """

    name: str
    table: LiteralString
    time_column: LiteralString
    index: str
    retention: Callable[[RetentionSettings], timedelta]
    condition: LiteralString = "true"
    # Whether a row is deleted whose age equals the retention exactly.
    inclusive: bool = False
    # Whether NOTIFICATION_RETENTION_ENABLED switches this policy (R5).
    is_notification_data: bool = False

    @property
    def delete_statement(self) -> sql.Composed:
        """The statement that deletes one batch, with the parameters %(now)s, %(retention)s and %(limit)s."""
        return _DELETE.format(
            table=sql.Identifier(self.table),
            time_column=sql.Identifier(self.time_column),
            older=sql.SQL("<=") if self.inclusive else sql.SQL("<"),
            condition=sql.SQL(self.condition),
        )


POLICIES = (
    Policy(
        name="idempotency_keys",
        table="idempotency_keys",
        time_column="expires_at",
        index="idempotency_keys_expiry",
        retention=lambda _: timedelta(0),
        inclusive=True,
    ),
    Policy(
        name="key_conflicts",
        table="key_conflicts",
        time_column="last_at",
        index="key_conflicts_last_at",
        retention=lambda _: timedelta(days=400),
    ),
    Policy(
        name="outbox_published",
        table="outbox_events",
        time_column="published_at",
        index="outbox_events_published_at",
        retention=attrgetter("outbox"),
        condition="status = 'PUBLISHED'",
    ),
    Policy(
        name="outbox_discarded",
        table="outbox_events",
        time_column="discarded_at",
        index="outbox_events_discarded_at",
        retention=attrgetter("outbox"),
        condition="status = 'DISCARDED'",
    ),
    Policy(
        name="processed_events",
        table="processed_events",
        time_column="processed_at",
        index="processed_events_time",
        retention=attrgetter("inbox"),
        is_notification_data=True,
    ),
    # Unfinished notifications are not deleted; checks.py reports them.
    Policy(
        name="notifications",
        table="notifications",
        time_column="created_at",
        index="notifications_created_at",
        retention=attrgetter("inbox"),
        condition="status IN ('SENT', 'FAILED')",
        is_notification_data=True,
    ),
    Policy(
        name="notification_dlq",
        table="notification_dlq",
        time_column="closed_at",
        index="notification_dlq_closed_at",
        retention=attrgetter("dead_letters"),
        condition="status <> 'OPEN'",
        is_notification_data=True,
    ),
    Policy(
        name="notification_nats_dlq",
        table="notification_nats_dlq",
        time_column="closed_at",
        index="notification_nats_dlq_closed",
        retention=attrgetter("dead_letters"),
        condition="status <> 'OPEN'",
        is_notification_data=True,
    ),
    Policy(
        name="processed_messages",
        table="processed_messages",
        time_column="expires_at",
        index="processed_messages_expiry",
        retention=attrgetter("processed_messages"),
    ),
    # The actions of operators are the record of what they did, and stay for ever. The commands are only their progress.
    Policy(
        name="operator_commands",
        table="operator_commands",
        time_column="finished_at",
        index="operator_commands_finished",
        retention=lambda _: timedelta(days=90),
        condition="finished_at IS NOT NULL",
    ),
    Policy(
        name="status_samples",
        table="status_samples",
        time_column="sampled_at",
        index="status_samples_pkey",
        retention=lambda _: timedelta(hours=25),
    ),
    # A lock can be acquired again as soon as its lease has ended, so an old row is not needed.
    Policy(
        name="distributed_locks",
        table="distributed_locks",
        time_column="lease_until",
        index="distributed_locks_expiry",
        retention=attrgetter("locks"),
    ),
)


def enabled_policies(settings: RetentionSettings) -> Iterator[Policy]:
    """Return the policies that the settings enable (R5)."""
    return (policy for policy in POLICIES if settings.notifications_enabled or not policy.is_notification_data)


def delete_batch(tx: Connection, policy: Policy, settings: RetentionSettings, now: datetime | None = None) -> int:
    """Delete one batch of the oldest rows past their retention, and return how many rows were deleted."""
    parameters = {"now": now, "retention": policy.retention(settings), "limit": settings.batch_size}
    return tx.execute(policy.delete_statement, parameters).rowcount
