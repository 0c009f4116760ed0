"""Times from callers: RFC 3339 with a zone, nothing else."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from grantwire.errors import BadRequestError
from grantwire.validation import parse_time


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31t12:00:00z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00.5Z", datetime(2026, 1, 31, 12, 0, 0, 500_000, UTC)),
        ("2026-01-31T12:00:00.000001Z", datetime(2026, 1, 31, 12, 0, 0, 1, UTC)),
        ("2026-01-31T12:00:00.123456999Z", datetime(2026, 1, 31, 12, 0, 0, 123_456, UTC)),
        ("2026-01-31T00:30:00+01:00", datetime(2026, 1, 30, 23, 30, tzinfo=UTC)),
        ("2026-01-31T23:30:00-23:59", datetime(2026, 2, 1, 23, 29, tzinfo=UTC)),
        ("2026-01-31T12:00:00-00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2024-02-29T00:00:00Z", datetime(2024, 2, 29, tzinfo=UTC)),
        ("2000-01-01T00:00:00Z", datetime(2000, 1, 1, tzinfo=UTC)),
        ("1999-12-31T23:00:00-01:00", datetime(2000, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999Z", datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)),
    ],
)
def test_a_time_with_a_zone_becomes_utc(text: str, expected: datetime) -> None:
    """K3: microseconds are kept, and the zone is converted."""
    time = parse_time("starts_at", text)

    assert time == expected
    assert time.tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "now",
        "2026-01-31",
        "2026-01-31T12:00:00",  # no zone
        "2026-01-31T12:00Z",  # no seconds
        "2026-01-31T12Z",
        "2026-01-31 12:00:00Z",
        " 2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00Z ",
        "2026-01-31T12:00:00Z\n",
        "20260131T120000Z",
        "2026-W05-6T12:00:00Z",
        "2026-031T12:00:00Z",
        "2026-02-30T12:00:00Z",
        "2025-02-29T12:00:00Z",
        "2026-13-01T12:00:00Z",
        "2026-00-01T12:00:00Z",
        "2026-01-00T12:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:60:00Z",
        "2026-12-31T23:59:60Z",  # leap second
        "2026-01-31T12:00:00,5Z",
        "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00.1234567890Z",
        "2026-01-31T12:00:00+0100",
        "2026-01-31T12:00:00+01",
        "2026-01-31T12:00:00+24:00",
        "2026-01-31T12:00:00+01:60",
        "2026-01-31T12:00:00+01:00:30",
        "2026-01-31T12:00:00 01:00",  # a plus sign that a query string turned into a space
        "2026-01-31T12:00:00ZZ",
        "2026-01-31T12:00:00Europe/Berlin",
        "+2026-01-31T12:00:00Z",
        "12026-01-31T12:00:00Z",
        "٢٠٢٦-01-31T12:00:00Z",
        "2026-01-31T12:00:00\x00Z",
        "2026-01-31T12:00:00Z" * 1000,
        "infinity",
        "epoch",
    ],
)
def test_every_other_form_is_refused_with_the_field_and_an_example(text: str) -> None:
    """K3: what PostgreSQL or datetime.fromisoformat accepts beyond RFC 3339 is refused."""
    with pytest.raises(BadRequestError) as refused:
        parse_time("expires_at", text)

    assert str(refused.value) == "expires_at must be an RFC 3339 time with a zone, for example 2026-01-31T12:00:00Z"


@pytest.mark.parametrize(
    "text",
    [
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "1999-12-31T23:59:59.999999Z",
        "2000-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
    ],
)
def test_a_time_out_of_range_is_refused(text: str) -> None:
    """K3: years 2000 to 9999, after conversion to UTC."""
    with pytest.raises(BadRequestError, match=r"^expires_at must be "):
        parse_time("expires_at", text)


@pytest.mark.parametrize("value", [None, True, 0, 1767225600, 1.5, [], {}, ["2026-01-31T12:00:00Z"]])
def test_a_time_must_be_a_string(value: object) -> None:
    """K3: a number of seconds is not a time."""
    with pytest.raises(BadRequestError, match=r"^starts_at must be a string$"):
        parse_time("starts_at", value)
