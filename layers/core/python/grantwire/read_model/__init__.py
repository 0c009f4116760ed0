"""The read model of each user's rights, built from the events (P1, P2).

`model.project` brings rights up to a batch of events. The bridge calls it in the transaction of its inbox, so an event
is recorded and projected or neither; an older event never overwrites a newer one, gaps are accepted, and a repeat
changes nothing. `summary` reads a user's rows. The read model follows the system of record by the way of an event,
usually some ten milliseconds: what must be exact is read from `entitlements`.

It can be rebuilt at any time, while events flow, by one of two ways. `record` compares it with the system of record in
one statement and mends every difference. `stream` replays the events that JetStream still has: it brings up what is
missing or behind, and nothing else. Both raise RetryableError if a server fails; repeating is harmless.

Only modules are here, no names: a function that answers callers imports neither NATS nor protocol buffers.
"""
