"""The value of the header Idempotency-Key: a quoted string, as in the draft of the IETF, or plain text (C29)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from grantwire_idempotency._internal.foundation.validation import clean_text
from grantwire_idempotency.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADER = "Idempotency-Key"
_MAX_LENGTH = 255
# A string of RFC 9651: printable ASCII characters; a quote and a backslash have a backslash before them.
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')


def parse_key(values: Sequence[str]) -> str:
    """Return the key, given all values of the header of one request. `"k"` and `k` are the same key.

    Plain text must not contain a comma, because servers and proxies join the values of a repeated header with it.
    Raises BadRequestError if there is not exactly one valid key.
    """
    text = values[0].strip(" \t") if values else ""
    match = _QUOTED.fullmatch(text)
    if len(values) > 1 or (match is None and "," in text):
        raise BadRequestError(f"{_HEADER} must be sent exactly once")
    if match is not None:
        text = re.sub(r"\\(.)", r"\1", match[1])
    elif text.startswith('"'):
        raise BadRequestError(f"{_HEADER} must be a quoted string or plain text")
    if not text.isascii():
        raise BadRequestError(f"{_HEADER} must contain only ASCII characters")
    return clean_text(_HEADER, text, max_length=_MAX_LENGTH)
