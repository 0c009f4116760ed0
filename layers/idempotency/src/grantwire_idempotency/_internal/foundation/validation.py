"""Validation of text from outside, such as a name, a reason, an identifier or a key."""

from __future__ import annotations

import re

from grantwire_idempotency.errors import BadRequestError

# ASCII and Latin-1 control characters, and lone surrogates, which UTF-8 cannot encode.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def clean_text(name: str, value: object, *, max_length: int) -> str:
    """Return `value` if it is a non-blank string of at most `max_length` characters without control characters.

    Raises BadRequestError with the name of the field and the rule.
    """
    if not isinstance(value, str):
        raise BadRequestError(f"{name} must be a string")
    if not value.strip():
        raise BadRequestError(f"{name} must not be empty")
    if len(value) > max_length:
        raise BadRequestError(f"{name} must have at most {max_length} characters")
    if _FORBIDDEN.search(value):
        raise BadRequestError(f"{name} must not contain control characters or lone surrogates")
    return value
