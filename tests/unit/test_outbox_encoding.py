"""N1, O3, O5: the payload and the headers of a published event."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grantwire.errors import RejectedError
from grantwire.events import EVENT_TYPES
from grantwire.events.decoding import decode_payload
from grantwire.events.encoding import encode_event, encode_header_value
from grantwire.events.v1 import EntitlementEvent
from grantwire.outbox.headers import build_headers
from grantwire.outbox.store import ClaimedEvent
from tests.support.paths import ROOT
from tests.support.workers.relay_support import payload

EVENT_ID = uuid.UUID("0198c0de-0000-7000-8000-000000000001")


def test_encoded_event_has_every_field_of_the_payload() -> None:
    """N1: decoding the message returns the values of the payload."""
    event = EntitlementEvent.FromString(encode_event(payload(EVENT_ID, 7)))
    assert event.occurred_at.ToJsonString() == "2026-11-16T03:00:00.123456Z"
    assert {name: getattr(event, name) for name in payload(EVENT_ID, 7) if name != "occurred_at"} == {
        name: value for name, value in payload(EVENT_ID, 7).items() if name != "occurred_at"
    }


@pytest.mark.parametrize("names", [(), ("starts_at",), ("expires_at",), ("expires_at", "starts_at")])
def test_times_of_the_entitlement_are_encoded_where_set(names: tuple[str, ...]) -> None:
    """N1, K3: with any zone and microseconds; an absent time is absent in the message, not 1970."""
    times = {"starts_at": "2027-01-31T23:00:00.000001-01:00", "expires_at": "2027-02-28T00:00:00Z"}
    sent = payload(EVENT_ID, 7) | {name: times[name] for name in names}
    event = EntitlementEvent.FromString(encode_event(sent))
    expected = {"starts_at": "2027-02-01T00:00:00.000001Z", "expires_at": "2027-02-28T00:00:00Z"}
    for name, time in expected.items():
        assert event.HasField(name) == (name in names)
        assert name not in names or getattr(event, name).ToJsonString() == time


def test_examples_in_the_documentation_are_events() -> None:
    """N1: docs/events.md has a valid example of every type, with the versions of one entitlement in order."""
    page = (ROOT / "docs" / "events.md").read_text()
    blocks = re.findall(r"<!-- examples of events -->\n```json\n(.*?)```", page, re.DOTALL)
    examples = [[json.loads(line) for line in block.splitlines()] for block in blocks]
    for block in examples:
        assert [example["version"] for example in block] in ([1, 2, 3, 4, 5], [2])
        for example in block:
            assert decode_payload(encode_event(example)) == example
    assert {example["event_type"] for block in examples for example in block} == EVENT_TYPES


@pytest.mark.parametrize("missing", ["version", "occurred_at"])
def test_times_do_not_replace_a_required_field(missing: str) -> None:
    """O5: the number of fields does not decide."""
    sent = payload(EVENT_ID, 1) | {"expires_at": "2026-11-16T03:00:00Z"}
    del sent[missing]
    with pytest.raises(RejectedError, match="exactly these fields"):
        encode_event(sent)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"version": "7"}, "version must be an integer"),
        ({"version": True}, "version must be an integer"),
        ({"version": 0}, "version must be an integer"),
        ({"version": 2**63}, "cannot be encoded"),
        ({"user_id": ""}, "must not be empty"),
        ({"user_id": None}, "must not be empty"),
        ({"user_id": 7}, "cannot be encoded"),
        ({"user_id": "\ud800"}, "cannot be encoded"),
        ({"event_id": "7"}, "event_id must be a UUID"),
        ({"event_id": 7}, "cannot be encoded"),
        ({"event_type": "EntitlementLost"}, "event_type must be one of"),
        ({"event_type": ["EntitlementGranted"]}, "cannot be encoded"),
        ({"occurred_at": "yesterday"}, "cannot be encoded"),
        ({"occurred_at": "2026-11-16T03:00:00"}, "time zone"),
        ({"occurred_at": None}, "cannot be encoded"),
        ({"more": 1}, "exactly these fields"),
        ({"starts_at": "2026-11-16T03:00:00Z", "ends_at": "2026-11-17T03:00:00Z"}, "exactly these fields"),
        ({"starts_at": "2026-11-16T03:00:00"}, "starts_at must have a time zone"),
        ({"expires_at": "2026-11-16T03:00:00"}, "expires_at must have a time zone"),
        ({"expires_at": "tomorrow"}, "cannot be encoded"),
        ({"expires_at": None}, "cannot be encoded"),
        ({"expires_at": 1794798000}, "cannot be encoded"),
        ({"starts_at": {"seconds": 1, "nanos": 0}}, "cannot be encoded"),
    ],
)
def test_invalid_payload_is_rejected(fields: dict[str, Any], problem: str) -> None:
    """O5: the error is permanent and names the field."""
    with pytest.raises(RejectedError, match=problem):
        encode_event({**payload(EVENT_ID, 1), **fields})


@pytest.mark.parametrize("value", [None, [], "text", {}])
def test_json_without_the_fields_of_an_event_is_rejected(value: Any) -> None:
    """O5: a jsonb column can contain any JSON value."""
    with pytest.raises(RejectedError, match="exactly these fields"):
        encode_event(value)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_header_value_is_visible_ascii_and_can_be_decoded(value: str) -> None:
    """O3: this holds for any text, for example any user id."""
    header = encode_header_value(value)
    assert all("!" <= character <= "~" for character in header)
    assert unquote(header) == value


def test_plain_header_value_is_not_changed() -> None:
    """O3: only values that need it are percent-encoded."""
    assert encode_header_value("u_123/item1") == "u_123/item1"


def test_headers_are_visible_ascii() -> None:
    """O3: line breaks are percent-encoded, so a user id cannot inject a header."""
    claimed = ClaimedEvent(
        str(EVENT_ID), "EntitlementGranted", "u\r\nX: 1/ü", 1, payload(EVENT_ID, 1), "1-a-b", 0, reclaimed=False
    )
    headers = build_headers(claimed)
    assert all(re.fullmatch(r"[!-~]+", value) for value in headers.values())
    assert {name: unquote(value) for name, value in headers.items()} == {
        "Nats-Msg-Id": str(EVENT_ID),
        "event_id": str(EVENT_ID),
        "event_type": "EntitlementGranted",
        "aggregate_key": "u\r\nX: 1/ü",
        "occurred_at": "2026-11-16T03:00:00.123456Z",
        "trace_id": "1-a-b",
    }
    assert "trace_id" not in build_headers(claimed._replace(trace_id=None))
