"""N1, O3, O5: an event's bytes and headers."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grantwire.errors import RejectedError
from grantwire.events.v1 import EntitlementEvent
from grantwire.outbox.encoding import encode_event, header_value, headers_of
from grantwire.outbox.store import ClaimedEvent
from tests.support.workers.relay_support import payload

EVENT_ID = uuid.UUID("0198c0de-0000-7000-8000-000000000001")


def test_every_field_of_a_payload_travels() -> None:
    """N1: and comes back as it was."""
    event = EntitlementEvent.FromString(encode_event(payload(EVENT_ID, 7)))
    assert event.occurred_at.ToJsonString() == "2026-11-16T03:00:00.123456Z"
    assert {name: getattr(event, name) for name in payload(EVENT_ID, 7) if name != "occurred_at"} == {
        name: value for name, value in payload(EVENT_ID, 7).items() if name != "occurred_at"
    }


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"version": "7"}, "version must be a whole number"),
        ({"version": True}, "version must be a whole number"),
        ({"version": 0}, "version must be a whole number"),
        ({"version": 2**63}, "cannot be encoded"),
        ({"user_id": ""}, "may be empty"),
        ({"user_id": None}, "may be empty"),
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
    ],
)
def test_a_payload_that_is_not_an_event_is_rejected(fields: dict[str, Any], problem: str) -> None:
    """O5: it will be no event tomorrow either."""
    with pytest.raises(RejectedError, match=problem):
        encode_event({**payload(EVENT_ID, 1), **fields})


@pytest.mark.parametrize("other", [None, [], "text", {}])
def test_json_that_is_not_an_object_with_these_fields_is_rejected(other: Any) -> None:
    """O5: jsonb may be anything."""
    with pytest.raises(RejectedError, match="exactly these fields"):
        encode_event(other)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_header_is_visible_ascii_and_can_be_read_back(value: str) -> None:
    """O3: whatever a user is called."""
    header = header_value(value)
    assert all("!" <= character <= "~" for character in header)
    assert unquote(header) == value


def test_a_plain_header_stays_as_it_is() -> None:
    """O3: readable where it can be."""
    assert header_value("u_123/item1") == "u_123/item1"


def test_headers_are_what_nats_wants() -> None:
    """O3: a version, a line for each header, an empty line; a user's name cannot add one."""
    claimed = ClaimedEvent(
        str(EVENT_ID), "EntitlementGranted", "u\r\nX: 1/ü", 1, payload(EVENT_ID, 1), "1-a-b", 0, reclaimed=False
    )
    version, *lines, end, rest = headers_of(claimed).decode("ascii").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert (version, end, rest) == ("NATS/1.0", "", "")
    assert {name: unquote(value) for name, value in headers.items()} == {
        "Nats-Msg-Id": str(EVENT_ID),
        "event_id": str(EVENT_ID),
        "event_type": "EntitlementGranted",
        "aggregate_key": "u\r\nX: 1/ü",
        "occurred_at": "2026-11-16T03:00:00.123456Z",
        "trace_id": "1-a-b",
    }
    assert b"trace_id" not in headers_of(claimed._replace(trace_id=None))
