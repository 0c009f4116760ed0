"""What a line says about a request instead of quoting it."""

from __future__ import annotations

import os
import re
import time

_TRACE_ROOT = re.compile(r"(?:^|;)\s*Root=(1-[0-9a-f]{8}-[0-9a-f]{24})")


def trace_id_of(*headers: str | None) -> str:
    """Return the X-Ray trace of the first header that names one, else a new trace."""
    for header in headers:
        if header and (match := _TRACE_ROOT.search(header)):
            return match[1]
    return f"1-{int(time.time()):08x}-{os.urandom(12).hex()}"
