"""The message of a dead letter, decoded for a person."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from grantwire.errors import RejectedError
from grantwire.notifications.events import decode_payload

if TYPE_CHECKING:
    from collections.abc import Mapping

# A response of Lambda has at most 6 MB.
_MAX_SHOWN_BYTES = 256 * 1024


def describe_message(stored: Mapping[str, Any], payload: bytes | None) -> dict[str, Any]:
    """Return the message of a dead letter: the fields of its event, or else its bytes and why they cannot be decoded.

    `stored` has what the database knows about the message. `payload` is a protocol buffer; it is None if the message is
    JSON in `stored`, or if there is no copy.
    """
    message = {"decoded": None, "base64": None, "problem": None, **stored}
    if payload is None:
        return message
    try:
        return {**message, "format": "protobuf", "decoded": decode_payload(payload)}
    except RejectedError as error:
        shown = payload[:_MAX_SHOWN_BYTES]
        problem = str(error) if len(shown) == len(payload) else f"{error}; only the first {len(shown)} bytes are shown"
        return {**message, "format": "protobuf", "base64": base64.b64encode(shown).decode(), "problem": problem}
