"""The library's logger: standard `logging` with fields in `extra`, which any formatter can print.

The library configures nothing: level, handlers and format belong to the application.
"""

from __future__ import annotations

import hashlib
import logging

logger = logging.getLogger("grantwire_idempotency")


def key_fingerprint(key: str) -> str:
    """Return the start of the key's hash: enough to recognise the key in logs, not enough to recover it."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]
