"""Limits and parsers for text from callers: names, reasons and page sizes."""

from __future__ import annotations

from grantwire.errors import BadRequestError
from grantwire_idempotency.validation import clean_text

__all__ = ["MAX_CLIENT_NAME_LENGTH", "MAX_NAME_LENGTH", "MAX_REASON_LENGTH", "clean_text", "parse_page_size"]

# In characters. CHECK constraints of the tables have the same limits; a test compares them.
MAX_NAME_LENGTH = 128  # user_id, stock_keeping_unit, purchase_id
MAX_REASON_LENGTH = 64
MAX_CLIENT_NAME_LENGTH = 64


def parse_page_size(value: str, *, maximum: int) -> int:
    """Return the page size in the query parameter `limit`: a whole number from 1 to `maximum`.

    Raises BadRequestError for any other value.
    """
    if value.isascii() and value.isdigit() and len(value) <= len(str(maximum)) and 1 <= int(value) <= maximum:
        return int(value)
    raise BadRequestError(f"limit must be a whole number between 1 and {maximum}")
