"""What the Lambda runtime puts into the environment anew for each invocation."""

from __future__ import annotations

import os


def xray_header() -> str | None:
    """Return the X-Ray header of this invocation; None where there is no Lambda runtime."""
    return os.environ.get("_X_AMZN_TRACE_ID")
