"""K9: cursors of the change feed and page tokens of the snapshot, and the requests that contain them."""

from __future__ import annotations

import base64
import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grantwire.errors import BadRequestError
from grantwire.feed.cursor import FeedCursor, Position, SnapshotToken
from grantwire.feed.requests import ChangesRequest, SnapshotRequest
from tests.support.contract import document, schema_validator

if TYPE_CHECKING:
    from collections.abc import Callable

POSITION = Position(999, datetime(2026, 1, 8, 7, 10, tzinfo=UTC), UUID("019bbafd-69c0-7000-8000-000000000001"))
CURSOR = FeedCursor("19450cc734b3c8d5", POSITION).encode()
TOKEN = SnapshotToken("19450cc734b3c8d5", 1000, "u_123", "item1").encode()
TIMES = st.datetimes(timezones=st.just(UTC))
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=128)
IDENTITIES = st.binary(min_size=8, max_size=8).map(bytes.hex)


def _refusal(parse: Callable[[dict[str, list[str]]], object], query: dict[str, list[str]]) -> str | None:
    """Return the message of the refusal, or None if the query is accepted."""
    try:
        parse(query)
    except BadRequestError as error:
        return str(error)
    return None


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@given(IDENTITIES, st.integers(0, 2**64 - 1), TIMES, st.uuids())
def test_cursor_is_decoded_to_the_same_position(identity: str, number: int, time: datetime, id_: UUID) -> None:
    """K9: to the microsecond, and the text needs no escape in a URL."""
    cursor = FeedCursor(identity, Position(number, time, id_))
    assert FeedCursor.decode(cursor.encode()) == cursor
    assert schema_validator(document()["components"]["schemas"]["Cursor"]).is_valid(cursor.encode())


@given(IDENTITIES, st.integers(1, 2**64 - 1), NAMES, NAMES)
def test_token_is_decoded_to_the_same_entitlement(identity: str, number: int, user_id: str, sku: str) -> None:
    """K9: names may contain every character that PostgreSQL can store."""
    token = SnapshotToken(identity, number, user_id, sku)
    assert SnapshotToken.decode(token.encode()) == token
    assert schema_validator(document()["components"]["schemas"]["Cursor"]).is_valid(token.encode())


def test_position_before_a_transaction_is_after_all_earlier_ones() -> None:
    """K9: tuples compare as the rows of PostgreSQL do."""
    before = Position.before(1000)
    assert POSITION < before < Position(1000, datetime.min.replace(tzinfo=UTC), UUID(int=0))


def test_cursors_of_the_document_are_cursors() -> None:
    """The examples of openapi.yaml are not made up."""
    examples = document()["paths"]["/v1/changes"]["get"]["responses"]["200"]["content"]["application/json"]["examples"]
    assert examples["some"]["value"]["next_after"] == CURSOR
    examples = document()["paths"]["/v1/snapshot"]["get"]["responses"]["200"]["content"]["application/json"]["examples"]
    assert examples["more"]["value"]["next_after"] == TOKEN
    assert FeedCursor.decode(examples["more"]["value"]["changes_after"]).position == Position.before(1000)


