"""Validation of text from outside, such as a name, a reason, an identifier or a key."""

from __future__ import annotations

import re

from grantwire_idempotency.errors import BadRequestError

# Characters that a person cannot see, that reorder the text around them, or that stand for lost bytes. Two texts that
# look the same would be two different keys. The zero width joiner and non-joiner (U+200D, U+200C) are allowed, because
# words of several languages need them. openapi.yaml has the same list; a test compares both.
FORBIDDEN_CHARACTERS = (
    r"\x00-\x1f\x7f-\x9f"  # control characters (category Cc)
    r"\ud800-\udfff"  # lone surrogates (Cs), which UTF-8 cannot encode
    r"\u2028\u2029"  # line and paragraph separators (Zl, Zp)
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls
    r"\u200b\u2060\ufeff"  # zero width space, word joiner, byte order mark
    r"\ufffd"  # replacement character: the sender's encoding was not UTF-8
)
_FORBIDDEN = re.compile(f"[{FORBIDDEN_CHARACTERS}]")


def clean_text(name: str, value: object, *, max_length: int) -> str:
    """Return `value` if it is a non-blank string of at most `max_length` visible characters.

    Raises BadRequestError with the name of the field and the rule. The text is never changed, so white space at its
    beginning or end is refused, not removed.
    """
    if not isinstance(value, str):
        raise BadRequestError(f"{name} must be a string")
    if not value.strip():
        raise BadRequestError(f"{name} must not be empty")
    if len(value) > max_length:
        raise BadRequestError(f"{name} must have at most {max_length} characters")
    if forbidden := _FORBIDDEN.search(value):
        raise BadRequestError(
            f"{name} must not contain control, bidirectional, invisible or replacement characters"
            f" (found U+{ord(forbidden[0]):04X})"
        )
    if value[0].isspace() or value[-1].isspace():
        raise BadRequestError(f"{name} must not begin or end with white space")
    return value
