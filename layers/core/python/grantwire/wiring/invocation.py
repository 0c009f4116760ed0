"""Environment variables that the Lambda runtime sets for each invocation."""

from __future__ import annotations

import os


def xray_header() -> str | None:
    """Return the X-Ray trace header of this invocation; None outside Lambda."""
    return os.environ.get("_X_AMZN_TRACE_ID")
