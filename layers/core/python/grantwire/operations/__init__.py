"""The operations API: status, dead letters, commands, trace and samples, for operators without database credentials.

`status.Statuses` reads the state of every stage in one snapshot; every count has a limit (T1). `commands.Commands`
stores an operator's command at most once for each idempotency key, and `worker.CommandWorker` executes it in batches
under a lease: the changes of a batch, its row in `operator_actions` and the position of the next batch commit together,
so that a command whose worker was killed continues where it stopped (ADR 0042). `traces.Traces` follows a change
through all tables (T2). `samples.Samples` keeps one sample a
minute for a day (T8).

Parsers raise BadRequestError, look-ups of a single object NotFoundError. Everything raises RetryableError if PostgreSQL
is unavailable. Only the worker connects to NATS; the routes know about NATS what the workers have recorded.

This package exports no names: a function imports the module that it needs.
"""
