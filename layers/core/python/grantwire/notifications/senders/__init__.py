"""Ways to tell somebody: one interface, chosen by NOTIFICATION_SENDER (D3).

`Sender.send` returns when the receiver has the notification. It raises RejectedError if the receiver will never take
it, RetryableError if it may later. Whoever retries sends the same notification id, which every sender passes on as the
idempotency key: the receiver can tell a repeat from news. The version says which of two states of a right is newer;
notifications are not promised to arrive in order.

A sender is used by several threads at once, as many as its `concurrency`.
"""

from grantwire.notifications.senders.factory import SenderSettings, build_sender
from grantwire.notifications.senders.interface import Sender

__all__ = ["Sender", "SenderSettings", "build_sender"]
