"""The message of a dead letter, decoded for a person."""

from __future__ import annotations

import base64
import codecs
import json
import re
from typing import TYPE_CHECKING, Any

from grantwire.errors import RejectedError
from grantwire.events.decoding import decode_payload

if TYPE_CHECKING:
    from collections.abc import Mapping

# A response of Lambda has at most 6 MB.
_MAX_SHOWN_BYTES = 256 * 1024
# What a person reads: the beginning is enough to recognise the publisher.
_MAX_TEXT_LENGTH = 4096
_MAX_HEX_BYTES = 64
_MAX_UTF8_BYTES = 4
# Control characters, except tab and line feed, and characters that reorder or hide text.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff]")
_BINARY = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")


def describe_message(stored: Mapping[str, Any], payload: bytes | None) -> dict[str, Any]:
    """Return the message of a dead letter: the fields of its event, or else its bytes and why they cannot be decoded.

    `stored` has what the database knows about the message. `payload` is a protocol buffer; it is None if the message is
    JSON in `stored`, or if there is no copy.
    """
    message = {"decoded": None, "base64": None, "text": None, "hex": None, "size": None, "problem": None, **stored}
    if payload is None:
        return message
    message |= {"size": len(payload)}
    try:
        return {**message, "format": "protobuf", "decoded": decode_payload(payload)}
    except RejectedError as error:
        return {**message, **_describe_bytes(payload, str(error))}


def _describe_bytes(payload: bytes, reason: str) -> dict[str, Any]:
    """Return the bytes in full, and for a person as text or, if they are not UTF-8, as hexadecimal digits."""
    shown = payload[:_MAX_SHOWN_BYTES]
    text = _decode_text(payload)
    problem = "; ".join(part for part in (reason, _describe_content(payload, text)) if part)
    if len(shown) < len(payload):
        problem += f"; only the first {len(shown)} bytes are shown"
    return {
        "format": "unknown",
        "base64": base64.b64encode(shown).decode(),
        "text": None if text is None else _INVISIBLE.sub(_escape, text[:_MAX_TEXT_LENGTH]),
        "hex": payload[:_MAX_HEX_BYTES].hex(" ") if text is None else None,
        "problem": problem,
    }


def _decode_text(payload: bytes) -> str | None:
    """Return the beginning of a text in UTF-8, one character more than is shown at most; None if it is not UTF-8."""
    beginning = payload[: (_MAX_TEXT_LENGTH + 1) * _MAX_UTF8_BYTES]
    try:
        # The limit may divide the last character.
        return codecs.getincrementaldecoder("utf-8")().decode(beginning, final=len(beginning) == len(payload))
    except UnicodeDecodeError:
        return None


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _describe_content(payload: bytes, text: str | None) -> str:
    """Return what the bytes are instead of an event, if that is obvious."""
    if not payload:
        return "the message is empty"
    if text is None or _BINARY.search(text):
        return ""
    kind = "JSON" if _is_json(payload) else "text"
    return f"the message is {kind}, but an event is a protocol buffer"


def _is_json(payload: bytes) -> bool:
    try:
        return isinstance(json.loads(payload[:_MAX_SHOWN_BYTES]), dict | list)
    except (ValueError, RecursionError):
        return False
