"""NATS JetStream: the one asynchronous edge, and the only package that imports nats-py.

`connection` opens and checks the one connection of an execution environment, `publisher` stores messages, many in
flight, `pull_consumer` fetches them, `message` is what it fetches, `topology` makes streams and consumers as `settings`
wants them. Errors of nats-py come out as RetryableError (`errors`).

Nothing is imported here: a function names the module that it works with.
"""
