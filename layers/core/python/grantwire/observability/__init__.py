"""Logs and metrics: JSON lines on standard output, which CloudWatch reads as logs and as metrics (EMF).

One log and one metric collector for each execution environment. Neither a request body nor an idempotency key is ever
logged at INFO: `key_fingerprint` is what a log may say about a key.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from grantwire.observability.lines import Log
from grantwire.observability.metrics import Metrics, MetricUnit, stamped
from grantwire_idempotency.logs import key_fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["MetricUnit", "key_fingerprint", "log", "metrics", "stamped", "trace_id_of"]

log = Log("grantwire", level=os.environ.get("AWS_LAMBDA_LOG_LEVEL") or "INFO")
metrics = Metrics("Grantwire", service="grantwire", emit=log.emit)

_TRACE_ROOT = re.compile(r"(?:^|;)\s*Root=(1-[0-9a-f]{8}-[0-9a-f]{24})")


def trace_id_of(headers: Mapping[str, Sequence[str]]) -> str:
    """The X-Ray trace of this invocation: what the runtime says, else what the caller sent, else a new one."""
    for source in (os.environ.get("_X_AMZN_TRACE_ID"), *headers.get("x-amzn-trace-id", ())[-1:]):
        if source and (match := _TRACE_ROOT.search(source)):
            return match[1]
    return f"1-{int(time.time()):08x}-{os.urandom(12).hex()}"
