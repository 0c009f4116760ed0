"""Logs and metrics: JSON lines on standard output, written by Powertools for AWS Lambda.

`logger` is Powertools' Logger. `metrics` is Powertools' metrics collector, which writes CloudWatch's embedded metric
format. Both are created on first use, so that importing this package reads no environment variable. On Lambda,
`configure` creates them in the init phase and gives the log lines of all other libraries the same format.

Request bodies and idempotency keys are never logged at INFO or above; log `key_fingerprint` of a key instead.
"""

from grantwire.observability.powertools import MetricUnit, begin_invocation, configure, logger, metrics, write_metric
from grantwire.observability.trace_ids import build_traceparent, parse_trace_id, trace_id_from_headers
from grantwire_idempotency import key_fingerprint

__all__ = [
    "MetricUnit",
    "begin_invocation",
    "build_traceparent",
    "configure",
    "key_fingerprint",
    "logger",
    "metrics",
    "parse_trace_id",
    "trace_id_from_headers",
    "write_metric",
]
