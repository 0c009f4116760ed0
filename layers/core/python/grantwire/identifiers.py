"""Identifiers that sort by creation time."""

from __future__ import annotations

import os
import time
import uuid

# RFC 9562 fixes the upper two bits of the variant digit (binary 10); the lower two stay random.
_VARIANT_DIGITS = {f"{digit:x}": "89ab"[digit & 3] for digit in range(16)}


def uuid7_text() -> str:
    """Return a new version 7 UUID (RFC 9562) as text.

    Ids created close in time are close in an index, so inserts touch few pages and write less WAL.
    """
    timestamp, random_hex = f"{time.time_ns() // 1_000_000:012x}", os.urandom(10).hex()
    variant = _VARIANT_DIGITS[random_hex[3]]
    return f"{timestamp[:8]}-{timestamp[8:]}-7{random_hex[:3]}-{variant}{random_hex[4:7]}-{random_hex[7:19]}"


def uuid7() -> uuid.UUID:
    """Return a new version 7 UUID."""
    return uuid.UUID(uuid7_text())
