"""Rules for text that comes from outside: what a name, a reason or an identifier may be."""

from __future__ import annotations

import re

from grantwire.errors import BadRequestError

# How long a text may be, in characters. The tables' constraints say the same; a test compares.
LONGEST_NAME = 128  # user_id, stock_keeping_unit, purchase_id
LONGEST_REASON = 64
LONGEST_CLIENT_NAME = 64

# C0, DEL and C1 control characters, and lone surrogates, which no UTF-8 column can hold.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def page_size(value: str, *, largest: int) -> int:
    """How many entries a caller asks for: a whole number from 1 to `largest`."""
    if value.isascii() and value.isdigit() and len(value) <= len(str(largest)) and 1 <= int(value) <= largest:
        return int(value)
    raise BadRequestError(f"limit must be a whole number between 1 and {largest}")


def clean_text(name: str, value: object, *, longest: int) -> str:
    """`value` if it is a non-blank string of at most `longest` characters without control characters."""
    if not isinstance(value, str):
        raise BadRequestError(f"{name} must be a string")
    if not value.strip():
        raise BadRequestError(f"{name} must not be empty")
    if len(value) > longest:
        raise BadRequestError(f"{name} must have at most {longest} characters")
    if _FORBIDDEN.search(value):
        raise BadRequestError(f"{name} must not contain control characters or lone surrogates")
    return value
