"""Rules for text that comes from outside: what a name, a reason, an identifier or a page size may be."""

from __future__ import annotations

from grantwire.errors import BadRequestError
from grantwire_idempotency.validation import clean_text

__all__ = ["MAX_CLIENT_NAME_LENGTH", "MAX_NAME_LENGTH", "MAX_REASON_LENGTH", "clean_text", "parse_page_size"]

# How long a text may be, in characters. The tables' constraints say the same; a test compares.
MAX_NAME_LENGTH = 128  # user_id, stock_keeping_unit, purchase_id
MAX_REASON_LENGTH = 64
MAX_CLIENT_NAME_LENGTH = 64


def parse_page_size(value: str, *, maximum: int) -> int:
    """How many entries a caller asks for: a whole number from 1 to `maximum`."""
    if value.isascii() and value.isdigit() and len(value) <= len(str(maximum)) and 1 <= int(value) <= maximum:
        return int(value)
    raise BadRequestError(f"limit must be a whole number between 1 and {maximum}")
