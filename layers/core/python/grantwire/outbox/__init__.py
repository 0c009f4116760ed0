"""The transactional outbox: events are committed together with the change that caused them, then published.

How an event reaches the stream:

1. Enqueue: the SQL function `outbox_enqueue` adds the event as PENDING, in the transaction of the change.
2. Claim: a relay claims a batch of heads and the runs behind them. They are IN_FLIGHT until the lease expires.
3. Publish: the relay sends each event to JetStream and waits for the acknowledgement. Aggregates are published in
   parallel, the events of one aggregate one after the other.
4. Complete: the relay marks acknowledged events PUBLISHED, which makes the next event of each aggregate claimable.
5. Otherwise: a failed event is retried after a backoff, or becomes FAILED and blocks only its own aggregate. An event
   that was not sent is released, which costs no attempt.

Each event reaches the stream at least once, with its id as Nats-Msg-Id, so that JetStream drops repeats. The first
appearances of one aggregate's events are in version order. Both hold for any failure and for any number of relays.

An operator can redrive (`store.redrive`) or discard (`store.discard`) a FAILED event. What the stream has lost is
published again (`confirmation`).

Read `store`, `relay`, `publication`, `wakeup`, `connections` and `encoding`, in this order. This package exports no
names: the sweep and the operators' commands use `store` without loading NATS or protocol buffers.
"""
