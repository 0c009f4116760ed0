"""NATS JetStream: the only asynchronous dependency, and the only package that imports nats-py.

- `settings`: servers, credentials, TLS and timeouts.
- `connection`: opens and checks the connection of an execution environment.
- `topology`: creates and updates streams and consumers at deployment, and verifies them in workers.
- `publisher`: publishes messages, many in flight at a time.
- `pull_consumer`: pulls messages of one consumer; `message` has their types.
- `errors`: converts errors of nats-py to RetryableError.

This package exports no names: a function imports only the modules that it uses.
"""
