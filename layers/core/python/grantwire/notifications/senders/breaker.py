"""A sender that stops calling a receiver that keeps failing (C10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grantwire.notifications.senders.interface import Sender

if TYPE_CHECKING:
    from grantwire.notifications.store import Notification
    from grantwire_idempotency import CircuitBreaker


class BreakerSender(Sender):
    """A sender behind a circuit breaker; CircuitOpenError means that the receiver was not called."""

    def __init__(self, sender: Sender, breaker: CircuitBreaker) -> None:
        self._sender = sender
        self._breaker = breaker

    @property
    def concurrency(self) -> int:
        """See `Sender`."""
        return self._sender.concurrency

    def send(self, notification: Notification) -> str:
        """See `Sender`."""
        with self._breaker.guard():
            return self._sender.send(notification)

    def prepare(self) -> None:
        """See `Sender`."""
        self._sender.prepare()

    def close(self) -> None:
        """See `Sender`."""
        self._sender.close()
