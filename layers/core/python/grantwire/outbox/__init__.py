"""The transactional outbox: events that were committed with their cause, and how they reach the stream.

SQL's `outbox_enqueue` adds an event in the transaction of the change. `Relay.work` claims, publishes and closes events
until its budget ends: each event reaches the stream at least once, with its id as Nats-Msg-Id, and the first
appearances of one aggregate's events are in the order of their versions, whatever fails and however many relays run.
What cannot be published ends FAILED and holds back its own aggregate only. `Relay.work` raises RetryableError if it may
not wait for a server that is out of reach; it never ends with a lease that it could give back.

`redrive` and `discard` are an operator's two ways out of FAILED, in the caller's transaction; both return the ids that
they changed, and events in any other state stay as they are. `promote_stuck` repairs what should never break, and says
how often it did.

`encode_event` makes the protocol buffer of a payload, or raises RejectedError.
"""

from grantwire.outbox.connections import Connections
from grantwire.outbox.encoding import encode_event
from grantwire.outbox.relay import Relay
from grantwire.outbox.store import discard, oldest_age, promote_stuck, redrive
from grantwire.outbox.wakeup import Wakeup

__all__ = [
    "Connections",
    "Relay",
    "Wakeup",
    "discard",
    "encode_event",
    "oldest_age",
    "promote_stuck",
    "redrive",
]
