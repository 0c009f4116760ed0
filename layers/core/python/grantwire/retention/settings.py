"""How long everything is kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from grantwire.settings import duration, flag, integer, setting

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """The variables of R1 to R5 and of the audit's months, which are kept for ever unless that is set."""

    notifications: bool = setting("NOTIFICATION_RETENTION_ENABLED", flag, default="true")
    days: int = setting("NOTIFICATION_RETENTION_RETENTION_DAYS", integer(low=1, high=3650), default="30")
    dead_letters: timedelta = setting("NOTIFICATION_DEAD_LETTERS_RETENTION", duration(low="1h"), default="30d")
    outbox: timedelta = setting("ENTITLEMENT_OUTBOX_RETENTION", duration(low="1m"), default="24h")
    audit_months: int | None = setting("ENTITLEMENT_AUDIT_RETENTION_MONTHS", integer(low=1, high=1200), optional=True)
    processed_messages: timedelta = setting("IDEMPOTENCY_MESSAGES_RETENTION", duration(), default="7d")
    locks: timedelta = setting("IDEMPOTENCY_LOCKS_RETENTION", duration(), default="7d")
    batch_size: int = setting("RETENTION_BATCH_SIZE", integer(low=1, high=20_000), default="10000")
    stream_max_age: timedelta = setting("ENTITLEMENT_NATS_MAX_AGE", duration(low="1m"), default="14d")

    def problems(self) -> Iterator[str]:
        """The inbox must remember an event for longer than the stream can deliver it."""
        if self.notifications and self.stream_max_age >= self.inbox:
            yield (
                "NOTIFICATION_RETENTION_RETENTION_DAYS must be longer than ENTITLEMENT_NATS_MAX_AGE, "
                "or the inbox could forget an event that the stream still delivers"
            )

    @property
    def inbox(self) -> timedelta:
        """How long the inbox and the notifications are kept."""
        return timedelta(days=self.days)
