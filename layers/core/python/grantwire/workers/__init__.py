"""The mechanisms that all workers share.

A worker is a subclass of `loop.Worker` with one method, `step`; `loop.run` calls it until the `budget` ends. `leases`
claims rows for one worker. `isolation` finds the items of a batch that the database rejects. `listener` waits for
PostgreSQL notifications.
"""
