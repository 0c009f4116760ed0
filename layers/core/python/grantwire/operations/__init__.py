"""The operations API: status, dead letters, commands, trace and samples, for operators without database credentials.

`status.Statuses` reads the state of every stage in one snapshot; every count has a limit (T1). `traces.Traces` follows
a change through all tables (T2). `samples.Samples` keeps one sample a minute for a day (T8).

A command goes one way, whoever gives it (ADR 0042): `commands.OperatorCommand` validates the request, `Commands` stores
it at most once for each idempotency key, `worker.CommandWorker` claims it, and `redrive` or `rebuild` executes one
batch after the other. The changes of a batch, its row in `operator_actions` and the progress of the command commit
together, so that a command whose worker was killed continues where it stopped. `command_list` shows it. A dry run
changes nothing, and is executed by the route.

Parsers raise BadRequestError, look-ups of a single object NotFoundError. Everything raises RetryableError if PostgreSQL
is unavailable. Only the worker connects to NATS; the routes know about NATS what the workers have recorded.

This package exports no names: a function imports the module that it needs.
"""
