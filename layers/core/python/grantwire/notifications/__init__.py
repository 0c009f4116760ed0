"""Notifications: each event becomes one notification, which is sent or ends as a dead letter.

`bridge` reads events from JetStream. It writes the inbox rows, the notifications and the read model of a batch
(`grantwire.read_model`) in one transaction, and acknowledges the messages after the commit. After a crash JetStream
delivers the messages again, which changes nothing (N4). A message that can never be recorded is terminated with a
reason (N5). While PostgreSQL is unavailable the bridge fetches nothing (N6).

`delivery` claims notifications that are due, sends them with a `senders.Sender` and writes the outcome under its claim
token (D1). A notification that cannot be sent becomes FAILED, and its dead letter is written in the same transaction
(D2). The receiver may get a notification twice, always with the same notification id.

`listing` lists a user's notifications. A dead letter is closed by `redrive`, which makes its notification PENDING again
with the same id, or by `discard_dead_letters`. Both run in the caller's transaction, return the ids that they changed,
and change nothing when repeated. They raise the errors of the session that runs them.

This package imports neither NATS nor protocol buffers. A function imports the module that it needs.
"""

from grantwire.notifications.dead_letters import discard_dead_letters, redrive

__all__ = ["discard_dead_letters", "redrive"]
