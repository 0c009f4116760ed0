"""Retention policies: which rows are deleted, and when; one policy for each kind of row (R1-R3, Q4, C7).

All policies use the same statement, except those with rows that must stay. A batch locks the rows that it deletes and
skips rows that another transaction has locked. Sweeps that overlap therefore share the work without waiting for each
other. A batch deletes the oldest rows first, and an index finds them without reading rows that must stay.

Of a policy with `kept`, old rows can stay. Its batches read a page each, deleted or not, so that each statement is
bounded however many rows stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from grantwire.database import sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from typing import LiteralString
    from uuid import UUID

    from grantwire.database import Connection
    from grantwire.retention.settings import RetentionSettings

_DELETE = sql.SQL("""
DELETE FROM {table} WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM {table}
   WHERE {time_column} {older} coalesce(%(now)s::timestamptz, now()) - %(retention)s::interval AND {condition}
   ORDER BY {time_column} LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
""")

# The page is not locked, because many of its rows may have to stay.
_DELETE_UNLESS_KEPT = sql.SQL("""
WITH page AS MATERIALIZED (
  SELECT t.ctid AS place, t.{time_column} AS at, t.{key} AS id, {kept} AS kept FROM {table} t
   WHERE t.{time_column} {older} coalesce(%(now)s::timestamptz, now()) - %(retention)s::interval AND {condition}
     AND (t.{time_column}, t.{key}) > (coalesce(%(after_time)s::timestamptz, '-infinity'),
                                       coalesce(%(after_key)s::uuid, '00000000-0000-0000-0000-000000000000'))
   ORDER BY t.{time_column}, t.{key} LIMIT %(limit)s),
deleted AS (
  DELETE FROM {table} WHERE ctid = ANY(ARRAY(
    SELECT t.ctid FROM {table} t
     WHERE t.ctid = ANY(ARRAY(SELECT p.place FROM page p WHERE NOT p.kept)) AND {condition}
       FOR UPDATE SKIP LOCKED))
  RETURNING 1)
SELECT (SELECT count(*) FROM deleted), (SELECT count(*) FROM page),
       last.at, last.id FROM (SELECT p.at, p.id FROM page p ORDER BY p.at DESC, p.id DESC LIMIT 1) AS last
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
    # For rows that may have to stay although they are old: whether row `t` does, and the primary key, a uuid.
    kept: LiteralString | None = None
    key: LiteralString = "event_id"
    # Whether a row is deleted whose age equals the retention exactly.
    inclusive: bool = False
    # Whether NOTIFICATION_RETENTION_ENABLED switches this policy (R5).
    is_notification_data: bool = False

    @property
    def delete_statement(self) -> sql.Composed:
        """The statement that deletes one batch, with the parameters %(now)s, %(retention)s and %(limit)s.

        With `kept`, it also has %(after_time)s and %(after_key)s, the last row of the page before.
        """
        parts = {
            "table": sql.Identifier(self.table),
            "time_column": sql.Identifier(self.time_column),
            "older": sql.SQL("<=") if self.inclusive else sql.SQL("<"),
            "condition": sql.SQL(self.condition),
        }
        if self.kept is None:
            return _DELETE.format(**parts)
        return _DELETE_UNLESS_KEPT.format(**parts, kept=sql.SQL(self.kept), key=sql.Identifier(self.key))


# Finished: the mark has passed the event, it is not listed, and no redriven dead letter of it is on its way (W2).
# The mark is a scalar subquery, so that the index finds only rows that it has passed.
_PASSED = "status = 'PUBLISHED' AND published_at <= (SELECT mark FROM outbox_confirmation)"
_UNFINISHED = """(
    EXISTS (SELECT FROM outbox_unconfirmed u WHERE u.event_id = t.event_id)
    OR EXISTS (SELECT FROM notification_nats_dlq d
                WHERE d.event_id = t.event_id AND d.status = 'REDRIVEN' AND NOT d.redrive_confirmed
                  AND NOT EXISTS (SELECT FROM processed_events e WHERE e.event_id = d.event_id)))"""

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
        condition=_PASSED,
        kept=_UNFINISHED,
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
        name="outbox_republications",
        table="outbox_republications",
        time_column="put_back_at",
        index="outbox_republications_put_back_at",
        retention=lambda _: timedelta(days=30),
    ),
    Policy(
        name="stream_losses",
        table="stream_losses",
        time_column="detected_at",
        index="stream_losses_detected_at",
        retention=lambda _: timedelta(days=400),
        condition="completed_at IS NOT NULL",
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


class Batch(NamedTuple):
    """How many rows a batch deleted, how many it read, and the time and the key of the last one it read, if known."""

    deleted: int
    read: int
    last: tuple[datetime, UUID] | None = None


def delete_batch(
    tx: Connection,
    policy: Policy,
    settings: RetentionSettings,
    now: datetime | None = None,
    after: tuple[datetime, UUID] | None = None,
) -> Batch:
    """Delete one batch of the oldest rows past their retention; those after the last one that the batch before read."""
    parameters = {"now": now, "retention": policy.retention(settings), "limit": settings.batch_size}
    if policy.kept is None:
        deleted = tx.execute(policy.delete_statement, parameters).rowcount
        return Batch(deleted, deleted)
    after_time, after_key = after or (None, None)
    row = tx.execute(
        policy.delete_statement, {**parameters, "after_time": after_time, "after_key": after_key}
    ).fetchone()
    return Batch(0, 0) if row is None else Batch(row[0], row[1], (row[2], row[3]))
