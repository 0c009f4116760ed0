"""T1: the message of a dead letter that is not an event, readable for a person and in full for a program."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

import pytest

from grantwire.operations.messages import describe_message
from tests.support.dead_letters import event_bytes

NOT_AN_EVENT = "not an EntitlementEvent"
IS_TEXT = "the message is text, but an event is a protocol buffer"
IS_JSON = "the message is JSON, but an event is a protocol buffer"


def describe(payload: bytes) -> dict[str, Any]:
    """Return the description of a message; its bytes are complete unless the problem says otherwise."""
    message = describe_message({"format": "none", "subject": "s"}, payload)
    assert (message["subject"], message["size"]) == ("s", len(payload))
    assert message["format"] == ("unknown" if message["problem"] else "protobuf")
    if message["problem"] and "only the first" not in message["problem"]:
        assert base64.b64decode(message["base64"]) == payload
    return message


@pytest.mark.parametrize(
    ("payload", "text", "content"),
    [
        (b"This is not an event.", "This is not an event.", IS_TEXT),
        (b'{"user": "u_1"}\n', '{"user": "u_1"}\n', IS_JSON),
        ("größer\tals\r\n".encode(), "größer\tals\\u000d\n", IS_TEXT),
        (b"[" * 60_000, "[" * 4096, IS_TEXT),
        (b"red \x1b[31m", "red \\u001b[31m", ""),
        ("a\u009b2J\u202eb\ufeff".encode(), "a\\u009b2J\\u202eb\\ufeff", IS_TEXT),
        (b"\x7fx", "\\u007fx", IS_TEXT),
        (b"<script>alert(1)</script>", "<script>alert(1)</script>", IS_TEXT),
    ],
)
def test_text_is_readable_and_control_characters_are_escaped(payload: bytes, text: str, content: str) -> None:
    """T1: nothing of a message can reach a terminal as a command, and the problem says what the message is."""
    message = describe(payload)
    assert (message["decoded"], message["text"], message["hex"]) == (None, text, None)
    assert message["problem"] == "; ".join(filter(None, (NOT_AN_EVENT, content)))


def test_bytes_that_are_not_utf8_are_shown_as_hexadecimal_digits() -> None:
    """T1: the first 64 bytes; a text with one wrong byte, too."""
    message = describe(b"\xff" * 100)
    assert (message["text"], message["hex"]) == (None, " ".join(["ff"] * 64))
    assert message["problem"] == NOT_AN_EVENT
    assert describe(b"text \xe9")["hex"] == "74 65 78 74 20 e9"


def test_empty_message_is_named() -> None:
    """T1: its field would be the only reason otherwise."""
    message = describe(b"")
    assert (message["text"], message["hex"], message["base64"]) == ("", None, "")
    assert message["problem"] == "event_id is not a UUID: ''; the message is empty"


def test_text_and_bytes_are_bounded() -> None:
    """T1: a response of Lambda has at most 6 MB; a character is not divided."""
    message = describe("€".encode() * 400_000)
    assert message["text"] == "€" * 4096
    assert len(base64.b64decode(message["base64"])) == 256 * 1024
    assert message["problem"].endswith("only the first 262144 bytes are shown")
    assert len(json.dumps(describe(b"\x01" * 3_000_000))) < 600_000


def test_event_is_decoded_and_has_no_bytes() -> None:
    """T1: the fields are enough."""
    event_id = uuid.uuid4()
    message = describe(event_bytes(event_id))
    assert message["decoded"]["event_id"] == str(event_id)
    assert [message[name] for name in ("base64", "text", "hex", "problem")] == [None] * 4


def test_message_without_a_copy_has_no_size() -> None:
    """T1: the fields are there, and null."""
    message = describe_message({"format": "none"}, None)
    assert [message[name] for name in ("decoded", "base64", "text", "hex", "size", "problem")] == [None] * 6
