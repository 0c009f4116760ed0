"""The library's logger: standard `logging`, with the facts in `extra`, so that any formatter can print them.

The library configures nothing: level, handlers and format are the application's.
"""

from __future__ import annotations

import hashlib
import logging

logger = logging.getLogger("grantwire_idempotency")


def key_fingerprint(key: str) -> str:
    """Return enough of a hash to recognise a key in the logs, and too little to replay it."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]
