"""How any worker works, written once.

A worker is a subclass of `loop.Worker` with one method, `step`; `loop.run` calls it until the `budget` ends. Work that
is claimed for a while goes through `leases`, a batch that the database refuses through `isolation`, and a worker that
waits for a notification of PostgreSQL has a `listener`.
"""
