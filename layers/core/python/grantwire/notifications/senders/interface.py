"""The interface of all senders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from grantwire.notifications.store import Notification


class Sender(Protocol):
    """Sends notifications to one receiver."""

    @property
    def concurrency(self) -> int:
        """Number of notifications that may be sent at the same time."""

    def send(self, notification: Notification) -> None:
        """Send a notification and return when the receiver has accepted it.

        Raises RejectedError if the receiver will never accept it, RetryableError if a later attempt may succeed.
        """
