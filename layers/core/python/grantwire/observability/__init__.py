"""Logs and metrics: JSON lines on standard output, written by Powertools for AWS Lambda.

`logger` is Powertools' Logger and `metrics` its collector, which writes CloudWatch's embedded metric format. Both are
created when they are first used, so that importing reads no environment; on Lambda `configure` does it in the init
phase, and brings the lines of all other libraries into the same format.

Neither a request body nor an idempotency key is ever logged at INFO: `key_fingerprint` is what a log may say about a
key.
"""

from grantwire.observability.identifiers import trace_id_of
from grantwire.observability.powertools import MetricUnit, begin_invocation, configure, logger, metrics, write_metric
from grantwire_idempotency.logs import key_fingerprint

__all__ = [
    "MetricUnit",
    "begin_invocation",
    "configure",
    "key_fingerprint",
    "logger",
    "metrics",
    "trace_id_of",
    "write_metric",
]
