"""Logs and metrics: JSON lines on standard output, which CloudWatch reads as logs and as metrics (EMF).

One logger and one metric collector for each execution environment. Neither a request body nor an idempotency key is
ever logged at INFO: `key_fingerprint` is what a log may say about a key.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from typing import TYPE_CHECKING

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.metrics import Metrics, MetricUnit

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MetricUnit", "key_fingerprint", "log", "metrics", "trace_id_of"]

log = Logger(service="grantwire")
metrics = Metrics(namespace="Grantwire", service="grantwire")

_TRACE_ROOT = re.compile(r"(?:^|;)\s*Root=(1-[0-9a-f]{8}-[0-9a-f]{24})")


def trace_id_of(headers: Mapping[str, str]) -> str:
    """The X-Ray trace of this invocation: what the runtime says, else what the caller sent, else a new one."""
    for source in (os.environ.get("_X_AMZN_TRACE_ID", ""), headers.get("x-amzn-trace-id", "")):
        if match := _TRACE_ROOT.search(source):
            return match[1]
    return f"1-{int(time.time()):08x}-{os.urandom(12).hex()}"


def key_fingerprint(key: str) -> str:
    """Enough of a hash to recognise a key in the logs, too little to replay it."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]
