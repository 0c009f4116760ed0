"""The interface of all senders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from grantwire.notifications.store import Notification


class Sender(Protocol):
    """Sends notifications to one receiver. Senders inherit from it; `prepare` and `close` do nothing by default."""

    @property
    def concurrency(self) -> int:
        """Number of notifications that may be sent at the same time."""

    def send(self, notification: Notification) -> str:
        """Send a notification and return when the receiver has accepted it, with a few words about its response.

        Raises RejectedError if the receiver will never accept it, RetryableError if a later attempt may succeed, and
        ReceiverBusyError if it may succeed only after `retry_after` seconds.
        """

    def prepare(self) -> None:
        """Get everything that sending needs, before notifications are claimed.

        Raises RetryableError or ConfigError if something is missing; then nothing is claimed.
        """
        return  # mypy considers a method of a protocol without a body as abstract

    def close(self) -> None:
        """Close connections. Called at the end of each invocation; the sender stays usable."""
        return  # same reason
