"""Trace ids for log lines and events."""

from __future__ import annotations

import os
import re
import time

_TRACE_ROOT = re.compile(r"(?:^|;)\s*Root=(1-[0-9a-f]{8}-[0-9a-f]{24})")


def trace_id_from_headers(*headers: str | None) -> str:
    """Return the X-Ray trace id in the first of the headers that has one, or a new trace id."""
    for header in headers:
        if header and (match := _TRACE_ROOT.search(header)):
            return match[1]
    return f"1-{int(time.time()):08x}-{os.urandom(12).hex()}"
