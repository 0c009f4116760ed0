"""Settings of the sweep."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from grantwire.settings import duration, flag, integer, setting

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How long each kind of row is kept (R1-R5). The audit is kept for ever unless `audit_months` is set."""

    notifications_enabled: bool = setting("NOTIFICATION_RETENTION_ENABLED", flag, default="true")
    inbox_days: int = setting("NOTIFICATION_RETENTION_RETENTION_DAYS", integer(low=1, high=3650), default="30")
    dead_letters: timedelta = setting("NOTIFICATION_DEAD_LETTERS_RETENTION", duration(low="1h"), default="30d")
    outbox: timedelta = setting("ENTITLEMENT_OUTBOX_RETENTION", duration(low="1m"), default="24h")
    audit_months: int | None = setting("ENTITLEMENT_AUDIT_RETENTION_MONTHS", integer(low=1, high=1200), optional=True)
    processed_messages: timedelta = setting("IDEMPOTENCY_MESSAGES_RETENTION", duration(), default="7d")
    locks: timedelta = setting("IDEMPOTENCY_LOCKS_RETENTION", duration(), default="7d")
    batch_size: int = setting("RETENTION_BATCH_SIZE", integer(low=1, high=20_000), default="10000")
    stream_max_age: timedelta = setting("ENTITLEMENT_NATS_MAX_AGE", duration(low="1m"), default="14d")

    def problems(self) -> Iterator[str]:
        """Yield a problem if the inbox can forget an event that the stream can still deliver."""
        if self.notifications_enabled and self.stream_max_age >= self.inbox:
            yield (
                "NOTIFICATION_RETENTION_RETENTION_DAYS must be longer than ENTITLEMENT_NATS_MAX_AGE, "
                "or the inbox could forget an event that the stream still delivers"
            )

    @property
    def inbox(self) -> timedelta:
        """The retention of the inbox and of notifications."""
        return timedelta(days=self.inbox_days)
