"""Identifiers that sort by the time they were made."""

from __future__ import annotations

import os
import time
import uuid

# Two bits of the digit are fixed, two are left to chance.
_VARIANT = {f"{digit:x}": "89ab"[digit & 3] for digit in range(16)}


def uuid7_text() -> str:
    """A version 7 UUID (RFC 9562) as text: neighbours in time are neighbours in an index, which spares the WAL."""
    moment, chance = f"{time.time_ns() // 1_000_000:012x}", os.urandom(10).hex()
    variant = _VARIANT[chance[3]]
    return f"{moment[:8]}-{moment[8:]}-7{chance[:3]}-{variant}{chance[4:7]}-{chance[7:19]}"


def uuid7() -> uuid.UUID:
    """The same as an object."""
    return uuid.UUID(uuid7_text())
