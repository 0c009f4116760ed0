"""Notifications: every event becomes one, and every one is sent or ends as a dead letter.

`bridge` takes events from JetStream and writes the inbox rows and notifications of a whole batch, and its part of the
read model (`grantwire.read_model`), in one transaction. Messages are acknowledged after the commit, so a crash repeats
a delivery and a repeated delivery changes nothing (N4).
What can never be recorded is terminated with a reason (N5); while PostgreSQL is out of reach nothing is fetched (N6).

`delivery` claims what is due, sends it with a `senders.Sender`, and writes the outcome, fenced by its claim (D1). A
notification that cannot be sent is FAILED, and its dead letter is written in the same transaction (D2). The receiver
may see one twice, always under the same notification id.

`listing` shows a user's notifications. Dead letters have two ways out, both in the caller's transaction and both
harmless when repeated: `redrive` makes the notification PENDING again under its own id, `discard_dead_letters` closes
the letter. They return the ids that they changed and raise what the session that runs them raises.

Only what needs neither NATS nor protocol buffers is imported here; a function names the module it works with.
"""

from grantwire.notifications.dead_letters import discard_dead_letters, redrive

__all__ = ["discard_dead_letters", "redrive"]
