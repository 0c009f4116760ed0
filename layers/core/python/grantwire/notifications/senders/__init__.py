"""Senders: one interface, with the implementation chosen by NOTIFICATION_SENDER (D3).

`Sender.send` returns when the receiver has accepted the notification. It raises RejectedError if the receiver will
never accept it, and RetryableError if a later attempt may succeed. Every attempt sends the same notification id as the
idempotency key, so the receiver can recognise a repeat. Notifications may arrive out of order; the version shows which
of two states of an entitlement is newer.

Up to `concurrency` threads use a sender at the same time.
"""

from grantwire.notifications.senders.factory import SenderSettings, build_sender
from grantwire.notifications.senders.interface import Sender

__all__ = ["Sender", "SenderSettings", "build_sender"]
