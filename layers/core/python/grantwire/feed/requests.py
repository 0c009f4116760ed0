"""Requests for pages of changes and of the snapshot. All content is untrusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from grantwire.errors import BadRequestError
from grantwire.feed.cursor import FeedCursor, SnapshotToken
from grantwire.validation import MAX_PAGE_SIZE, parse_page_size, single_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

MAX_WAIT_SECONDS = 20
_DEFAULT_PAGE_SIZE = "100"

_CURSOR_MESSAGE = "after must be next_after of GET /v1/changes or changes_after of GET /v1/snapshot, unchanged"
_TOKEN_MESSAGE = "after must be next_after of the previous page of GET /v1/snapshot, unchanged"  # noqa: S105

C = TypeVar("C")


class ChangesRequest(NamedTuple):
    """A request for at most `limit` changes after a cursor; without one, from the oldest change that is kept.

    If there is none, it waits for one for up to `wait` seconds.
    """

    after: FeedCursor | None
    limit: int
    wait: int

    @classmethod
    def parse(cls, query: Mapping[str, Sequence[str]]) -> Self:
        """Validate the query parameters; raises BadRequestError."""
        values = single_values(query, "after", "limit", "wait")
        return cls(
            _decode(values.get("after"), FeedCursor.decode, _CURSOR_MESSAGE),
            parse_page_size(values.get("limit", _DEFAULT_PAGE_SIZE), maximum=MAX_PAGE_SIZE),
            _parse_wait(values.get("wait", "0")),
        )


class SnapshotRequest(NamedTuple):
    """A request for at most `limit` entitlements after those of an earlier page."""

    after: SnapshotToken | None
    limit: int

    @classmethod
    def parse(cls, query: Mapping[str, Sequence[str]]) -> Self:
        """Validate the query parameters; raises BadRequestError."""
        values = single_values(query, "after", "limit")
        return cls(
            _decode(values.get("after"), SnapshotToken.decode, _TOKEN_MESSAGE),
            parse_page_size(values.get("limit", _DEFAULT_PAGE_SIZE), maximum=MAX_PAGE_SIZE),
        )


def _decode(value: str | None, decode: Callable[[str], C], message: str) -> C | None:
    try:
        return None if value is None else decode(value)
    except ValueError:
        raise BadRequestError(message) from None


def _parse_wait(value: str) -> int:
    if value.isascii() and value.isdigit() and len(value) <= len(str(MAX_WAIT_SECONDS)):
        seconds = int(value)
        if seconds <= MAX_WAIT_SECONDS:
            return seconds
    raise BadRequestError(f"wait must be a whole number of seconds between 0 and {MAX_WAIT_SECONDS}")