MALFORMED = {
    "empty": "",
    "white space": " ",
    "another alphabet": "é" * 55,
    "padding": CURSOR + "=",
    "standard alphabet": CURSOR.replace("-", "+"),
    "truncated": CURSOR[:-1],
    "one more": CURSOR + "A",
    "spare bits": CURSOR[:-1] + "F",
    "too long": "A" * 2049,
    "null": "\0",
    "lone surrogate": "\ud800",
    "other version": _text(b"\x09" + bytes(40)),
    "time out of range": _text(struct.pack(">B8sQq16s", 1, bytes(8), 1, 2**63 - 1, bytes(16))),
    "time before the year 1": _text(struct.pack(">B8sQq16s", 1, bytes(8), 1, -(2**60), bytes(16))),
    "token of the snapshot": TOKEN,
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_malformed_cursor_is_refused_by_name(text: str) -> None:
    """K9, E5: the message names `after`."""
    with pytest.raises(BadRequestError, match=r"^after must be next_after of GET /v1/changes"):
        ChangesRequest.parse({"after": [text]})


@pytest.mark.parametrize(
    "text",
    [
        *(text for name, text in MALFORMED.items() if name != "token of the snapshot"),
        CURSOR,
        _text(struct.pack(">B8sQ", 2, bytes(8), 1) + b"user"),
        _text(struct.pack(">B8sQ", 2, bytes(8), 1) + b"a\0b\0c"),
        _text(struct.pack(">B8sQ", 2, bytes(8), 1) + b"\xff\0b"),
        _text(struct.pack(">B8sQ", 2, bytes(8), 0) + b"a\0b"),
        _text(b"\x02"),
    ],
)
def test_malformed_token_is_refused_by_name(text: str) -> None:
    """K9, E5: the message names `after`."""
    with pytest.raises(BadRequestError, match=r"^after must be next_after of the previous page"):
        SnapshotRequest.parse({"after": [text]})


@given(st.text(st.characters(exclude_categories=()), max_size=80) | st.binary(max_size=80).map(_text))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    """E5: no other error, whatever a caller sends."""
    for parse in (ChangesRequest.parse, SnapshotRequest.parse):
        message = _refusal(parse, {"after": [text]})
        assert message is None or message.startswith("after must be")


def test_defaults_are_those_of_the_document() -> None:
    """K9: 100 changes without a wait."""
    assert ChangesRequest.parse({}) == (None, 100, 0)
    assert SnapshotRequest.parse({}) == (None, 100)
    for path in ("/v1/changes", "/v1/snapshot"):
        parameters = {part["name"]: part["schema"] for part in document()["paths"][path]["get"]["parameters"]}
        assert parameters["limit"]["default"] == 100
        assert parameters.get("wait", {"default": 0})["default"] == 0


@pytest.mark.parametrize("value", [-1, 0, 1, 999, 1000, 1001])
def test_limit_schema_and_parser_agree(value: int) -> None:
    """K9: 1 to 1,000, on both routes."""
    for path, parse in (("/v1/changes", ChangesRequest.parse), ("/v1/snapshot", SnapshotRequest.parse)):
        parameters = {part["name"]: part["schema"] for part in document()["paths"][path]["get"]["parameters"]}
        valid = schema_validator(parameters["limit"]).is_valid(value)
        message = _refusal(parse, {"limit": [str(value)]})
        assert message == (None if valid else "limit must be a whole number between 1 and 1000")


@pytest.mark.parametrize("value", ["0", "1", "20", "00"])
def test_wait_in_whole_seconds_is_accepted(value: str) -> None:
    """K9: from 0 to 20."""
    assert ChangesRequest.parse({"wait": [value]}).wait == int(value)


@pytest.mark.parametrize("value", ["", " ", "-1", "21", "1.5", "1s", "1e1", "020", "٣", "²", "+1", "9" * 5000])
def test_other_wait_is_refused_by_name(value: str) -> None:
    """K9, E5: the message has the limits."""
    with pytest.raises(BadRequestError, match=r"^wait must be a whole number of seconds between 0 and 20$"):
        ChangesRequest.parse({"wait": [value]})


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"limit": ["1", "2"]}, "limit must be given once"),
        ({"after": []}, "after must be given once"),
        ({"cursor": ["x"]}, "unknown query parameter 'cursor'; allowed: after, limit"),
        ({"\ud800" * 200: ["x"]}, "unknown query parameter"),
    ],
)
def test_unknown_and_repeated_parameters_are_refused(query: dict[str, list[str]], message: str) -> None:
    """E5: a misspelt parameter must not be ignored."""
    for parse in (ChangesRequest.parse, SnapshotRequest.parse):
        with pytest.raises(BadRequestError, match=message):
            parse(query)


def test_wait_is_no_parameter_of_the_snapshot() -> None:
    """E5: it would have no effect."""
    with pytest.raises(BadRequestError, match="unknown query parameter 'wait'"):
        SnapshotRequest.parse({"wait": ["1"]})


def test_cursor_does_not_depend_on_the_zone_of_the_time() -> None:
    """K9: PostgreSQL returns times in the zone of the session."""
    zone = datetime(2026, 1, 8, 9, 10, tzinfo=UTC).astimezone().tzinfo
    moved = POSITION._replace(occurred_at=POSITION.occurred_at.astimezone(zone) + timedelta(0))
    assert FeedCursor("19450cc734b3c8d5", moved).encode() == CURSOR
