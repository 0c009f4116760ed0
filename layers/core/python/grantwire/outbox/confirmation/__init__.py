"""Confirms published events by the inbox, and puts back what the stream lost (W1, ADR 0045).

JetStream acknowledges a message before it is on disk, so that an acknowledgement proves nothing, and neither does the
acknowledgement floor of the consumer. An event is finished when the inbox has it, or a dead letter of its message
exists. One relay at a time checks the others, at an interval (`turn`):

1. It compares the stream with the last check: was it created again, cut back, purged, or were messages deleted?
   A lost range is recorded (`comparison`), and all its events are published again, because outside readers lost
   them, too (`examination`).
2. A mark moves over the published events that are older than the grace. Unfinished ones are listed.
3. Each listed event is waiting, or its message is not in the stream, or its consumer will not deliver it again. In the
   last two cases it is put back: published again, under a new Nats-Msg-Id (`putting_back`).

The grace must exceed the longest transaction of a relay: an event that commits behind the mark would never be seen.
The state of the stream is read before the inbox: the bridge commits before it acknowledges.

`store` and `losses` have the SQL. This package exports no names: the relay counts unconfirmed events by `store` alone.
"""
