"""The transactional outbox: events that were committed with their cause, and how they reach the stream.

SQL's `outbox_enqueue` adds an event in the transaction of the change. `relay.Relay` claims, publishes and completes
events: each event reaches the stream at least once, with its id as Nats-Msg-Id, and the first
appearances of one aggregate's events are in the order of their versions, whatever fails and however many relays run.
What cannot be published ends FAILED and holds back its own aggregate only. It never ends with a lease that it could
release.

`store.redrive` and `store.discard` are an operator's two ways out of FAILED, in the caller's transaction; both return
the ids that they changed, and events in any other state stay as they are.
`store.promote_stuck` repairs what should never break, and says how often it did.

`encoding.encode_event` makes the protocol buffer of a payload, or raises RejectedError.

Only modules are here, no names: the sweep and the operators' commands import neither NATS nor protocol buffers.
"""
