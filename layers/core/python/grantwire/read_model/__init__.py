"""The read model of each user's entitlements, built from the events (P1, P2).

`model.project` applies a batch of events. The bridge does the same in the statement that writes its inbox, so an event
is recorded and projected, or neither. An older event never overwrites a newer one, gaps are accepted, and a repeated
event changes nothing. `summary` reads the rows of one user. The read model lags behind the system of record, usually by
some ten milliseconds: code that needs the exact state reads `entitlements`.

The read model can be rebuilt at any time, while events are processed, from one of two sources. `from_record` compares
it with the system of record in one statement and repairs every difference. `from_stream` projects the events that
JetStream still has; it only adds entitlements that are missing and updates those that are behind. Both raise
RetryableError if a dependency fails, and repeating them is harmless.

This package exports no names: a function of the API must not import NATS or protocol buffers.
"""
