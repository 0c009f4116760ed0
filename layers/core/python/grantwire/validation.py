"""Rules for text that comes from outside: what a name, a reason, an identifier or a page size may be."""

from __future__ import annotations

from grantwire.errors import BadRequestError
from grantwire_idempotency.validation import clean_text

__all__ = ["LONGEST_CLIENT_NAME", "LONGEST_NAME", "LONGEST_REASON", "clean_text", "page_size"]

# How long a text may be, in characters. The tables' constraints say the same; a test compares.
LONGEST_NAME = 128  # user_id, stock_keeping_unit, purchase_id
LONGEST_REASON = 64
LONGEST_CLIENT_NAME = 64


def page_size(value: str, *, largest: int) -> int:
    """How many entries a caller asks for: a whole number from 1 to `largest`."""
    if value.isascii() and value.isdigit() and len(value) <= len(str(largest)) and 1 <= int(value) <= largest:
        return int(value)
    raise BadRequestError(f"limit must be a whole number between 1 and {largest}")
