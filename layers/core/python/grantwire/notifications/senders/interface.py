"""What every sender is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from grantwire.notifications.store import Notification


class Sender(Protocol):
    """Tells one receiver of one notification."""

    @property
    def concurrency(self) -> int:
        """How many may be sent at once."""

    def send(self, notification: Notification) -> None:
        """Return when the receiver has it; RejectedError if it never will, RetryableError if it may later."""
